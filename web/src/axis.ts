/** Scales of plots, and the numbers beside them. */
import { nice, ticks } from "d3-array";

/** The scale, its ticks, and whether a number has a place on it. */
export interface Axis {
  place: (value: number) => number;
  ticks: number[];
  fits: (value: number | null | undefined) => value is number;
}

/** From the least to the largest of these values, rounded outwards. */
export function axis(
  values: number[],
  range: [number, number],
  options: { log?: boolean; zero?: boolean; count?: number },
): Axis {
  const fits = (value: number | null | undefined): value is number =>
    typeof value === "number" && Number.isFinite(value) && (!options.log || value > 0);
  const known = values.filter(fits).map((value) => (options.log ? Math.log10(value) : value));
  const zero = options.zero && !options.log ? [0] : [];
  const count = options.count ?? 5;
  let [low, high] = known.length ? [Math.min(...known, ...zero), Math.max(...known, ...zero)] : [0, 1];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  [low, high] = nice(low, high, count);
  const place = linear([low, high], range);
  if (!options.log) return { place, ticks: ticks(low, high, count), fits };
  const powers = ticks(low, high, count).filter(Number.isInteger);
  const marks = powers.length > 1 ? powers.map((power) => 10 ** power) : ticks(10 ** low, 10 ** high, count);
  return { place: (value) => place(Math.log10(value)), ticks: marks.filter((mark) => mark > 0), fits };
}

export function linear([low, high]: [number, number], [from, to]: [number, number]): (value: number) => number {
  return (value) => from + ((value - low) / (high - low)) * (to - from);
}

/** The line through these points; it has a gap where a point is missing. */
export function outline(places: ([number, number] | null)[]): string {
  return places
    .map((at, i) => (at === null ? "" : `${places[i - 1] ? "L" : "M"}${at[0].toFixed(1)} ${at[1].toFixed(1)}`))
    .join("");
}

/** For layers and depths: a tick at every number, or at every few. */
export function wholeAxis(values: number[], range: [number, number]): Axis {
  const [low, high] = [values[0] ?? 0, values.at(-1) ?? 0];
  const every = Math.ceil(values.length / 13);
  const fits = (value: number | null | undefined): value is number => typeof value === "number";
  return {
    place: linear([low, Math.max(high, low + 1)], range),
    ticks: values.filter((_, i) => i % every === 0),
    fits,
  };
}

/** A number in its shortest form: 0.2, 20, 1e-5. */
export function tickText(tick: number): string {
  const size = Math.abs(tick);
  if (size !== 0 && (size >= 1e5 || size < 1e-4)) return tick.toExponential().replace("e+", "e");
  return String(Number(tick.toPrecision(6)));
}
