/**
 * What the page is given. Written by attnworks.page (docs/page.md); a change here is a change there.
 *
 * Heads are named kind.layer.head from zero: enc.3.7, dec.0.1, cross.2.5. Rows of a map are queries, columns are keys.
 */

export type Kind = "encoder" | "decoder" | "cross";
type Host = "file" | "live" | "notebook";

/** Nested lists in the order of the axes; null where there is no number. */
export type Value = number | string | null | Value[];

export interface Page {
  format: 1;
  version: string;
  host: Host;
  title: string;
  /** One examination, or two to be compared: before and after. */
  exams: Exam[];
  comparison: Comparison | null;
  advice: Advice | null;
  receipts: Receipt[];
  live: Live | null;
  /** The address of what is shown first, such as "head=3.7"; of a saved view, the only one. */
  start: string | null;
  /** What was left out of this page, and why. */
  remarks: string[];
}

export interface Exam {
  /** Tells two examinations apart: the name of the folder. */
  label: string;
  model: {
    name: string;
    family?: string;
    class?: string;
    kinds: Kind[];
    /** Layers of each kind. */
    layers: Partial<Record<Kind, number>>;
    /** Heads of each slot: {"enc.0": 12}. */
    heads: Record<string, number>;
    parameters?: number;
    dtype?: string;
    /** The special token that begins every sentence, such as [CLS]. */
    first_token?: string;
    /** Curves of the run, by name: "training loss". */
    training?: Record<string, { step: number[]; value: number[] }>;
    /** What was done to a reshaped model, first to last, in a few words each. */
    lineage?: { reshapes: string[]; [more: string]: unknown };
    [more: string]: unknown;
  };
  corpus: {
    name?: string;
    sentences?: number;
    tokens?: number;
    longest?: number;
    dropped?: number;
    [more: string]: unknown;
  };
  /** By name@kind, always with the kind: "saturation.entropy@encoder". Those of up to three axes. */
  readings: Record<string, Reading>;
  /** The two or three facts with the largest effect, in one sentence, and their exact figures. */
  headline: { text: string; evidence: string[] };
  story: StoryPart[];
  /** Which reading the work of heads is, and the share of every layer that has heads; null where none was measured. */
  work: { reading: string; layers: Record<string, number> } | null;
  findings: Finding[];
  notes: string[];
  pins: Pin[];
  /** What each head looks at over the text; null where it was not measured. */
  attended: Attended | null;
}

/** Tokens by the attention that they get from each head outside the sinks, and sentences that show it. */
export interface Attended {
  sentences: string[][];
  heads: Record<string, AttendedHead>;
}

interface AttendedHead {
  /** Token, its share of the attention, that of even attention, and how often the text has it. */
  tokens: [string, number, number, number][];
  /** The number of a sentence, and the share of each of its tokens in percent. */
  examples: [number, number[]][];
}

/** One part of the story: a sentence with a number, and what follows from it. */
export interface StoryPart {
  /** what, reads, rests, work, depth, removal, trust */
  name: string;
  title: string;
  text: string;
  more: string[];
  /** Heads to show. */
  heads: string[];
  /** What to run next, with MODEL for the model; "" where there is nothing to run. */
  command: string;
  /** (heads kept, predicted rise of the loss), for removal. */
  curve: [number, number][];
}

export interface Reading {
  /** ["layer", "head"], ["depth"], ["layer"], ["layer", "head", "offset"], ["length"], [], ... */
  axes: string[];
  kind: Kind;
  value: Value;
  /** Lower and upper ends of the 95 % interval of the mean. */
  interval: [Value, Value] | null;
  ticks: Record<string, number[]>;
  description: string;
  source: string;
}

export interface Finding {
  text: string;
  weight: number;
  readings: string[];
  heads: string[];
  /** Heading under which it is shown; the findings of a group follow each other. */
  group: string;
  /** What to run next, with MODEL for the model; "" where there is nothing to run. */
  command: string;
}

/** A sentence with its attention maps. */
export interface Pin {
  tokens: string[];
  /** What the decoder reads, where there are two sides. */
  target: string[] | null;
  slots: Slot[];
  /**
   * Blob of small pictures: uint8 of 255 levels, slot after slot, head after head, each thumb[0] x thumb[1]. Where
   * the coding of a slot is float16, they show |weight| as a share of the largest of the slot.
   */
  thumbnails: string;
  /** What the model wrote for it, and how the beam search found it. */
  translation: string[] | null;
  beam: BeamStep[] | null;
}

/** The maps of one layer. */
export interface Slot {
  /** enc.3, dec.0, cross.1 */
  name: string;
  kind: Kind;
  heads: number;
  rows: number;
  columns: number;
  thumb: [number, number];
  coding: Coding;
  /** Heads whose whole map is in `blob`, in this order; of others only the thumbnail was kept. */
  held: number[];
  blob: string | null;
  /** The largest singular values of the map of every head. */
  spectra: number[][] | null;
  /** The nearest map of a structured form, by head. */
  fits: Fits | null;
  /** Columns at which attention rests: the first token and special tokens. */
  sinks: number[];
  /** |v W_O| of every key, by head: the factor of what a weight adds to the stream. */
  sizes: number[][] | null;
}

/** uint8: weight = (q / levels)^2, between 0 and 1. float16: little-endian, any number. */
export type Coding = { type: "uint8"; levels: number } | { type: "float16" };

interface Fits {
  /** The name of the form that is closest over all sentences, by head: "offset", "band", ... */
  forms: string[];
  /** Its error on this sentence, per query, as structure.distance counts it: 0 is a perfect fit, 2 the worst. */
  errors: number[];
  /** The maps of `held` heads, coded as the slot's own. */
  blob: string | null;
}

export interface BeamStep {
  kept: Candidate[];
  ended: Candidate[];
}

/** `parent` is a place in `kept` of the step before; `logprob` is that of the whole hypothesis. */
interface Candidate {
  parent: number;
  token: string;
  logprob: number;
}

/** As `attnworks compare --json`. */
export interface Comparison {
  /** The result in clauses, the most important first. */
  verdict: string[];
  compared: number;
  nothing_changed: boolean;
  changes: Change[];
  heads: {
    /** How many heads there are of each state. */
    compared: number;
    cut: number;
    new: number;
    not_compared: number;
    /** How many heads have a role in both examinations. */
    roles_compared: number;
    matches: HeadMatch[];
  };
  roles: { head: string; head_after: string; before: string; after: string }[];
  curves: { reading: string; before: (number | null)[]; after: (number | null)[] }[];
  notes: string[];
}

/** One head by its names in both models; null where a model does not have it. */
export interface HeadMatch {
  /** Its name in the original model, enc.0.5; of a head that was added enc.0.12+3fa9c1d20b77. */
  head: string;
  before: string | null;
  after: string | null;
  /** cut: from the model that does not have it. new: added to the model that has it. */
  state: "compared" | "cut" | "new" | "not compared";
  /** Why it is not compared. */
  why: string | null;
}

export interface Change {
  reading: string;
  where: string;
  /** The same head in the second model, where heads that were cut have changed the numbers of others. */
  where_after: string;
  before: number;
  after: number;
  difference: number;
  margin: number | null;
  chance: number | null;
  certain: boolean | null;
}

/** Both ends of a 95 % interval. */
export type Interval = [number, number];

export interface Refused {
  tokens: number;
  before: number;
  /** null if the loss is not a finite number. */
  after: number | null;
}

/** As `attnworks advise --json`; `spec` of what is present names the mechanisms of its heads. */
export interface Advice {
  model: string;
  max_error: number;
  length: number;
  tried_at: number;
  present: { slot: string; spec: string; seconds: number; flops: number }[];
  trials: {
    slot: string;
    spec: string;
    error: number | null;
    seconds: number | null;
    flops: number | null;
    reason: string | null;
    time_interval: Interval | null;
  }[];
  chosen: Record<string, string>;
  error: number;
  /** Of texts of at most `tried_at` tokens. */
  loss: number;
  rise: number;
  /** Of sentences as they are, where `loss` is that of longer texts. */
  sentence_loss: number | null;
  sentence_rise: number | null;
  /** Seconds after / before. */
  time_ratio: number;
  time_interval: Interval;
  model_time_ratio: number | null;
  model_time_interval: Interval | null;
  /** The least that the ratio of the whole model can be, by what its attention saves. */
  model_time_least: number | null;
  /** The losses of the fastest mix, on texts of at most `tokens` tokens, if they rise by more than max_error allows. */
  refused: Refused | null;
  notes: string[];
  /** What makes a model of the advice; null where nothing is to be changed. */
  command: string | null;
}

export interface LossSteps {
  before: number;
  predicted: number;
  after: number;
  healed: number | null;
  /** 95 % intervals of the means over held-out sentences, and of their differences; null in old receipts. */
  intervals: Record<"before" | "after" | "rise" | "healed" | "healed_rise", Interval | null> | null;
}

export interface Receipt {
  /** "prune 3 of 24 heads (by ablation)" */
  title: string;
  reshape: string;
  objective: string;
  /** Where -> what. */
  done: Record<string, string>;
  loss: LossSteps;
  /** What one should know before one uses the model, in whole sentences. */
  warnings: string[];
  /** Of held-out sentences joined into texts of at most `tokens` tokens. */
  loss_at_length: (LossSteps & { tokens: number }) | null;
  parameters: { before: number; after: number };
  flops: { before: number; after: number };
  bytes: { before: number; after: number } | null;
  /** Of a forward pass, as a share of the time before. */
  time: number | null;
  time_interval: Interval | null;
  scores: Record<string, { before: number; after: number; healed: number | null }>;
  facts: Record<string, number>;
  seconds: number;
  length: number;
}

// The live page --------------------------------------------------------------------------------------------------------

export interface Live {
  /** Most tokens of a sentence. */
  tokens: number;
  kind: "encoder" | "decoder" | "encoder-decoder";
  /** Whether heads can be cut, layers swapped and heads projected here, and if not, why. */
  reshape: true | string;
  /** Structured forms that heads may be given, and mechanisms that layers may be given, both by layer. */
  forms: Record<string, string[]>;
  mechanisms: Record<string, string[]>;
  /** Shown first. */
  text: string;
}

/** POST api/look and api/examine. */
export interface Question {
  text: string;
  changes: Changes;
}

export interface Changes {
  cut: string[];
  /** head -> form */
  project: Record<string, string>;
  /** layer -> mechanism, such as window:window=4 */
  swap: Record<string, string>;
}

/**
 * look: exam has the pin and what is cheap to measure. examine: exam has the default readings, and no pin.
 * Blobs are given here by name.
 */
export interface Answer {
  exam: Exam;
  outputs: Outputs | null;
  blobs: Record<string, string>;
  seconds: number;
}

/** The outputs of the model, without and with the changes. */
export interface Outputs {
  words: string;
  before: Output[];
  after: Output[];
  /** |X' - X| / |X| of the last stream. */
  moved: number;
  /** Of the sentence embeddings before and after; null for models that write. */
  cosine: number | null;
  /** Words of the sentence that the vocabulary lacks. */
  unknown: string[];
}

export interface Output {
  text: string;
  probability: number | null;
}

export interface Refusal {
  error: string;
}
