/** One measure of all heads: before, after, and the difference. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { addressed } from "../addressed";
import type { Exam, HeadMatch, Kind } from "../contract";
import { Choice, Picker } from "../controls";
import { Figure } from "../figure";
import {
  capital,
  KIND_WORDS,
  digits,
  headMeasures,
  headsOf,
  kindsOf,
  ofHead,
  reading,
  renamed,
  SHORT,
  signed,
} from "../readings";
import { linkTo } from "../store";
import { HeadCells, type Cell as HeadCell } from "./head_cells";
import { measureName } from "./measure_names";
import { Says } from "./says";

const chosenMeasure = addressed<string>("compare", "measure", "saturation.entropy");

export function HeadsCompared({
  before,
  after,
  matches,
}: {
  before: Exam;
  after: Exam;
  matches: HeadMatch[];
}): JSX.Element | null {
  const measures = headMeasures(before).filter((name) => headMeasures(after).includes(name));
  const chosen = chosenMeasure;
  const stack = useSignal<Kind | null>(null);
  const measure = measures.includes(chosen.value) ? chosen.value : measures[0];
  if (measure === undefined) return null;
  const kinds = kindsOf(before).filter((kind) => reading(before, measure, kind) && reading(after, measure, kind));
  const kind = kinds.find((one) => one === stack.value) ?? kinds[0];
  if (kind === undefined) return null;
  const found = reading(before, measure, kind)!;
  const values = [before, after].map((exam) => valuesOf(exam, measure, kind));
  const cells = cellsOf(matches, kind).map((cell): Cell => {
    const [one, other] = [values[0]!.get(cell.before ?? ""), values[1]!.get(cell.after ?? "")];
    const shift = cell.state === "compared" && one !== undefined && other !== undefined ? other - one : null;
    return { ...cell, values: { before: one ?? null, after: other ?? null, difference: shift } };
  });
  const all = values.flatMap((side) => [...side.values()]);
  const [least, most] = [Math.min(0, ...all), Math.max(...all)];
  const largest = Math.max(1e-12, ...cells.map(({ values: { difference } }) => Math.abs(difference ?? 0)));
  const title = capital(measureName(measure));
  return (
    <>
      <div class="row compare-chooser">
        <h3>Heads before and after</h3>
        <Picker
          label="Measure"
          options={measures.map((name) => ({ value: name, text: measureName(name) }))}
          value={measure}
          onChange={(name) => (chosen.value = name)}
        />
        {kinds.length > 1 && (
          <Choice
            label="Attention"
            options={kinds}
            value={kind}
            words={KIND_WORDS}
            onChange={(one) => (stack.value = one)}
          />
        )}
        <span class="small muted">
          <Says of={found} />
        </span>
      </div>
      <div class="compare-cells">
        <GridFigure shows="before" title={`${title}, before`} kind={kind} cells={cells} least={least} most={most} />
        <GridFigure shows="after" title={`${title}, after`} kind={kind} cells={cells} least={least} most={most} />
        <GridFigure
          shows="difference"
          title={`${title}, after minus before`}
          words={`Violet: increase. Orange: decrease. Background colour: no change.${lackingWords(cells)}`}
          kind={kind}
          cells={cells}
          most={largest}
        />
      </div>
    </>
  );
}

function valuesOf(exam: Exam, measure: string, kind: Kind): Map<string, number> {
  return new Map(
    headsOf(exam)
      .filter((head) => head.kind === kind)
      .flatMap((head) => {
        const value = ofHead(exam, measure, head);
        return typeof value === "number" ? [[head.name, value] as const] : [];
      }),
  );
}

type Side = "before" | "after" | "difference";

/** The place of a head in a grid: the number that it had at first; heads that were added come behind all others. */
interface Place {
  layer: number;
  column: number;
  added: boolean;
  before: string | null;
  after: string | null;
  state: HeadMatch["state"];
}

interface Cell extends Place {
  values: Record<Side, number | null>;
}

/** All heads of a kind. Where heads of a layer cannot be matched, those of both models share the cells. */
function cellsOf(matches: HeadMatch[], kind: Kind): Place[] {
  const own = matches.filter(({ head }) => head.startsWith(`${SHORT[kind]}.`));
  const numbers = (head: string): number[] => head.split("+")[0]!.split(".").slice(1).map(Number);
  const first = own.filter(({ head }) => !head.includes("+"));
  const behind = 1 + Math.max(-1, ...first.map(({ head }) => numbers(head)[1] ?? 0));
  const places = new Map<string, Place>();
  const added = new Map<number, number>();
  for (const { head, before, after, state } of own) {
    const [layer = 0, number = 0] = numbers(head);
    const isAdded = head.includes("+");
    const column = isAdded ? behind + (added.get(layer) ?? 0) : number;
    if (isAdded) added.set(layer, column - behind + 1);
    const there = places.get(head);
    places.set(head, {
      ...{ layer, column, added: isAdded, state },
      before: before ?? there?.before ?? null,
      after: after ?? there?.after ?? null,
    });
  }
  return [...places.values()];
}

/** What stands in the place of a difference. */
function lackingWords(cells: Cell[]): string {
  const words = {
    cut: " “cut”: the head was removed from one of the models.",
    new: " “new”: the head was added to one of the models.",
    "not compared": " A dash: the matching head of the other model is not known.",
  };
  return Object.entries(words)
    .filter(([state]) => cells.some((cell) => cell.state === state))
    .map(([, told]) => told)
    .join("");
}

/** One cell for every head that either examination has, in the same place of all grids. */
function GridFigure(props: {
  shows: Side;
  title: string;
  words?: string;
  kind: Kind;
  cells: Cell[];
  least?: number;
  most: number;
}): JSX.Element {
  const { shows, cells } = props;
  const across = 1 + Math.max(-1, ...cells.map(({ column }) => column));
  const down = 1 + Math.max(-1, ...cells.map(({ layer }) => layer));
  const columns = Array.from({ length: across }, (_, column) =>
    cells.some((cell) => cell.column === column && !cell.added) ? String(column) : "new",
  );
  const rows = Array.from({ length: down }, (_, layer) => ({
    name: `layer ${layer}`,
    cells: columns.map((_, column) => {
      const cell = cells.find((one) => one.layer === layer && one.column === column);
      return cell === undefined ? null : shownCell(cell, shows);
    }),
  }));
  return (
    <Figure
      id={`compare-${shows}`}
      title={props.title}
      words={props.words}
      table={() => ({
        columns: ["layer", ...columns.map((name) => (name === "new" ? "new head" : `head ${name}`))],
        rows: rows.map((row, layer) => [layer, ...row.cells.map((cell) => cell?.value ?? cell?.text ?? null)]),
      })}
    >
      <HeadCells
        columns={columns}
        rows={rows}
        least={props.least ?? 0}
        most={props.most}
        scale={shows === "difference" ? "diverging" : "sequential"}
        show={shows === "difference" ? short : digits}
        label={`${props.title}, by layer and head`}
      />
    </Figure>
  );
}

/** A cell opens its head in the examination that it is of; nothing stands where a new head was not there yet. */
function shownCell(cell: Cell, shows: Side): HeadCell | null {
  const { before, after, state } = cell;
  const exam = shows === "before" || after === null ? 0 : 1;
  const name = exam === 0 ? before : after;
  const isThere = shows === "difference" || cell[shows] !== null;
  if (!isThere && state === "new") return null;
  const text = state === "cut" || state === "new" ? { text: state } : {};
  const both = before !== null && after !== null && state === "compared";
  const shown = {
    value: cell.values[shows],
    name: `head ${both ? renamed(before, after) : (before ?? after)}`,
    ...text,
  };
  return isThere && name !== null ? { ...shown, href: linkTo("head", name, { exam }) } : shown;
}

/** −.554: the sign needs the room of the zero. */
function short(value: number): string {
  return signed(value).replace(/^(\D)0\./, "$1.");
}
