/** One reading along depth, before and after. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { CATEGORIES } from "../colour";
import type { Comparison, Exam, Kind } from "../contract";
import { Picker } from "../controls";
import { Figure } from "../figure";
import { Curves } from "../plot";
import { kindsOf, measureWords, reading } from "../readings";
import { measureName } from "./measure_names";
import { linkTo } from "../store";
import { Says } from "./says";

export function DepthCompared({
  before,
  after,
  comparison: { curves },
}: {
  before: Exam;
  after: Exam;
  comparison: Comparison;
}): JSX.Element | null {
  const chosen = useSignal<string | null>(null);
  const curve =
    curves.find((one) => one.reading === chosen.value) ??
    curves.find((one) => one.reading.startsWith("rank.residual")) ??
    curves[0];
  if (curve === undefined) return null;
  const [name = "", kind = kindsOf(before)[0]] = curve.reading.split("@") as [string, Kind | undefined];
  const found = kind === undefined ? null : reading(before, name, kind);
  const points = (values: (number | null)[]) => values.map((y, x) => ({ x, y }));
  return (
    <Figure
      id="compare-depth"
      title={`By depth: ${measureName(name)}`}
      words={
        <>
          {found !== null && (
            <>
              <Says of={found} />.{" "}
            </>
          )}
          <a href={linkTo("depth")}>All curves, with their bounds</a>
        </>
      }
      table={() => ({
        columns: ["depth", "before", "after"],
        rows: Array.from({ length: Math.max(curve.before.length, curve.after.length) }, (_, depth) => [
          depth,
          curve.before[depth] ?? null,
          curve.after[depth] ?? null,
        ]),
      })}
    >
      <Picker
        label="Curve"
        options={curves.map(({ reading: text }) => ({ value: text, text: measureName(text) }))}
        value={curve.reading}
        onChange={(text) => (chosen.value = text)}
      />
      <Curves
        series={[
          { name: `before: ${before.label}`, points: points(curve.before), colour: CATEGORIES[0]! },
          { name: `after: ${after.label}`, points: points(curve.after), colour: CATEGORIES[1]!, dashed: true },
        ]}
        x="depth"
        y={measureWords(name)}
        whole
        zero
        label={`${measureWords(name)} by depth, before and after`}
      />
    </Figure>
  );
}
