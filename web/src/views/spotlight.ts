/** What the pointer is on, in the sentence or in the findings, for the grid of heads to show. */
import { signal } from "@preact/signals";

/** The side of the pin that a word is of; rows of encoder maps are tokens, those of the others the target if there is one. */
export type Side = "tokens" | "target";

/** The word whose row is lit in every tile. */
export const lit = signal<{ side: Side; at: number } | null>(null);

/** The heads that stay while all others are dimmed. */
export const spot = signal<ReadonlySet<string> | null>(null);
