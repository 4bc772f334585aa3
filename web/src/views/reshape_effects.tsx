/** What the changes do to the model: how different its tokens stay, and what its heads do. */
import type { JSX } from "preact";
import type { Exam } from "../contract";
import { Figure } from "../figure";
import { live } from "../live";
import { otherText } from "../live_comparison";
import { Curves, type Series } from "../plot";
import { alongDepth, headsOf, KIND_WORDS, kindsOf, ofHead, shown } from "../readings";
import { linkTo } from "../store";
import { DataTable, type Row } from "../table";

const CURVE = "rank.residual";
const OF_HEADS = [
  ["saturation.entropy", "mean entropy of heads"],
  ["saturation.max_weight", "mean largest weight"],
] as const;
const OF_DEPTH = [
  ["rank.residual", "residual after the last layer"],
  ["rank.stable", "stable rank after the last layer"],
] as const;
const MOST_HEADS = 8;

/** Both answers, where something is changed and the one before is known. */
function both(): { before: Exam; after: Exam } | null {
  const [before, after] = [live.base.value?.exam, live.now.value?.exam];
  return live.changed.value && before !== undefined && after !== undefined ? { before, after } : null;
}

export function MeasuresSeen(): JSX.Element | null {
  const exams = both();
  if (exams === null) return null;
  const { before, after } = exams;
  return (
    <div class="card">
      <DataTable
        caption="Measures of this sentence"
        columns={beforeAfter("measure")}
        rows={[...depthRows(before, after), ...headRows(before, after)]}
      />
      {otherText(before, after).map((words) => (
        <p class="small muted">{words}</p>
      ))}
    </div>
  );
}

export function HeadsSeen(): JSX.Element | null {
  const exams = both();
  if (exams === null) return null;
  return (
    <div class="card">
      <DataTable
        caption="Heads whose entropy changed most"
        columns={beforeAfter("head")}
        rows={mostChanged(exams.before, exams.after)}
      />
    </div>
  );
}

function beforeAfter(first: string): { name: string; numeric?: boolean }[] {
  return [{ name: first }, ...["before", "after", "change"].map((name) => ({ name, numeric: true }))];
}

export function ResidualsSeen(): JSX.Element | null {
  const before = both()?.before ?? null;
  const after = live.now.value?.exam;
  if (after === undefined) return null;
  const series: Series[] = kindsOf(after).flatMap((kind, place) => {
    const colour = `var(--c${place})`;
    const of = (exam: Exam, name: string, dashed: boolean): Series[] => {
      const values = alongDepth(exam, CURVE, kind);
      const points = values?.map((y, x) => ({ x, y })) ?? [];
      return values === null ? [] : [{ name: `${KIND_WORDS[kind]} ${name}`.trim(), points, colour, dashed }];
    };
    return before === null ? of(after, "", false) : [...of(before, "original", true), ...of(after, "changed", false)];
  });
  const depths = Math.max(0, ...series.map(({ points }) => points.length));
  return (
    <Figure
      id="reshape-live-residual"
      title="How different tokens remain, by depth"
      words={`The relative residual: 0 means that all tokens are identical.${
        before === null ? "" : " Dashed: the original model."
      }`}
      table={() => ({
        columns: ["depth", ...series.map(({ name }) => name)],
        rows: Array.from({ length: depths }, (_, depth) => [
          depth,
          ...series.map(({ points }) => points[depth]?.y ?? null),
        ]),
      })}
    >
      <Curves series={series} x="depth" y="residual" whole label="Residual by depth, original and changed" />
    </Figure>
  );
}

function depthRows(before: Exam, after: Exam): Row[] {
  return kindsOf(before).flatMap((kind) =>
    OF_DEPTH.flatMap(([name, words]) => {
      const [one, other] = [before, after].map((exam) => alongDepth(exam, name, kind)?.at(-1) ?? null);
      return row(`${name} ${kind}`, withKind(before, KIND_WORDS[kind], words), one ?? null, other ?? null);
    }),
  );
}

function headRows(before: Exam, after: Exam): Row[] {
  return kindsOf(before).flatMap((kind) =>
    OF_HEADS.flatMap(([name, words]) => {
      const mean = (exam: Exam): number | null => {
        const heads = headsOf(exam).filter((head) => head.kind === kind);
        const values = heads.map((head) => ofHead(exam, name, head)).filter((value) => typeof value === "number");
        return values.length === 0 ? null : values.reduce((sum, value) => sum + value, 0) / values.length;
      };
      return row(`${name} ${kind}`, withKind(before, KIND_WORDS[kind], words), mean(before), mean(after));
    }),
  );
}

function mostChanged(before: Exam, after: Exam): Row[] {
  const rows = headsOf(before).flatMap((head) => {
    const [one, other] = [before, after].map((exam) => ofHead(exam, "saturation.entropy", head));
    if (typeof one !== "number" || typeof other !== "number" || one === other) return [];
    return [{ key: head.name, cells: [shown(before, head), one, other, other - one], href: linkTo("head", head.name) }];
  });
  return rows.sort((a, b) => Math.abs(Number(b.cells[3])) - Math.abs(Number(a.cells[3]))).slice(0, MOST_HEADS);
}

function withKind(exam: Exam, kind: string, words: string): string {
  return kindsOf(exam).length > 1 ? `${kind}: ${words}` : words;
}

function row(key: string, words: string, before: number | null, after: number | null): Row[] {
  return before === null || after === null ? [] : [{ key, cells: [words, before, after, after - before] }];
}
