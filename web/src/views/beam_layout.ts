/** The hypotheses of a beam search as a tree with a place for each. */
import type { BeamStep, Pin } from "../contract";
import { word } from "../heatmap";

export interface Hypothesis {
  /** -1 is the empty one that all come from. */
  step: number;
  /** Its place in `kept` or `ended` of the step. */
  place: number;
  /** The most probable of a step is 0. */
  rank: number;
  token: string;
  logprob: number;
  ended: boolean;
  parent: Hypothesis | null;
  /** Whether it is the translation, or the beginning of it. */
  best: boolean;
  /** Whether any hypothesis that ended came from it. */
  fruitful: boolean;
}

export function hypothesesOf({ beam, translation }: Pin): Hypothesis[][] {
  const start: Hypothesis = {
    step: -1,
    place: 0,
    rank: 0,
    token: "",
    logprob: 0,
    ended: false,
    parent: null,
    best: false,
    fruitful: false,
  };
  const steps = (beam ?? []).reduce<Hypothesis[][]>(
    (before, step, place) => [...before, grown(before.at(-1)!, step, place)],
    [[start]],
  );
  const ends = steps.flat().filter((one) => one.ended);
  const chosen = chosenOf(ends.length > 0 ? ends : (steps.at(-1) ?? []), translation);
  for (const end of ends) for (const one of wayTo(end)) one.fruitful = true;
  if (chosen !== null) for (const one of wayTo(chosen)) one.best = one.fruitful = true;
  return steps;
}

/** What goes on and what ended, the most probable first. */
function grown(before: Hypothesis[], { kept, ended }: BeamStep, step: number): Hypothesis[] {
  const made = (candidates: BeamStep["kept"], end: boolean) =>
    candidates.map(({ parent: from, token, logprob }, place): Hypothesis => ({
      step,
      place,
      rank: 0,
      token,
      logprob,
      ended: end,
      parent: before.find((one) => !one.ended && one.place === from) ?? null,
      best: false,
      fruitful: false,
    }));
  const all = [...made(kept, false), ...made(ended, true)].sort((a, b) => b.logprob - a.logprob);
  all.forEach((one, rank) => (one.rank = rank));
  return all;
}

/** The one that the translation says; else the most probable for its length. */
function chosenOf(ends: Hypothesis[], translation: string[] | null): Hypothesis | null {
  const said = translation?.join("\u0000");
  const mean = (one: Hypothesis) => one.logprob / (one.step + 1);
  const [best = null] = [...ends].sort((a, b) => mean(b) - mean(a));
  return ends.find((one) => tokensOf(one).join("\u0000") === said) ?? best;
}

/** From the beginning up to this one. */
export function wayTo(one: Hypothesis): Hypothesis[] {
  return one.parent === null ? [one] : [...wayTo(one.parent), one];
}

/** What it has written; the end of a sentence is no word. */
function tokensOf(one: Hypothesis): string[] {
  return wayTo(one)
    .filter(({ step, ended }) => step >= 0 && !ended)
    .map(({ token }) => token);
}

export function textOf(one: Hypothesis): string {
  return tokensOf(one).map(word).join(" ");
}

/** Of its last word, given what stood before it. */
export function stepProbability(one: Hypothesis): number {
  return Math.min(1, Math.exp(one.logprob - (one.parent?.logprob ?? 0)));
}
