/** All heads of the model as small pictures: layers down and heads across, or in the order of a measure. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Thumbnail } from "../blobs";
import type { Kind } from "../contract";
import { Figure, type Table } from "../figure";
import { word } from "../heatmap";
import type { HeadName } from "../readings";
import { headMeasures, headName, KIND_WORDS, kindsOf, layersOf, ofHead, shown, slotName } from "../readings";
import { exam, pin } from "../store";
import { onArrowKey } from "./arrow_keys";
import { filtered, measure, order, visible } from "./grid_state";
import { GridControls } from "./grid_controls";
import { formOf, labelOf } from "./roles";
import { sheetOf } from "./sheet";
import { useThumbnails } from "./thumbnails";
import { Tile } from "./tile";
import "./grid.css";

const MOST_WORDS = 24;

export function HeadGrid(): JSX.Element {
  const pictures = useThumbnails();
  const reached = useSignal("");
  const heads = visible.value;
  const first = heads.some((head) => head.name === reached.value) ? reached.value : (heads[0]?.name ?? "");
  const tile = (head: HeadName, name: string) => (
    <Tile
      key={head.name}
      head={head}
      name={name}
      picture={pictures?.get(head.name)}
      reached={head.name === first}
      onFocus={() => (reached.value = head.name)}
    />
  );
  return (
    <Figure
      id="heads"
      title="All heads"
      words={<GridWords pictures={pictures} />}
      table={headTable}
      pictures={(drawn) => [sheetOf(sheetRows(heads), drawn)]}
    >
      <GridControls />
      <div role="group" aria-label="All heads; move with the arrow keys" onKeyDown={onArrowKey}>
        {order.value === "layers" ? (
          <div class="kinds">
            {kindsOf(exam.value).map((kind) => (
              <Layers key={kind} kind={kind} visible={heads} tile={tile} />
            ))}
          </div>
        ) : (
          <div class="tiles-flat">{heads.map((head) => tile(head, shown(exam.value, head)))}</div>
        )}
        {heads.length === 0 && (
          <p class="muted">{filtered.value ? "No head matches these filters." : "This examination has no heads."}</p>
        )}
      </div>
    </Figure>
  );
}

function GridWords({ pictures }: { pictures: Map<string, Thumbnail> | null }): JSX.Element {
  if (pin.value === null) {
    return (
      <>
        No sentence was kept, so there are no pictures:{" "}
        <code>attnworks examine MODEL --pin "a sentence" --out exam/</code>
        {" keeps one."}
      </>
    );
  }
  return (
    <>
      Each picture is the attention map of one head on {pictures === null ? "one sentence" : <q>{sentence()}</q>}. Rows
      are queries, columns are keys. Click one to see it in full.
    </>
  );
}

function sentence(): string {
  const tokens = pin.value?.tokens ?? [];
  const words = tokens.slice(0, MOST_WORDS).map(word).join(" ");
  return tokens.length > MOST_WORDS ? `${words} …` : words;
}

function Layers(props: {
  kind: Kind;
  visible: HeadName[];
  tile: (head: HeadName, name: string) => JSX.Element;
}): JSX.Element {
  const { kind } = props;
  const layers = layersOf(exam.value, kind);
  const heads = new Map(props.visible.map((head) => [head.name, head]));
  const across = Math.max(0, ...layers.map((layer) => exam.value.model.heads[slotName(kind, layer)] ?? 0));
  return (
    <section class="kind" aria-label={KIND_WORDS[kind]}>
      {kindsOf(exam.value).length > 1 && <h4>{KIND_WORDS[kind]}</h4>}
      <div
        class="tiles-layered"
        style={{ "--across": String(across), "--widest": kindsOf(exam.value).length > 1 ? "4.9rem" : "6.4rem" }}
      >
        {layers.flatMap((layer) => [
          <span key={layer} class="tiles-layer small muted">
            <span class="tiles-word">layer </span>
            {layer}
          </span>,
          ...Array.from({ length: across }, (_, place) => {
            const head = heads.get(headName(kind, layer, place));
            const name = `${layer}.${place}`;
            return head === undefined ? <span key={`${name} -`} class="tile-out" /> : props.tile(head, name);
          }),
        ])}
      </div>
    </section>
  );
}

/** As they stand on the sheet that is saved: a row for each layer, or 12 in a row. */
function sheetRows(heads: HeadName[]): HeadName[][] {
  if (order.value === "layers") {
    const slots = [...new Set(heads.map((head) => `${head.kind} ${head.layer}`))];
    return slots.map((slot) => heads.filter((head) => `${head.kind} ${head.layer}` === slot));
  }
  return Array.from({ length: Math.ceil(heads.length / 12) }, (_, row) => heads.slice(12 * row, 12 * row + 12));
}

/** Every head that is shown, with the chosen measure first and then all others. */
function headTable(): Table {
  const of = exam.value;
  const names = [...new Set([measure.value, ...headMeasures(of)])].filter((name) => name !== "");
  return {
    columns: ["head", "role", "form", ...names],
    rows: visible.value.map((head) => [
      shown(of, head),
      labelOf(of, head) || null,
      formOf(of, head) || null,
      ...names.map((name) => ofHead(of, name, head)),
    ]),
  };
}
