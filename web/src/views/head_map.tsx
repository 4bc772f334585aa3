/** The attention of one head on one sentence: as a matrix, or as arcs. */
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { slotOf } from "../blobs";
import type { Coding, Pin } from "../contract";
import { Choice } from "../controls";
import { Figure, type Table } from "../figure";
import { Heatmap } from "../heatmap";
import type { HeadName } from "../readings";
import { digits, shown, sides } from "../readings";
import { exam } from "../store";
import { Arcs } from "./arcs";
import { ThumbnailImage, useThumbnails } from "./thumbnails";

/** Levels that are as good as all. */
const FINE = 255;

const view = signal<"matrix" | "arcs">("matrix");
const scale = signal<"even" | "lifted">("lifted");

export function HeadMap({ pin, head, map }: { pin: Pin; head: HeadName; map: Float32Array }): JSX.Element {
  const { rows, columns } = sides(pin, head.kind);
  const label = `Attention of head ${shown(exam.value, head)} on this sentence`;
  return (
    <Figure
      id="attention"
      title="Attention"
      words={coarse(slotOf(pin, head)?.coding)}
      table={() => weightTable(map, rows, columns)}
    >
      <div class="row map-controls">
        <Choice
          label="Show as"
          options={["matrix", "arcs"]}
          value={view.value}
          onChange={(value) => (view.value = value)}
        />
        {view.value === "matrix" && (
          <Choice
            label="Colour scale"
            options={["even", "lifted"]}
            words={{ even: "linear", lifted: "square root" }}
            value={scale.value}
            onChange={(value) => (scale.value = value)}
          />
        )}
      </div>
      {view.value === "matrix" ? (
        <Heatmap values={map} rows={rows} columns={columns} gamma={scale.value === "lifted"} label={label} />
      ) : (
        <Arcs values={map} rows={rows} columns={columns} within={head.kind !== "cross"} label={label} />
      )}
    </Figure>
  );
}

/** Of long sentences weights are kept in few levels: |p' - p| <= sqrt(p) / m + 1 / 4m^2. */
function coarse(coding: Coding | undefined): string | undefined {
  if (coding?.type !== "uint8" || coding.levels === FINE) return undefined;
  return `The sentence is long, so weights are stored in ${coding.levels + 1} levels: a weight near 1 may be off by ${digits(1 / coding.levels)}, smaller weights by less.`;
}

function weightTable(map: Float32Array, rows: string[], columns: string[]): Table {
  return {
    columns: ["row", "query token", "column", "key token", "weight"],
    rows: rows.flatMap((query, row) =>
      columns.map((key, column) => [row, query, column, key, map[row * columns.length + column] ?? null]),
    ),
  };
}

/** For heads whose whole map was left out to keep the page small. */
export function SmallMap({ head }: { head: HeadName }): JSX.Element {
  const picture = useThumbnails()?.get(head.name);
  return (
    <section class="card">
      <h3>Attention</h3>
      <p class="muted">
        Only a thumbnail of this head was kept, because all maps together were too large for one page. Rows are queries,
        columns are keys; each dot is the largest weight of a block of tokens.
      </p>
      {picture !== undefined && (
        <div class="small-map">
          <ThumbnailImage picture={picture} />
        </div>
      )}
    </section>
  );
}
