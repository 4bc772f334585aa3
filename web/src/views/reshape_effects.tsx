/** What the changes do to the model: how different its tokens stay. */
import type { JSX } from "preact";
import type { Exam } from "../contract";
import { Figure } from "../figure";
import { live } from "../live";
import { otherText } from "../live_comparison";
import { Curves, type Series } from "../plot";
import { alongDepth, KIND_WORDS, kindsOf } from "../readings";

const CURVE = "rank.residual";

/** Both answers, where something is changed and the one before is known. */
function both(): { before: Exam; after: Exam } | null {
  const [before, after] = [live.base.value?.exam, live.now.value?.exam];
  return live.changed.value && before !== undefined && after !== undefined ? { before, after } : null;
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
      {before !== null &&
        otherText(before, after).map((words) => (
          <p key={words} class="small muted">
            {words}
          </p>
        ))}
    </Figure>
  );
}
