/** The attention of one head on one sentence: as a matrix, or as arcs. */
import type { ComponentChildren, JSX } from "preact";
import { useMemo } from "preact/hooks";
import { addressed } from "../addressed";
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
import { weighed, WEIGHING_WORDS, WEIGHINGS, weighingSentence, weighingsOf, type Weighing } from "./weighing";

/** Levels that are as good as all. */
const FINE = 255;

const view = addressed("head", "map", "matrix", ["matrix", "arcs"] as const);
const scale = addressed("head", "scale", "lifted", ["lifted", "even"] as const);
const wanted = addressed("head", "weigh", "raw", WEIGHINGS);

/** The map weighed as was chosen. A way that this layer does not have is as none. */
export function weighingOf(pin: Pin, head: HeadName): Weighing {
  const ways = weighingsOf(slotOf(pin, head), head.head);
  return ways.includes(wanted.value) ? wanted.value : "raw";
}

export function HeadMap(props: {
  pin: Pin;
  head: HeadName;
  map: Float32Array;
  /** Another sentence that is shown beside it. */
  beside?: { pin: Pin; map: Float32Array } | null;
  children?: ComponentChildren;
}): JSX.Element {
  const { pin, head, map, beside = null } = props;
  const { rows, columns } = sides(pin, head.kind);
  const slot = slotOf(pin, head);
  const ways = weighingsOf(slot, head.head);
  const way = weighingOf(pin, head);
  const values = useMemo(() => (slot === null ? map : weighed(map, slot, head.head, way)), [map, slot, way]);
  const label = `Attention of head ${shown(exam.value, head)} on this sentence`;
  return (
    <Figure
      id="attention"
      title={way === "raw" ? "Attention" : `Attention, ${WEIGHING_WORDS[way]}`}
      about={{ head, sentence: beside === null ? pin.tokens : [...pin.tokens, "|", ...beside.pin.tokens] }}
      words={[weighingSentence(way), coarse(slot?.coding)].filter((words) => words).join(" ") || undefined}
      table={() => weightTable(values, rows, columns)}
    >
      <div class="row map-controls">
        <Choice
          label="Show as"
          options={["matrix", "arcs"]}
          value={view.value}
          onChange={(value) => (view.value = value)}
        />
        {ways.length > 1 && (
          <Choice
            label="Weigh"
            options={ways}
            words={WEIGHING_WORDS}
            value={way}
            onChange={(value) => (wanted.value = value)}
          />
        )}
        {view.value === "matrix" && (
          <Choice
            label="Colour scale"
            options={["even", "lifted"]}
            words={{ even: "linear", lifted: "square root" }}
            value={scale.value}
            onChange={(value) => (scale.value = value)}
          />
        )}
        {props.children}
      </div>
      <div class={beside === null ? "" : "columns map-pair"}>
        {[{ pin, map }, ...(beside === null ? [] : [beside])].map((one, place) => (
          <OneMap key={place} {...one} head={head} way={way} label={place === 0 ? label : `${label}, the second one`} />
        ))}
      </div>
    </Figure>
  );
}

function OneMap(props: { pin: Pin; map: Float32Array; head: HeadName; way: Weighing; label: string }): JSX.Element {
  const { pin, map, head, way, label } = props;
  const { rows, columns } = sides(pin, head.kind);
  const slot = slotOf(pin, head);
  const values = useMemo(() => (slot === null ? map : weighed(map, slot, head.head, way)), [map, slot, way]);
  return view.value === "matrix" ? (
    <Heatmap values={values} rows={rows} columns={columns} gamma={scale.value === "lifted"} label={label} />
  ) : (
    <Arcs values={values} rows={rows} columns={columns} within={head.kind !== "cross"} label={label} />
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
