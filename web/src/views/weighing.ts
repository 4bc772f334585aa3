/** Three ways to weigh attention: as it is, without the sinks, and by what it adds to the stream. */
import type { Slot } from "../contract";

export const WEIGHINGS = ["raw", "behind", "effect"] as const;
export type Weighing = (typeof WEIGHINGS)[number];

export const WEIGHING_WORDS: Record<Weighing, string> = {
  raw: "weights",
  behind: "without sinks",
  effect: "norm-weighted",
};

/** A row that gives less than this to the other keys is left empty: rounding would decide. */
const LEAST = 1e-3;

export function weighingsOf(slot: Slot | null, head: number): Weighing[] {
  if (slot === null || slot.coding.type !== "uint8") return ["raw"];
  const known = slot.sizes?.[head] !== undefined;
  return WEIGHINGS.filter((way) => way === "raw" || (way === "behind" ? slot.sinks.length < slot.columns : known));
}

/** Rows of the result sum to one; what is left out is zero. */
export function weighed(map: Float32Array, slot: Slot, head: number, way: Weighing): Float32Array {
  if (way === "raw") return map;
  const factors = Float32Array.from({ length: slot.columns }, (_, key) =>
    way === "effect" ? (slot.sizes?.[head]?.[key] ?? 0) : slot.sinks.includes(key) ? 0 : 1,
  );
  const result = new Float32Array(map.length);
  for (let row = 0; row < slot.rows; row++) {
    const start = row * slot.columns;
    let sum = 0;
    for (let key = 0; key < slot.columns; key++) sum += (map[start + key] ?? 0) * factors[key]!;
    if (way === "behind" ? sum < LEAST : sum <= 0) continue;
    for (let key = 0; key < slot.columns; key++) result[start + key] = ((map[start + key] ?? 0) * factors[key]!) / sum;
  }
  return result;
}

export function weighingSentence(way: Weighing): string | null {
  if (way === "raw") return null;
  return way === "behind"
    ? "Weights without the first token and special tokens, where attention rests; the others in each row add up to 1."
    : "Each weight times the length of what its key adds to the stream, |P v W_O|, as a share of the row.";
}

/** The attention that each key gets, as a share of all. */
export function received(map: Float32Array, rows: number, columns: number): Float32Array {
  const sums = new Float32Array(columns);
  map.forEach((weight, i) => (sums[i % columns]! += weight));
  const all = sums.reduce((sum, value) => sum + value, 0) || 1;
  return rows === 0 ? sums : sums.map((sum) => sum / all);
}
