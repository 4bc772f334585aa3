/** One measure of all heads: before, after, and the difference. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Exam, Kind } from "../contract";
import { Choice, Picker } from "../controls";
import { Figure } from "../figure";
import {
  KIND_WORDS,
  digits,
  headMeasures,
  headName,
  headsOf,
  headsOfBoth,
  kindsOf,
  measureWords,
  ofHead,
  reading,
  signed,
} from "../readings";
import { linkTo } from "../store";
import { HeadCells } from "./head_cells";
import { Says } from "./says";

export function HeadsCompared({ before, after }: { before: Exam; after: Exam }): JSX.Element | null {
  const measures = headMeasures(before).filter((name) => headMeasures(after).includes(name));
  const chosen = useSignal("saturation.entropy");
  const stack = useSignal<Kind | null>(null);
  const measure = measures.includes(chosen.value) ? chosen.value : measures[0];
  if (measure === undefined) return null;
  const kinds = kindsOf(before).filter((kind) => reading(before, measure, kind) && reading(after, measure, kind));
  const kind = kinds.find((one) => one === stack.value) ?? kinds[0];
  if (kind === undefined) return null;
  const found = reading(before, measure, kind)!;
  const values = [before, after].map((exam) => valuesOf(exam, measure, kind));
  const paired = new Set(headsOfBoth(before, after).map(({ name }) => name));
  const shifts = new Map(
    [...values[0]!].flatMap(([name, value]) =>
      paired.has(name) && values[1]!.has(name) ? [[name, values[1]!.get(name)! - value] as const] : [],
    ),
  );
  const all = values.flatMap((side) => [...side.values()]);
  const [least, most] = [Math.min(0, ...all), Math.max(...all)];
  const largest = Math.max(1e-12, ...[...shifts.values()].map(Math.abs));
  const title = measureWords(measure);
  return (
    <>
      <div class="row compare-chooser">
        <h3>Heads before and after</h3>
        <Picker
          label="Measure"
          options={measures.map((name) => ({ value: name, text: measureWords(name) }))}
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
        <GridFigure
          id="compare-before"
          title={`${title}, before`}
          exams={[before, after]}
          kind={kind}
          values={values[0]!}
          leadsTo={0}
          least={least}
          most={most}
        />
        <GridFigure
          id="compare-after"
          title={`${title}, after`}
          exams={[before, after]}
          kind={kind}
          values={values[1]!}
          leadsTo={1}
          least={least}
          most={most}
        />
        <GridFigure
          id="compare-difference"
          title={`${title}, after minus before`}
          words="Violet: it rose. Orange: it fell. As pale as the page: as before. Layers that lost or gained heads are numbered anew, and have no difference."
          exams={[before, after]}
          kind={kind}
          values={shifts}
          leadsTo={1}
          most={largest}
          diverging
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

/** One cell for every head that either examination has. */
function GridFigure(props: {
  id: string;
  title: string;
  words?: string;
  exams: Exam[];
  kind: Kind;
  values: Map<string, number>;
  least?: number;
  most: number;
  diverging?: boolean;
  /** The examination whose head a cell opens. */
  leadsTo: number;
}): JSX.Element {
  const { exams, kind, values } = props;
  const heads = new Map(
    exams
      .flatMap(headsOf)
      .filter((head) => head.kind === kind)
      .map((head) => [head.name, head]),
  );
  const there = new Set(headsOf(exams[props.leadsTo]!).map(({ name }) => name));
  const across = 1 + Math.max(-1, ...[...heads.values()].map(({ head }) => head));
  const down = 1 + Math.max(-1, ...[...heads.values()].map(({ layer }) => layer));
  const rows = Array.from({ length: down }, (_, layer) => ({
    name: `layer ${layer}`,
    cells: Array.from({ length: across }, (_, head) => {
      const name = headName(kind, layer, head);
      if (!heads.has(name)) return null;
      const cell = { value: values.get(name) ?? null, name: `head ${name}` };
      return there.has(name) ? { ...cell, href: linkTo("head", name, { exam: props.leadsTo }) } : cell;
    }),
  }));
  return (
    <Figure
      id={props.id}
      title={props.title}
      words={props.words}
      table={() => ({
        columns: ["layer", ...Array.from({ length: across }, (_, head) => `head ${head}`)],
        rows: rows.map((row, layer) => [layer, ...row.cells.map((cell) => cell?.value ?? null)]),
      })}
    >
      <HeadCells
        columns={Array.from({ length: across }, (_, head) => String(head))}
        rows={rows}
        least={props.least ?? 0}
        most={props.most}
        scale={props.diverging ? "diverging" : "sequential"}
        show={props.diverging ? short : digits}
        label={`${props.title}, by layer and head`}
      />
    </Figure>
  );
}

/** −.554: the sign needs the room of the zero. */
function short(value: number): string {
  return signed(value).replace(/^(\D)0\./, "$1.");
}
