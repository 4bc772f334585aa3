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

/** The hypotheses that are continued and those that ended, the most probable first. */
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

/** The hypothesis that is the translation; else the most probable one for its length. */
function chosenOf(ends: Hypothesis[], translation: string[] | null): Hypothesis | null {
  const said = translation?.join("\u0000");
  const mean = (one: Hypothesis) => one.logprob / (one.step + 1);
  const [best = null] = [...ends].sort((a, b) => mean(b) - mean(a));
  return ends.find((one) => tokensOf(one).join("\u0000") === said) ?? best;
}

/** The path from the beginning to this hypothesis. */
export function wayTo(one: Hypothesis): Hypothesis[] {
  return one.parent === null ? [one] : [...wayTo(one.parent), one];
}

/** The words of a hypothesis; the end of the sentence is not a word. */
function tokensOf(one: Hypothesis): string[] {
  return wayTo(one)
    .filter(({ step, ended }) => step >= 0 && !ended)
    .map(({ token }) => token);
}

export function textOf(one: Hypothesis): string {
  return tokensOf(one).map(word).join(" ");
}

/** The probability of its last word, given the words before it. */
export function stepProbability(one: Hypothesis): number {
  return Math.min(1, Math.exp(one.logprob - (one.parent?.logprob ?? 0)));
}
