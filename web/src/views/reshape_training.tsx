/** How the model was trained: the curves of its run. */
import type { JSX } from "preact";
import { Figure } from "../figure";
import { Curves, type Series } from "../plot";
import { capital } from "../readings";
import { page } from "../store";

interface NamedSeries extends Series {
  /** The quantity: series of one quantity share a figure. */
  of: string;
}

/** Curves as an examination holds them; what is not a list of numbers is left out. */
export function trainingSeries(): NamedSeries[] {
  const { exams } = page.value;
  return exams.flatMap(({ model, label }) => {
    const training: unknown = model.training;
    if (typeof training !== "object" || training === null) return [];
    return Object.entries(training).flatMap(([name, curve]: [string, unknown]) => {
      const { step, value } = (curve ?? {}) as { step?: unknown; value?: unknown };
      if (!Array.isArray(step) || !Array.isArray(value)) return [];
      const points = step.flatMap((x: unknown, place) => {
        const y: unknown = value[place];
        return typeof x === "number" && typeof y === "number" ? [{ x, y }] : [];
      });
      const [kind = name, of = name] = name.split(" ");
      return points.length > 0 ? [{ name: exams.length > 1 ? `${kind}, ${label}` : kind, points, of }] : [];
    });
  });
}

export function TrainingPart(): JSX.Element | null {
  const all = trainingSeries();
  if (all.length === 0) return null;
  const quantities = [...new Set(all.map(({ of }) => of))];
  return (
    <section class="stack" aria-labelledby="training">
      <h3 id="training">How it was trained</h3>
      <div class="columns reshape-training">
        {quantities.map((quantity) => {
          const series = all.filter(({ of }) => of === quantity);
          return (
            <Figure
              key={quantity}
              id={`training-${quantity}`}
              title={`${capital(quantity)} by step`}
              table={() => ({
                columns: ["curve", "step", quantity],
                rows: series.flatMap(({ name, points }) => points.map(({ x, y }) => [name, x, y])),
              })}
            >
              <Curves series={series} x="step" y={quantity} label={`${capital(quantity)} by step`} />
            </Figure>
          );
        })}
      </div>
    </section>
  );
}
