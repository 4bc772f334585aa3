/** Which weights of a map are drawn as arcs. */

export interface Arc {
  row: number;
  column: number;
  /** Below zero only where maps are mixtures of any sign; it is its size that counts. */
  weight: number;
}

/** Tokens that are drawn: from (inclusive) to (exclusive). */
export interface Window {
  from: number;
  to: number;
}

/** Weights of at least `least`, or the `top` largest of each row. */
type Rule = { least: number } | { top: number };

/** The token whose arcs alone are drawn: a query (a row) or a key (a column). */
export interface Focus {
  side: "row" | "column";
  place: number;
}

const LEAST_IN_FOCUS = 0.01;
const MOST_IN_FOCUS = 16;

export function chosenArcs(
  values: Float32Array,
  across: number,
  rows: Window,
  columns: Window,
  rule: Rule,
  focus: Focus | null,
): Arc[] {
  const arcs: Arc[] = [];
  for (let row = rows.from; row < rows.to; row++) {
    if (focus?.side === "row" && focus.place !== row) continue;
    const weights = values.subarray(row * across, (row + 1) * across);
    const least = focus !== null ? LEAST_IN_FOCUS : "least" in rule ? rule.least : nthLargest(weights, rule.top);
    for (let column = columns.from; column < columns.to; column++) {
      const weight = weights[column] ?? 0;
      const asked = focus?.side !== "column" || focus.place === column;
      if (asked && weight !== 0 && Math.abs(weight) >= least) arcs.push({ row, column, weight });
    }
  }
  arcs.sort((a, b) => Math.abs(a.weight) - Math.abs(b.weight));
  return focus === null ? arcs : arcs.slice(-MOST_IN_FOCUS);
}

/** How far tokens attend back and ahead in this window: the same whichever of its arcs are drawn. */
export function reachOf(values: Float32Array, across: number, seen: Window): { back: number; ahead: number } {
  const reach = { back: 0, ahead: 0 };
  for (let row = seen.from; row < seen.to; row++) {
    for (let column = seen.from; column < seen.to; column++) {
      if (Math.abs(values[row * across + column] ?? 0) < LEAST_IN_FOCUS) continue;
      reach.back = Math.max(reach.back, row - column);
      reach.ahead = Math.max(reach.ahead, column - row);
    }
  }
  return reach;
}

function nthLargest(weights: Float32Array, n: number): number {
  return weights.map(Math.abs).sort().at(-n) ?? 0;
}
