/** Readings of an examination, by head and along depth. */
import type { Exam, Interval, Kind, Pin, Reading, Value } from "./contract";

export const KINDS: readonly Kind[] = ["encoder", "decoder", "cross"];
export const SHORT: Record<Kind, string> = { encoder: "enc", decoder: "dec", cross: "cross" };
export const KIND_WORDS: Record<Kind, string> = { encoder: "encoder", decoder: "decoder", cross: "cross-attention" };

/** One head; `name` is enc.3.7. */
export interface HeadName {
  kind: Kind;
  layer: number;
  head: number;
  name: string;
}

/** A layer of a kind, enc.3: a slot of the model. */
export function slotName(kind: Kind, layer: number): string {
  return `${SHORT[kind]}.${layer}`;
}

export function headName(kind: Kind, layer: number, head: number): string {
  return `${slotName(kind, layer)}.${head}`;
}

export function kindsOf(exam: Exam): Kind[] {
  return KINDS.filter((kind) => exam.model.kinds.includes(kind));
}

const known = new WeakMap<Exam, HeadName[]>();
const byText = new WeakMap<Exam, Map<string, HeadName>>();

/** Made once for an examination, since a model may have thousands of heads. */
export function headsOf(exam: Exam): readonly HeadName[] {
  let heads = known.get(exam);
  if (heads === undefined) known.set(exam, (heads = allHeads(exam)));
  return heads;
}

function allHeads(exam: Exam): HeadName[] {
  return kindsOf(exam).flatMap((kind) =>
    layersOf(exam, kind).flatMap((layer) =>
      Array.from({ length: exam.model.heads[slotName(kind, layer)] ?? 0 }, (_, head) => ({
        kind,
        layer,
        head,
        name: headName(kind, layer, head),
      })),
    ),
  );
}

/** The numbers of the layers that have heads of this kind. */
export function layersOf(exam: Exam, kind: Kind): number[] {
  return Object.keys(exam.model.heads)
    .filter((slot) => slot.startsWith(`${SHORT[kind]}.`))
    .map((slot) => Number(slot.slice(slot.indexOf(".") + 1)))
    .sort((a, b) => a - b);
}

/** "enc.3.7"; "3.7" is the first of this number, that of the encoder if there is one. */
export function parseHead(exam: Exam, text: string): HeadName | null {
  let found = byText.get(exam);
  if (found === undefined) {
    byText.set(exam, (found = new Map()));
    for (const one of headsOf(exam).toReversed()) found.set(`${one.layer}.${one.head}`, one).set(one.name, one);
  }
  return found.get(text) ?? null;
}

/** enc.0.5, or enc.0.5 → enc.0.2 where the second model has the head under another number. */
export function renamed(before: string, after: string): string {
  return before === after ? before : `${before} → ${after}`;
}

/** The shortest name that is clear: 3.7 where there is one kind of attention. */
export function shown(exam: Exam, head: HeadName): string {
  return kindsOf(exam).length > 1 ? head.name : `${head.layer}.${head.head}`;
}

export function reading(exam: Exam, name: string, kind: Kind): Reading | null {
  return exam.readings[`${name}@${kind}`] ?? null;
}

/** Of a reading by layer and head. */
export function ofHead(exam: Exam, name: string, head: HeadName): number | string | null {
  const found = reading(exam, name, head.kind);
  if (found === null || found.axes.length !== 2 || found.axes[1] !== "head") return null;
  return leaf(at(found.value, head.layer, head.head));
}

/** The ends of its 95 % interval. */
export function intervalOf(exam: Exam, name: string, head: HeadName): [number, number] | null {
  const ends = reading(exam, name, head.kind)?.interval ?? null;
  if (ends === null) return null;
  const [low, high] = ends.map((end) => leaf(at(end, head.layer, head.head)));
  return typeof low === "number" && typeof high === "number" ? [low, high] : null;
}

/** Of a reading by depth or by layer. */
export function alongDepth(exam: Exam, name: string, kind: Kind): (number | null)[] | null {
  const found = reading(exam, name, kind);
  return found !== null && found.axes.length === 1 ? numbers(found.value) : null;
}

/** Outlying tokens are common at a depth where a sentence has this number of them on average. */
const COMMON_OUTLIERS = 0.1;

/** Whether readings along depth differ without outlying tokens. */
export function hasOutliers(exam: Exam, kind: Kind): boolean {
  return (alongDepth(exam, "rank.outliers", kind) ?? []).some((number) => (number ?? 0) >= COMMON_OUTLIERS);
}

/** A list of numbers, with null for entries that are not numbers. */
export function numbers(value: Value): (number | null)[] {
  return Array.isArray(value) ? value.map((item) => (typeof item === "number" ? item : null)) : [];
}

export function at(value: Value, ...places: number[]): Value {
  return places.reduce<Value>((part, place) => (Array.isArray(part) ? (part[place] ?? null) : null), value);
}

function leaf(value: Value): number | string | null {
  return Array.isArray(value) ? null : value;
}

/** Names of all readings that give a number to every head. */
export function headMeasures(exam: Exam): string[] {
  const names = Object.entries(exam.readings)
    .filter(([, found]) => found.axes.join() === "layer,head" && hasNumbers(found.value))
    .map(([name]) => name.slice(0, name.lastIndexOf("@")));
  return [...new Set(names)].sort();
}

export function hasNumbers(value: Value): boolean {
  return Array.isArray(value) ? value.some(hasNumbers) : typeof value === "number";
}

/** "saturation.entropy" for people. */
export function measureWords(name: string): string {
  return name.replace(".", ": ").replaceAll("_", " ");
}

export function capital(words: string): string {
  return words.charAt(0).toUpperCase() + words.slice(1);
}

/** Tokens of the rows (queries) and columns (keys) of maps of a kind. */
export function sides(pin: Pin, kind: Kind): { rows: string[]; columns: string[] } {
  const target = pin.target ?? pin.tokens;
  return { rows: kind === "encoder" ? pin.tokens : target, columns: kind === "decoder" ? target : pin.tokens };
}

// Numbers for people ----------------------------------------------------------------------------------------------------

/** Three significant digits: 0.123, 12.3, 1.2e-5, 1,234. */
export function digits(x: number | null | undefined): string {
  if (x === null || x === undefined || Number.isNaN(x)) return "-";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "-∞";
  const size = Math.abs(x);
  if (size === 0) return "0";
  if (size >= 1e6 || size < 1e-3) return x.toExponential(1).replace("e+", "e");
  if (size >= 1000) return Math.round(x).toLocaleString("en-US");
  return x.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3);
}

/** Whether a measure was tried and does not apply to this model, as a note of the examination then says. */
export function doesNotApply(of: Exam, measure: string): boolean {
  return of.notes.some((note) => note.startsWith(`${measure}:`));
}

/** With its sign, also if it is a plus. */
export function signed(x: number): string {
  return x > 0 ? `+${digits(x)}` : digits(x).replace("-", "−");
}

export function whole(x: number): string {
  return Math.round(x).toLocaleString("en-US");
}

/** A time ratio with such an interval cannot be told from 1. */
export function containsOne([low, high]: Interval): boolean {
  return low <= 1 && high >= 1;
}

export function percent(x: number): string {
  const share = 100 * x;
  if (share > 0 && share < 1e-3) return "< 0.001 %";
  return `${Math.abs(share) >= 10 ? share.toFixed(0) : Math.abs(share) >= 0.1 || share === 0 ? share.toFixed(1) : Number(share.toPrecision(2))} %`;
}
