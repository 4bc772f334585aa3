/** Filters of the statements: by words, by verdict, by document. */
import type { Claim } from "../contract";
import { latexText } from "../formula";

export interface Document {
  key: string;
  author: string;
  title: string;
}

export const DOCUMENTS: readonly Document[] = [
  { key: "S0", author: "Xie 2021", title: "Attention (rank bound)" },
  { key: "S1", author: "The rank post, 2024", title: "on Dong, Cordonnier and Loukas" },
  { key: "S2", author: "CS224N", title: "Attention exploration" },
  { key: "S3", author: "Burgund", title: "Attention growing networks" },
  { key: "S4", author: "Conti 2024", title: "The math behind transformers" },
  { key: "D", author: "attnworks", title: "Our own results" },
];

/** A verdict on a document, or a result of our own. */
export type Sort = Claim["verdict"] | "own";

export const SORTS: Record<Sort, { mark: string; words: string }> = {
  holds: { mark: "✓", words: "holds" },
  condition: { mark: "◐", words: "holds under a condition" },
  typo: { mark: "✎", words: "typo" },
  false: { mark: "✗", words: "false" },
  "not checkable": { mark: "–", words: "not checkable" },
  own: { mark: "★", words: "our own results" },
};

interface Wanted {
  words: string;
  /** If none is named, all are shown. */
  sorts: ReadonlySet<Sort>;
  document: string;
}

export const EVERYTHING: Wanted = { words: "", sorts: new Set(), document: "" };

export function documentOf(claim: Claim): string {
  return claim.id.startsWith("D") ? "D" : claim.id.slice(0, 2);
}

export function sortOf(claim: Claim): Sort {
  return documentOf(claim) === "D" ? "own" : claim.verdict;
}

/** Whether a statement passes the filters other than the verdict. */
export function mentions(claim: Claim, wanted: Wanted): boolean {
  if (wanted.document !== "" && documentOf(claim) !== wanted.document) return false;
  const words = wanted.words.toLowerCase().split(/\s+/).filter(Boolean);
  return words.every((word) => textOf(claim).includes(word));
}

export function isWanted(claim: Claim, wanted: Wanted): boolean {
  return (wanted.sorts.size === 0 || wanted.sorts.has(sortOf(claim))) && mentions(claim, wanted);
}

const texts = new WeakMap<Claim, string>();

function textOf(claim: Claim): string {
  const known = texts.get(claim);
  if (known !== undefined) return known;
  const parts = [claim.statement, claim.correction, claim.compares, claim.note, claim.not_computed, claim.proof];
  const text = [claim.id, claim.source, SORTS[claim.verdict].words, claim.code, ...parts.map(latexText)].join(" ");
  texts.set(claim, text.toLowerCase());
  return text.toLowerCase();
}
