/** The paths of the output: the number of attention layers they pass, and the heads they come from. */
import type { JSX } from "preact";
import type { Kind, Reading } from "../contract";
import { Figure } from "../figure";
import { SHORT, alongDepth, at, headName, percent, reading, whole } from "../readings";
import { exam, linkTo, page } from "../store";
import { CurveFigure, Part, Sources, byHead, isThere } from "./depth_figures";
import { HeadCells } from "./head_cells";

export function Paths({ kind }: { kind: Kind }): JSX.Element {
  const counts = (alongDepth(exam.value, "paths.count", kind) ?? []).filter((count) => count !== null);
  const paths = counts.map((count, length) => `${whole(count)} of length ${length}`).slice(0, 4);
  const wrote = whoWrote(kind);
  return (
    <Part title="How the output was made" there={wrote !== null || isThere(kind, /^paths\.(share|norm|residual)@/)}>
      <CurveFigure
        id="depth-share"
        title="How many attention layers the output passed through"
        kind={kind}
        lines={[{ reading: "paths.share", name: "share of the output" }]}
        x="attention layers passed through"
        y="share of the output"
        zero
      >
        Every path through the network passes through some attention layers and skips the others. High on the left: most
        of the output came through short paths, which do not collapse.
        {counts.length > 1 &&
          counts.every((count, length) => length === 0 || count > counts[length - 1]!) &&
          ` There are more long paths than short ones: ${paths.join(", ")}${counts.length > 4 ? ", …" : "."}`}
      </CurveFigure>
      <CurveFigure
        id="depth-paths"
        title="Size and residual of paths by length"
        kind={kind}
        lines={[
          { reading: "paths.norm", name: "size relative to the output" },
          { reading: "paths.residual", name: "relative residual" },
        ]}
        x="attention layers passed through"
        y="ratio"
        zero
      >
        The size of all paths of one length taken together, and how different tokens still are in them (relative
        residual): at 0 they have collapsed. Long paths collapse first.
      </CurveFigure>
      {wrote}
    </Part>
  );
}

/** The share of every head and MLP in the output; those of cross-attention stand beside the decoder's own. */
function whoWrote(kind: Kind): JSX.Element | null {
  const shown = exam.value;
  const writers = (kind === "decoder" ? (["decoder", "cross"] as const) : [kind]).flatMap((of) => {
    const found = reading(shown, "paths.head", of);
    const shares = found === null ? [] : byHead(found);
    return sum(shares.flat()) === null ? [] : [{ of, shares }];
  });
  if (writers.length === 0 || kind === "cross") return null;
  const measured = alongDepth(shown, "paths.mlp", kind) ?? [];
  const mlps = sum(measured) === null ? [] : measured;
  const columns = writers.flatMap(({ of, shares }) => {
    const heads = Math.max(0, ...shares.map((layer) => layer.length));
    return Array.from({ length: heads }, (_, head) => ({
      of,
      shares,
      head,
      name: `${writers.length > 1 ? `${SHORT[of]} ` : ""}${head}`,
    }));
  });
  const layers = Math.max(mlps.length, ...writers.map(({ shares }) => shares.length));
  const rows = Array.from({ length: layers }, (_, layer) => ({
    name: `layer ${layer}`,
    cells: [
      ...columns.map(({ of, shares, head }) => {
        const name = headName(of, layer, head);
        const value = shares[layer]?.[head];
        return value === undefined ? null : { value, name: `head ${name}`, href: linkTo("head", name) };
      }),
      ...(mlps.length > 0 ? [{ value: mlps[layer] ?? null, name: `MLP of layer ${layer}` }] : []),
    ],
  }));
  const values = rows.flatMap((row) => row.cells.map((cell) => cell?.value ?? 0));
  const opposed = values.some((value) => value < 0);
  const parts: [string, number | null][] = [
    ...writers.map(({ of, shares }): [string, number | null] => [
      of === "cross" ? "cross-attention" : "attention",
      sum(shares.flat()),
    ]),
    ["MLPs", sum(mlps)],
    ["the embedding itself", single(reading(shown, "paths.embedding", kind))],
    ["biases and norms", single(reading(shown, "paths.bias", kind))],
  ];
  const told = parts.flatMap(([name, value]) => (value === null ? [] : [`${name} ${percent(value)}`]));
  return (
    <Figure
      id="depth-wrote"
      title={
        page.value.exams.length > 1
          ? `Share of the output by head and MLP (${shown.label})`
          : "Share of the output by head and MLP"
      }
      class="depth-wide"
      words={
        <>
          The share of the output that each head and MLP wrote; a stronger colour is a larger share.
          {opposed && " Negative: it wrote against what the others wrote."} In total: {told.join(", ")}.{" "}
          <Sources of={[{ reading: "paths.head" }, { reading: "paths.embedding" }]} kind={kind} />
        </>
      }
      table={() => ({
        columns: ["layer", ...columns.map(({ name }) => `head ${name}`), ...(mlps.length > 0 ? ["MLP"] : [])],
        rows: rows.map((row, layer) => [layer, ...row.cells.map((cell) => cell?.value ?? null)]),
      })}
    >
      <HeadCells
        columns={[...columns.map(({ name }) => name), ...(mlps.length > 0 ? ["MLP"] : [])]}
        rows={rows}
        most={Math.max(...values.map(Math.abs))}
        scale={opposed ? "diverging" : "sequential"}
        show={(share) => percent(Math.round(1000 * share) / 1000 || 0)}
        label="Share of the output by layer and head"
      />
    </Figure>
  );
}

/** The mean of the numbers that are not null; null if there are none. */
function sum(values: (number | null)[]): number | null {
  const there = values.filter((value) => value !== null);
  return there.length === 0 ? null : there.reduce((total, value) => total + value, 0);
}

function single(found: Reading | null): number | null {
  const value = found === null ? null : Array.isArray(found.value) ? at(found.value, 0) : found.value;
  return typeof value === "number" ? value : null;
}
