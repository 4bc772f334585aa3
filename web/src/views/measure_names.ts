/** Measures by names for people, and how much of them is much. */
import { measureWords } from "../readings";

const NAMES: Record<string, string> = {
  "saturation.entropy": "spread of attention (entropy)",
  "saturation.max_weight": "largest weight of a row",
  "saturation.jacobian": "gradient that reaches the scores",
  "sinks.first": "attention on the first token",
  "sinks.first_effect": "effect of the first token",
  "sinks.delimiter": "attention on special tokens",
  "sinks.rest": "attention outside the sinks",
  "importance.gradient": "sensitivity of the loss",
  "ablation.change": "loss without the head",
  "paths.head": "share of the output",
  "bottleneck.keys": "gain from more keys",
  "bottleneck.values": "gain from more values",
  "redundancy.nearest": "distance to the most similar head",
  "structure.explained": "share that a pattern explains",
  "structure.distance": "error of the closest pattern",
  "spectra.stable_rank": "rank of the map",
  "spectra.qk_effective": "rank of W_QK",
  "spectra.vo_effective": "rank of W_VO",
  "roles.self": "attention on the token itself",
  "roles.syntactic": "attention right about syntax",
  "roles.rare": "attention on the rarest token",
  "roles.duplicate": "attention on the same token elsewhere",
  "roles.induction": "attention on what followed before",
  "roles.evenness": "evenness of attention",
  "roles.score": "score of the role",
  "rank.residual": "how far tokens stay apart",
  "rank.cosine": "similarity of tokens",
  "rank.stable": "rank of the stream",
};

/** "saturation.entropy@cross" is "spread of attention (entropy), cross". */
export function measureName(reading: string): string {
  const [name = "", kind] = reading.split("@");
  return `${NAMES[name] ?? measureWords(name)}${kind === undefined ? "" : `, ${kind}`}`;
}

/** Measures with a name for people come first, in this order. */
export function measureOrder(reading: string): number {
  const place = Object.keys(NAMES).indexOf(reading.split("@")[0] ?? "");
  return place < 0 ? Infinity : place;
}
