/** The work of heads and layers: what the loss rises without them, or how much it depends on them. */
import type { Exam } from "../contract";
import type { HeadName } from "../readings";
import { headsOf, ofHead, percent, slotName } from "../readings";

/** The work of a head, at least 0; null where it was not measured. */
export function workOf(of: Exam, head: HeadName): number | null {
  const value = of.work === null ? null : ofHead(of, of.work.reading, head);
  return typeof value === "number" ? Math.max(0, value) : null;
}

/** The largest and the sum over all heads. */
export function workSizes(of: Exam): { largest: number; total: number } {
  const all = headsOf(of).map((head) => workOf(of, head) ?? 0);
  return { largest: Math.max(0, ...all), total: all.reduce((sum, value) => sum + value, 0) };
}

/** The share of a layer in the work of all heads. */
export function layerWork(of: Exam, head: HeadName): number | null {
  return of.work?.layers[slotName(head.kind, head.layer)] ?? null;
}

/** 68 %, 4 %, < 1 % */
export function workPercent(share: number): string {
  return share > 0 && share < 0.005 ? "< 1 %" : percent(Math.round(100 * share) / 100).replace(".0 %", " %");
}
