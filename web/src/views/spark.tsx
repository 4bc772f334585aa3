/** A curve without axes, as large as a word. */
import type { JSX } from "preact";
import { linear, outline } from "../axis";

export function Spark({ values }: { values: (number | null)[] }): JSX.Element {
  const known = values.filter((value) => value !== null);
  const top = Math.max(...known.map(Math.abs), 1e-12);
  const x = linear([0, Math.max(1, values.length - 1)], [3, 45]);
  const y = linear([0, top], [45, 4]);
  return (
    <svg class="spark" viewBox="0 0 48 48" aria-hidden="true">
      <path d="M3 45H45" stroke="var(--line)" fill="none" />
      <path
        d={outline(values.map((value, place) => (value === null ? null : [x(place), y(value)])))}
        stroke="var(--accent)"
        stroke-width={2}
        fill="none"
      />
    </svg>
  );
}
