/**
 * What changed between two answers about one sentence: number by number, without any word on chance. Both are of one
 * model, whose heads keep their numbers: those that are cut live on with an output of zero.
 */
import type { Change, Comparison, Exam, HeadMatch, Kind, Reading, Value } from "./contract";
import { headsOf, numbers, SHORT } from "./readings";

const COMPARED = ["depth", "layer", "layer,head"];
const ROUNDING = 1e-5;

export function comparisonOf(before: Exam, after: Exam): Comparison {
  const both = Object.keys(before.readings).filter((name) => name in after.readings);
  const pairs = both
    .map((name) => [name, before.readings[name]!, after.readings[name]!] as const)
    .filter(([, one, other]) => COMPARED.includes(one.axes.join()) && one.axes.join() === other.axes.join());
  const label = (name: string): string => (before.model.kinds.length > 1 ? name : name.slice(0, name.lastIndexOf("@")));
  const all = pairs.flatMap(([name, one, other]) => changesIn(label(name), one, other));
  const changes = all.filter(({ difference, before: was }) => Math.abs(difference) > ROUNDING * Math.abs(was));
  const curves = pairs
    .filter(([, one]) => one.axes[0] === "depth")
    .map(([name, one, other]) => ({ reading: label(name), before: numbers(one.value), after: numbers(other.value) }));
  const known = rolesOf(before, after);
  const roles = known.filter((role) => role.before !== role.after);
  const matches = headsOf(before).map(({ name }): HeadMatch => {
    return { head: name, before: name, after: name, state: "compared", why: null };
  });
  return {
    verdict: [],
    compared: all.length,
    nothing_changed: changes.length + roles.length === 0,
    changes: changes.sort((a, b) => relative(b) - relative(a)),
    heads: {
      compared: matches.length,
      cut: 0,
      new: 0,
      not_compared: 0,
      roles_compared: known.length,
      matches,
    },
    roles,
    curves,
    notes: ["Both examinations use only this sentence, so significance is not tested.", ...otherText(before, after)],
  };
}

/** Where the changed model writes something else, its decoder was not looked at on the same words. */
export function otherText(before: Exam, after: Exam): string[] {
  const [was, is] = [before, after].map((exam) => JSON.stringify(exam.pins[0]?.target ?? null));
  return was === is
    ? []
    : [
        "The changed model writes a different text, so values of the decoder and of cross-attention come from different words.",
      ];
}

function changesIn(reading: string, before: Reading, after: Reading): Change[] {
  const kind = SHORT[before.kind];
  const place = (at: string): string => (before.axes[0] === "depth" ? `depth ${at}` : `${kind}.${at}`);
  const others = new Map(leaves(after.value));
  return leaves(before.value).flatMap(([key, was]) => {
    const is = others.get(key);
    if (typeof was !== "number" || typeof is !== "number") return [];
    const where = place(key);
    const found = { reading, where, where_after: where, before: was, after: is, difference: is - was };
    return [{ ...found, margin: null, chance: null, certain: null }];
  });
}

/** Every number with its places: "3.7". */
function leaves(value: Value, places: number[] = []): [string, Value][] {
  return Array.isArray(value)
    ? value.flatMap((part, place) => leaves(part, [...places, place]))
    : [[places.join("."), value]];
}

function relative({ before, difference }: Change): number {
  return Math.abs(difference) / (Math.abs(before) + 1e-3);
}

/** Roles before and after, changed or not. */
function rolesOf(before: Exam, after: Exam): Comparison["roles"] {
  return before.model.kinds.flatMap((kind: Kind) => {
    const [one, other] = [before, after].map((exam) => exam.readings[`roles.label@${kind}`]?.value ?? null);
    const now = new Map(leaves(other ?? null));
    return leaves(one ?? null).flatMap(([key, was]) => {
      const is = now.get(key);
      const head = `${SHORT[kind]}.${key}`;
      const both = typeof was === "string" && typeof is === "string";
      return both ? [{ head, head_after: head, before: was, after: is }] : [];
    });
  });
}
