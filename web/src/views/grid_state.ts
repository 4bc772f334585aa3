/** What the grid of heads shows, and in which order. It stays while the reader looks at a head and comes back. */
import { computed, signal } from "@preact/signals";
import type { Exam } from "../contract";
import type { HeadName } from "../readings";
import { headMeasures, headsOf, ofHead, shown } from "../readings";
import { exam } from "../store";
import { formOf, hasRoles, labelOf, roleName } from "./roles";

export type Order = "layers" | "rising" | "falling";
type Colouring = "role" | "measure";

const FIRST_CHOICE = "saturation.entropy";

const chosen = signal<string | null>(null);
export const order = signal<Order>("layers");
export const chosenColouring = signal<Colouring>("role");
export const roles = signal<ReadonlySet<string>>(new Set());
export const form = signal("");
export const least = signal("");
export const most = signal("");
export const sought = signal("");

/** The measure that is written under heads; "" where there is none. */
export const measure = computed(() => {
  const names = headMeasures(exam.value);
  const wanted = chosen.value ?? FIRST_CHOICE;
  return names.includes(wanted) ? wanted : (names[0] ?? "");
});

/** What tiles are coloured by; the measure where heads have no role labels. */
export const colouring = computed<Colouring>(() => (hasRoles(exam.value) ? chosenColouring.value : "measure"));

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

/** Heads that pass all filters, in the order of the model or of the measure. */
export const visible = computed<HeadName[]>(() => {
  const of = exam.value;
  const passing = headsOf(of).filter((head) => passes(of, head));
  if (order.value === "layers") return passing;
  const sign = order.value === "rising" ? 1 : -1;
  const missing = sign * Infinity;
  return passing.sort((a, b) => {
    const [one, other] = [measured(of, a) ?? missing, measured(of, b) ?? missing];
    return one === other ? 0 : sign * (one - other);
  });
});

function passes(of: Exam, head: HeadName): boolean {
  const label = labelOf(of, head);
  const value = measured(of, head);
  const words = sought.value.trim().toLowerCase();
  return (
    (roles.value.size === 0 || roles.value.has(label)) &&
    (form.value === "" || formOf(of, head) === form.value) &&
    within(value, least.value, (number, end) => number >= end) &&
    within(value, most.value, (number, end) => number <= end) &&
    (words === "" || `${shown(of, head)} ${head.name} ${roleName(label, head.kind)}`.toLowerCase().includes(words))
  );
}

function within(value: number | null, end: string, holds: (value: number, end: number) => boolean): boolean {
  const number = Number(end);
  return end.trim() === "" || Number.isNaN(number) || (value !== null && holds(value, number));
}
