/** Where capacity is missing: what wider heads, or more of them, would gain, for every head or every layer. */
import type { JSX } from "preact";
import { addressed } from "../addressed";
import { Picker } from "../controls";
import type { Exam } from "../contract";
import { Figure } from "../figure";
import { alongDepth, headsOf, kindsOf, layersOf, ofHead, reading, shown, slotName } from "../readings";
import { exam, linkTo } from "../store";
import { Command } from "./command";
import { HeadCells } from "./head_cells";
import { Says } from "./says";

const GROWTHS = [
  { kind: "keys", title: "Gain from wider keys", add: 8 },
  { kind: "values", title: "Gain from wider values", add: 8 },
  { kind: "heads", title: "Gain from one more head", add: 1 },
];

const chosen = addressed<string>("reshape", "growth", "keys");

export function GrowthPart(): JSX.Element | null {
  const of = exam.value;
  const there = GROWTHS.filter(({ kind }) => kindsOf(of).some((stack) => reading(of, nameOf(kind), stack) !== null));
  const growth = there.find(({ kind }) => kind === chosen.value) ?? there[0];
  if (growth === undefined) return null;
  const rows = rowsOf(of, nameOf(growth.kind));
  const cells = rows.flatMap((row) => row.cells);
  const values = cells.map(({ value }) => value ?? 0);
  const byHead = cells.some((cell) => "href" in cell);
  const found = kindsOf(of).flatMap((stack) => reading(of, nameOf(growth.kind), stack) ?? [])[0];
  return (
    <section class="stack" aria-labelledby="reshape-growth">
      <h3 id="reshape-growth">Where capacity is missing</h3>
      <Picker
        label="Measure"
        options={there.map(({ kind, title }) => ({ value: kind, text: title }))}
        value={growth.kind}
        onChange={(kind) => (chosen.value = kind)}
      />
      <Figure
        id={`growth-${growth.kind}`}
        title={growth.title}
        words={found && <Says of={found} />}
        table={() => ({
          columns: ["where", nameOf(growth.kind)],
          rows: cells.map(({ name, value }) => [name, value]),
        })}
      >
        <HeadCells
          label={`${growth.title}; rows are layers, columns are heads`}
          columns={
            byHead
              ? Array.from({ length: Math.max(...rows.map((row) => row.cells.length)) }, (_, head) => `${head}`)
              : ["layer"]
          }
          rows={rows}
          most={Math.max(...values)}
          least={Math.min(0, ...values)}
        />
        {values.some((value) => value > 0) ? (
          <p>
            Next: <Command text={`attnworks grow MODEL --add ${growth.add} --kinds ${growth.kind} --out NEW`} />
          </p>
        ) : (
          <p>Growing would not help anywhere: gains on some sentences are not confirmed on others.</p>
        )}
      </Figure>
    </section>
  );
}

function nameOf(kind: string): string {
  return `bottleneck.${kind}`;
}

/** All layers, one below the other: one cell for every head, or one for the whole layer. */
function rowsOf(of: Exam, name: string) {
  return kindsOf(of).flatMap((kind) =>
    layersOf(of, kind).map((layer) => {
      const ofLayers = alongDepth(of, name, kind);
      const slot = slotName(kind, layer);
      const heads = headsOf(of).filter((head) => head.kind === kind && head.layer === layer);
      return {
        name: kindsOf(of).length > 1 ? slot : `layer ${layer}`,
        cells:
          ofLayers !== null
            ? [{ value: ofLayers[layer] ?? null, name: `layer ${slot}` }]
            : heads.map((head) => {
                const value = ofHead(of, name, head);
                return {
                  value: typeof value === "number" ? value : null,
                  name: `head ${shown(of, head)}`,
                  href: linkTo("head", head.name),
                };
              }),
      };
    }),
  );
}
