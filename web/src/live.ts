/** The live page: a sentence and changes to the model go to the server, and its answers become the page. */
import { batch, computed, effect, signal } from "@preact/signals";
import { answerTo, Refused } from "./asking";
import { addBlobs, dropBlobs } from "./blobs";
import type { Answer, Changes, Exam, Pin } from "./contract";
import { comparisonOf } from "./live_comparison";
import { changesAnything, NO_CHANGES } from "./live_changes";
import { remember, remembered } from "./live_memory";
import { page, route } from "./store";

const TYPING_PAUSE = 150;

export type State = "idle" | "looking" | "measuring" | "waiting";
const state = signal<State>("idle");

/** What is on the page: the answer for these changes, and that for the model as it is; the same without changes. */
interface OnPage {
  changes: Changes;
  now: Answer;
  base: Answer | null;
}
const onPage = signal<OnPage | null>(null);

/** milliseconds: from the last question to its first picture. */
export const live = {
  text: signal(""),
  /** The requested changes; those of the last answer are in `onPage`. */
  changes: signal<Changes>(NO_CHANGES),
  now: computed(() => onPage.value?.now ?? null),
  base: computed(() => onPage.value?.base ?? null),
  changed: computed(() => changesAnything(onPage.value?.changes ?? NO_CHANGES)),
  error: signal<string | null>(null),
  milliseconds: signal<number | null>(null),
  state,
  busy: computed(() => state.value !== "idle"),
  ask,
  change,
  start,
};

/** The answer of the original model for this text; `whole` is true once it has all readings. */
interface Known {
  text: string;
  answer: Answer;
  whole: boolean;
}
let known: Known | null = null;
let timer: ReturnType<typeof setTimeout> | undefined;
let question: AbortController | null = null;

/** Asks about the first sentence, whose examination came with the page; after a reload, about what was there before. */
function start(): void {
  const host = page.value.live;
  if (host === null || live.text.value !== "") return;
  const [first] = page.value.exams;
  if (first !== undefined) {
    const answer = { exam: first, outputs: null, blobs: {}, seconds: 0 };
    known = { text: host.text, answer, whole: true };
    onPage.value = { changes: NO_CHANGES, now: answer, base: answer };
  }
  const before = remembered();
  live.text.value = before?.text || host.text;
  live.changes.value = before?.changes ?? NO_CHANGES;
  effect(() => remember({ text: live.text.value, changes: live.changes.value }));
  ask(0);
}

function change(changes: Changes): void {
  live.changes.value = changes;
  ask(0);
  if (state.value === "idle") live.error.value = "Type a sentence first: changes are shown on a sentence.";
}

/** Ask about the text and the changes after `pause` milliseconds; an earlier question is dropped. */
function ask(pause: number = TYPING_PAUSE): void {
  clearTimeout(timer);
  question?.abort();
  if (live.text.value.trim() === "") {
    state.value = "idle";
    takeBack(null);
    return;
  }
  state.value = "looking";
  question = new AbortController();
  timer = setTimeout(run, pause, question.signal);
}

async function run(stop: AbortSignal): Promise<void> {
  try {
    await look(live.text.value, live.changes.value, stop);
  } catch (problem) {
    if (stop.aborted) return;
    takeBack(problem instanceof Refused ? problem.message : `The answer cannot be shown: ${String(problem)}`);
  } finally {
    if (!stop.aborted) state.value = "idle";
  }
}

/** Take back changes that the server did not make, and show the reason. The sentence stays and can be edited. */
function takeBack(why: string | null): void {
  live.error.value = why;
  live.changes.value = onPage.value?.changes ?? NO_CHANGES;
}

/** Ask for the maps of the sentence first, then for all readings. With changes, ask for the original model last. */
async function look(text: string, changes: Changes, stop: AbortSignal): Promise<void> {
  const changed = changesAnything(changes);
  const asked = performance.now();
  let now = await answer("look", text, changes, stop);
  live.milliseconds.value = Math.round(performance.now() - asked);
  live.error.value = null;
  if (!changed) {
    const whole = known !== null && known.text === text && known.whole;
    if (whole) now = withMore(now, known!.answer.exam);
    known = { text, answer: now, whole };
  }
  show(text, changes, now);
  if (changed && known?.text !== text) {
    known = { text, answer: await answer("look", text, NO_CHANGES, stop), whole: false };
    show(text, changes, now);
  }
  if (changed || known?.whole !== true) {
    now = withMore(now, (await answer("examine", text, changes, stop)).exam);
    if (!changed) known = { text, answer: now, whole: true };
    show(text, changes, now);
  }
  if (known !== null && !known.whole) {
    const more = await answer("examine", text, NO_CHANGES, stop);
    known = { text, answer: withMore(known.answer, more.exam), whole: true };
    show(text, changes, now);
  }
}

async function answer(what: "look" | "examine", text: string, changes: Changes, stop: AbortSignal): Promise<Answer> {
  const doing: State = what === "look" ? "looking" : "measuring";
  state.value = doing;
  const found = await answerTo(what, { text, changes }, stop, (waiting) => {
    if (!stop.aborted) state.value = waiting ? "waiting" : doing;
  });
  stop.throwIfAborted();
  return named(found);
}

/** Two examinations to compare where something is changed; the changed one is looked at when changes begin. */
function show(text: string, changes: Changes, now: Answer): void {
  const begins = changesAnything(changes) && !live.changed.value;
  const base = known !== null && known.text === text ? known.answer : null;
  const exams =
    changesAnything(changes) && base !== null
      ? [labelled(base.exam, "original"), labelled(now.exam, "changed")]
      : [now.exam];
  if (begins) lookAtSecond();
  batch(() => {
    onPage.value = { changes, now, base };
    const comparison = exams.length === 2 ? comparisonOf(exams[0]!, exams[1]!) : null;
    page.value = { ...page.value, exams, comparison };
  });
  forget(base, now);
}

function lookAtSecond(): void {
  const { view, head } = route.value;
  const where = head !== null ? `head=${head}` : view;
  history.replaceState(null, "", `#${where}&exam=1`);
  dispatchEvent(new HashChangeEvent("hashchange"));
}

function labelled(exam: Exam, label: string): Exam {
  return { ...exam, label };
}

function withMore(answer: Answer, more: Exam): Answer {
  const { exam } = answer;
  if (JSON.stringify(exam.model.heads) !== JSON.stringify(more.model.heads)) return answer;
  const findings = more.findings.length > 0 ? more.findings : exam.findings;
  const notes = [...new Set([...exam.notes, ...more.notes])];
  const { headline, story, work } = more;
  return {
    ...answer,
    exam: { ...exam, headline, story, work, findings, notes, readings: { ...more.readings, ...exam.readings } },
  };
}

// Blobs of answers: each has names of its own, so that two answers can be shown beside each other -------------------

let answers = 0;
const kept = new Set<string>();

function named(answer: Answer): Answer {
  const name = (blob: string): string => `answer-${answers}-${blob}`;
  answers++;
  const blobs = Object.fromEntries(Object.entries(answer.blobs).map(([blob, bytes]) => [name(blob), bytes]));
  addBlobs(blobs);
  Object.keys(blobs).forEach((blob) => kept.add(blob));
  const own = (blob: string | null): string | null => (blob === null ? null : name(blob));
  const pins = answer.exam.pins.map((pin): Pin => ({
    ...pin,
    thumbnails: name(pin.thumbnails),
    slots: pin.slots.map((slot) => ({
      ...slot,
      blob: own(slot.blob),
      fits: slot.fits === null ? null : { ...slot.fits, blob: own(slot.fits.blob) },
    })),
  }));
  return { ...answer, blobs, exam: { ...answer.exam, pins } };
}

/** Drops the blobs of all answers but these, and the model as it is. */
function forget(...shown: (Answer | null)[]): void {
  const needed = new Set([...shown, known?.answer ?? null].flatMap((one) => Object.keys(one?.blobs ?? {})));
  const gone = [...kept].filter((blob) => !needed.has(blob));
  dropBlobs(gone);
  gone.forEach((blob) => kept.delete(blob));
}
