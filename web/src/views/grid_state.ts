/** What the grid of heads shows, and in which order. It stays while the reader looks at a head and comes back. */
import { computed, signal } from "@preact/signals";
import type { Exam } from "../contract";
import type { HeadName } from "../readings";
import { headMeasures, headsOf, ofHead, shown } from "../readings";
import { exam } from "../store";
import { formOf, roleLabel, roleName, sinkOf } from "./roles";
import { workOf } from "./work";

export type Order = "layers" | "similar" | "work" | "rising" | "falling";
export type Weighting = "opacity" | "size" | "none";

const FIRST_CHOICE = "saturation.entropy";

const chosen = signal<string | null>(null);
const chosenOrder = signal<Order>("layers");
export const weighting = signal<Weighting>("opacity");
/** Whether tiles show the measure instead of pictures. */
export const filled = signal(false);
/** Labels of roles, and "sink first" or "sink delimiter". */
export const roles = signal<ReadonlySet<string>>(new Set());
export const form = signal("");
export const least = signal("");
export const most = signal("");
export const sought = signal("");

/** The measure that heads can be ordered, filtered and coloured by; "" where there is none. */
export const measure = computed(() => {
  const names = headMeasures(exam.value);
  const wanted = chosen.value ?? FIRST_CHOICE;
  return names.includes(wanted) ? wanted : (names[0] ?? "");
});

/** The orders that this examination allows. */
export const orders = computed<Order[]>(() => [
  "layers",
  ...(exam.value.pins.length > 0 ? (["similar"] as const) : []),
  ...(exam.value.work !== null ? (["work"] as const) : []),
]);

export const order = computed<Order>(() =>
  ["rising", "falling", ...orders.value].includes(chosenOrder.value) ? chosenOrder.value : "layers",
);

export function chooseOrder(value: Order): void {
  chosenOrder.value = value;
}

export function chooseMeasure(name: string): void {
  chosen.value = name;
  least.value = most.value = "";
}

export function showAll(): void {
  roles.value = new Set();
  form.value = least.value = most.value = sought.value = "";
}

export const filtered = computed(
  () => roles.value.size > 0 || [form, least, most, sought].some((field) => field.value.trim() !== ""),
);

export function measured(of: Exam, head: HeadName): number | null {
  const value = ofHead(of, measure.value, head);
  return typeof value === "number" ? value : null;
}

/** The smallest and the largest value of the measure over all heads. */
export const extent = computed<[number, number] | null>(() => {
  const values = headsOf(exam.value).flatMap((head) => measured(exam.value, head) ?? []);
  return values.length > 0 ? [Math.min(...values), Math.max(...values)] : null;
});

/** Where the value of a head lies between the smallest (0) and the largest (1) of all heads. */
export function shareOf(head: HeadName): number | null {
  const value = measured(exam.value, head);
  if (value === null || extent.value === null) return null;
  const [low, high] = extent.value;
  return high > low ? (value - low) / (high - low) : 0.5;
}

/** Heads that pass all filters, in the order of the model, of their work or of the measure. */
export const visible = computed<HeadName[]>(() => {
  const of = exam.value;
  const passing = headsOf(of).filter((head) => passes(of, head));
  if (order.value === "layers" || order.value === "similar") return passing;
  const value = order.value === "work" ? workOf : measured;
  const sign = order.value === "rising" ? 1 : -1;
  const missing = sign * Infinity;
  return passing.sort((a, b) => {
    const [one, other] = [value(of, a) ?? missing, value(of, b) ?? missing];
    return one === other ? 0 : sign * (one - other);
  });
});

export function sinkKey(of: Exam, head: HeadName): string {
  const sink = sinkOf(of, head);
  return sink === "" ? "" : `sink ${sink}`;
}

function passes(of: Exam, head: HeadName): boolean {
  const value = measured(of, head);
  return (
    (roles.value.size === 0 || roles.value.has(roleLabel(of, head)) || roles.value.has(sinkKey(of, head))) &&
    (form.value === "" || formOf(of, head) === form.value) &&
    within(value, least.value, (number, end) => number >= end) &&
    within(value, most.value, (number, end) => number <= end) &&
    isFound(of, head, sought.value.trim().toLowerCase())
  );
}

/** "7." finds layer 7, "7.1" one head, also as enc.7.1; other words are looked for in the names of roles. */
function isFound(of: Exam, head: HeadName, words: string): boolean {
  if (words === "") return true;
  const names = [shown(of, head), head.name, `${head.layer}.${head.head}`];
  if (/^([a-z]+\.)?\d+\.\d*$/.test(words)) {
    return names.some((name) => (words.endsWith(".") ? name.startsWith(words) : name === words));
  }
  const told = [roleLabel(of, head), sinkOf(of, head)].map((label) => `${label} ${roleName(label, head.kind)}`);
  return [...names, ...told].some((text) => text.toLowerCase().includes(words));
}

function within(value: number | null, end: string, holds: (value: number, end: number) => boolean): boolean {
  const number = Number(end);
  return end.trim() === "" || Number.isNaN(number) || (value !== null && holds(value, number));
}
