/** Importance and bottlenecks: a number for every head, or for every layer, and the heads at both ends. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { addressed } from "../addressed";
import { Choice, Picker } from "../controls";
import type { Exam } from "../contract";
import { Figure } from "../figure";
import { Words } from "../words";
import { Bars } from "../plot";
import {
  alongDepth,
  capital,
  doesNotApply,
  headsOf,
  kindsOf,
  layersOf,
  ofHead,
  parseHead,
  reading,
  shown,
  slotName,
} from "../readings";
import { live } from "../live";
import { exam, linkTo, page } from "../store";
import { HeadCells } from "./head_cells";
import { formOf } from "./roles";

interface Judgement {
  name: string;
  title: string;
  /** What the smallest and the largest values mean; the end that matters more is shown first. */
  low?: string;
  high?: string;
  /** What to do about it. */
  command?: string;
  /** Which values are listed, and the text to show if there are none. */
  listed?: (one: Judged) => boolean;
  nowhere?: string;
}

const NO_GROWTH = {
  listed: ({ value }: Judged): boolean => value > 0,
  nowhere: "Growing would not help anywhere: gains on some sentences are not confirmed on others.",
};

const JUDGEMENTS: Judgement[] = [
  {
    name: "ablation.change",
    title: "Loss without the head",
    low: "Heads to remove first",
    high: "Most important heads",
    command: "attnworks prune MODEL --by ablation --keep 0.75 --out NEW",
  },
  {
    name: "importance.gradient",
    title: "Sensitivity of the loss to the head",
    low: "Heads to remove first",
    high: "Most important heads",
    command: "attnworks prune MODEL --by gradient --keep 0.75 --out NEW",
  },
  {
    name: "bottleneck.keys",
    title: "Gain from more keys",
    high: "More keys would help most here",
    command: "attnworks grow MODEL --add 8 --kinds keys --out NEW",
    ...NO_GROWTH,
  },
  {
    name: "bottleneck.values",
    title: "Gain from more values",
    high: "More values would help most here",
    command: "attnworks grow MODEL --add 8 --kinds values --out NEW",
    ...NO_GROWTH,
  },
  {
    name: "bottleneck.heads",
    title: "Gain from one more head",
    high: "One more head would help most here",
    command: "attnworks grow MODEL --add 1 --kinds heads --out NEW",
    ...NO_GROWTH,
  },
  {
    name: "redundancy.nearest",
    title: "Distance to the most similar head",
    low: "Heads most similar to another head",
    command: "attnworks prune MODEL --by redundancy --keep 0.75 --out NEW",
  },
  {
    name: "structure.explained",
    title: "Share explained by a fixed form",
    high: "Heads that a fixed form could replace",
    command: "attnworks project MODEL --heads HEADS --out NEW",
    listed: ({ name }) => hasForm(name),
    nowhere:
      "No head has a structured form that is worth its description length and explains at least half of the attention.",
  },
];
const MOST_BARS = 10;
const MOST_PROJECTED = 3;
/** The number of heads of a layer that fit beside the bars. */
const WIDEST = 12;
const MORE = "attnworks examine MODEL --measures importance,ablation,bottleneck,redundancy,structure --out EXAM";

interface Judged {
  name: string;
  value: number;
  href?: string;
}

const chosen = addressed<string>("reshape", "judge", "");

export function HeadsPart(): JSX.Element {
  const there = JUDGEMENTS.filter(({ name }) => judged(exam.value, name).length > 0);
  const measured = there.find(({ name }) => name === chosen.value) ?? there[0];
  const missing = ["ablation", "importance", "bottleneck", "redundancy"].filter(
    (measure) => !there.some(({ name }) => name.startsWith(`${measure}.`)) && !doesNotApply(exam.value, measure),
  );
  return (
    <section class="stack" aria-labelledby="reshape-heads">
      <h3 id="reshape-heads">Heads: what can be removed, and where capacity is missing</h3>
      {measured !== undefined && (
        <>
          <Picker
            label="Measure"
            options={there.map(({ name, title }) => ({ value: name, text: title }))}
            value={measured.name}
            onChange={(name) => (chosen.value = name)}
          />
          <Measured key={measured.name} judgement={measured} />
        </>
      )}
      {missing.length > 0 && page.value.live === null && (
        <p class="muted">
          {measured === undefined ? "Importance was not measured." : `Not measured: ${missing.join(", ")}.`} To measure
          what is missing: <code>{MORE}</code>, with <code>--objective lm</code>, <code>mlm</code>, <code>seq2seq</code>{" "}
          or <code>embedding</code> for an objective other than the model's own.
        </p>
      )}
    </section>
  );
}

function Measured({ judgement }: { judgement: Judgement }): JSX.Element {
  const { name, title, low, high, command, listed, nowhere } = judgement;
  const ends = [...(low === undefined ? [] : ["low" as const]), ...(high === undefined ? [] : ["high" as const])];
  const [end, setEnd] = useState<"low" | "high">(ends[0] ?? "high");
  const all = judged(exam.value, name);
  const first = kindsOf(exam.value)
    .map((kind) => reading(exam.value, name, kind))
    .find((found) => found !== null);
  const sorted = [...all].sort((a, b) => (end === "low" ? a.value - b.value : b.value - a.value));
  const telling = listed === undefined ? sorted : sorted.filter(listed);
  const table = () => ({ columns: ["where", name], rows: all.map(({ name: where, value }) => [where, value]) });
  return (
    <div
      class={`columns reshape-pair ${Math.max(...Object.values(exam.value.model.heads)) > WIDEST ? "reshape-wide" : ""}`}
    >
      <Figure
        id={`reshape-${name.replace(".", "-")}`}
        title={title}
        words={
          first !== undefined && (
            <>
              {capital(first.description)}. Source: <Words text={first.source} />.
            </>
          )
        }
        table={table}
      >
        <Cells name={name} values={all.map(({ value }) => value)} />
      </Figure>
      <Figure
        id={`reshape-${name.replace(".", "-")}-order`}
        title={(end === "low" ? low : high) ?? title}
        words={
          command !== undefined &&
          telling.length > 0 &&
          !live.changed.value && (
            <>
              Next: <code>{command.replace("HEADS", nearest(telling))}</code>
            </>
          )
        }
        table={() => ({ columns: ["where", name], rows: sorted.map(({ name: where, value }) => [where, value]) })}
      >
        {ends.length > 1 && (
          <Choice
            label="Show"
            options={ends}
            value={end}
            words={{ low: "smallest", high: "largest" }}
            onChange={(value) => setEnd(value)}
          />
        )}
        {telling.length === 0 ? (
          <p>{nowhere}</p>
        ) : telling.slice(0, MOST_BARS).every(({ value }) => value === 0) ? (
          <p>
            {telling
              .filter(({ value }) => value === 0)
              .map(({ name: where }) => where)
              .join(", ")}
            : all 0.
          </p>
        ) : (
          <Bars bars={telling.slice(0, MOST_BARS)} x={measureUnit(name)} label={`${title}, by head`} />
        )}
      </Figure>
    </div>
  );
}

function hasForm(name: string): boolean {
  const head = parseHead(exam.value, name);
  return head !== null && !["", "none"].includes(formOf(exam.value, head));
}

/** The first few that can be projected. */
function nearest(sorted: Judged[]): string {
  const selves = sorted.flatMap(({ name }) => parseHead(exam.value, name) ?? []).filter(({ kind }) => kind !== "cross");
  return selves
    .slice(0, MOST_PROJECTED)
    .map(({ name }) => name)
    .join(",");
}

/** All layers, one below the other: one column for every head, or one for the whole layer. */
function Cells({ name, values }: { name: string; values: number[] }): JSX.Element {
  const examined = exam.value;
  const slots = kindsOf(examined).flatMap((kind) => layersOf(examined, kind).map((layer) => ({ kind, layer })));
  const heads = headsOf(examined);
  const rows = slots.map(({ kind, layer }) => {
    const ofLayers = alongDepth(examined, name, kind);
    const slot = slotName(kind, layer);
    return {
      name: kindsOf(examined).length > 1 ? slot : `layer ${layer}`,
      cells:
        ofLayers !== null
          ? [{ value: ofLayers[layer] ?? null, name: `layer ${slot}` }]
          : heads
              .filter((head) => head.kind === kind && head.layer === layer)
              .map((head) => ({
                value: asNumber(ofHead(examined, name, head)),
                name: `head ${shown(examined, head)}`,
                href: linkTo("head", head.name),
              })),
    };
  });
  const byHead = rows.some(({ cells }) => cells.some((cell) => "href" in cell));
  const width = Math.max(...rows.map(({ cells }) => cells.length));
  return (
    <HeadCells
      label={`${name}, rows are layers, columns are heads`}
      columns={byHead ? Array.from({ length: width }, (_, head) => `${head}`) : ["layer"]}
      rows={rows}
      most={Math.max(...values)}
      least={Math.min(0, ...values)}
    />
  );
}

/** All numbers of this name: of heads, or of layers. */
function judged(examined: Exam, name: string): Judged[] {
  const ofHeads = headsOf(examined).flatMap((head) => {
    const value = ofHead(examined, name, head);
    return typeof value === "number" ? [{ name: shown(examined, head), value, href: linkTo("head", head.name) }] : [];
  });
  if (ofHeads.length > 0) return ofHeads;
  return kindsOf(examined).flatMap((kind) =>
    (alongDepth(examined, name, kind) ?? []).flatMap((value, layer) =>
      value === null ? [] : [{ name: slotName(kind, layer), value }],
    ),
  );
}

function measureUnit(name: string): string {
  if (name.startsWith("bottleneck.")) return "decrease of the loss per 1000 parameters";
  const units: Record<string, string> = {
    "ablation.change": "increase of the loss",
    "importance.gradient": "mean |dL/d gate|",
    "structure.explained": "share explained",
  };
  return units[name] ?? "distance";
}

function asNumber(value: number | string | null): number | null {
  return typeof value === "number" ? value : null;
}
