/** The part of a matrix that is seen, in whole cells. */

/** From (inclusive) to (exclusive). */
export interface Extent {
  from: number;
  to: number;
}

export interface Seen {
  rows: Extent;
  columns: Extent;
}

const FEWEST = 4;

export function everything(rows: number, columns: number): Seen {
  return { rows: { from: 0, to: rows }, columns: { from: 0, to: columns } };
}

export function zoomed(seen: Extent, count: number, factor: number, centre: number | undefined): Extent {
  const size = bounded(Math.round((seen.to - seen.from) * factor), Math.min(FEWEST, count), count);
  const middle = centre ?? (seen.from + seen.to) / 2;
  const share = (middle - seen.from) / Math.max(1, seen.to - seen.from);
  const from = bounded(Math.round(middle - share * size), 0, count - size);
  return { from, to: from + size };
}

export function moved(seen: Extent, count: number, by: number): Extent {
  const size = seen.to - seen.from;
  const from = bounded(seen.from + by, 0, count - size);
  return { from, to: from + size };
}

/** Scroll only as far as needed to show this cell. */
export function following(seen: Extent, place: number): Extent {
  const by = place < seen.from ? place - seen.from : place >= seen.to ? place - seen.to + 1 : 0;
  return { from: seen.from + by, to: seen.to + by };
}

export function inside(place: number, { from, to }: Extent): boolean {
  return place >= from && place < to;
}

export function bounded(x: number, low: number, high: number): number {
  return Math.max(low, Math.min(high, x));
}
