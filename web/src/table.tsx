/** Tables that sort by any column of words or numbers. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { digits, whole } from "./readings";

export type Cell = string | number | null | JSX.Element;

export interface Row {
  key: string;
  cells: Cell[];
  href?: string;
}

/** More rows would freeze the browser. */
export const MOST_ROWS = 2000;

interface Order {
  column: number;
  falling: boolean;
}

export function DataTable(props: {
  caption: string;
  columns: { name: string; numeric?: boolean; words?: string }[];
  rows: Row[];
  sortBy?: number;
  falling?: boolean;
  limit?: number;
}): JSX.Element {
  const begin = props.sortBy === undefined ? null : { column: props.sortBy, falling: props.falling ?? false };
  const [order, setOrder] = useState<Order | null>(begin);
  const [all, setAll] = useState(false);
  const sorted = order === null ? props.rows : [...props.rows].sort((a, b) => compare(a, b, order));
  const limit = props.limit ?? Infinity;
  const visible = sorted.slice(0, all ? MOST_ROWS : Math.min(limit, MOST_ROWS));
  const beyond = sorted.length > MOST_ROWS;
  const shown = props.columns.map((_, column) => (isOfCounts(props.rows, column) ? whole : digits));
  const isPlain = (column: number) => props.rows.every(({ cells }) => typeof (cells[column] ?? "") !== "object");
  const turn = (column: number, numeric: boolean) =>
    setOrder(order?.column === column ? { column, falling: !order.falling } : { column, falling: numeric });
  return (
    <div class="table-box" tabIndex={0} role="region" aria-label={props.caption}>
      <table>
        <caption>{props.caption}</caption>
        <thead>
          <tr>
            {props.columns.map((column, place) =>
              isPlain(place) ? (
                <th
                  key={column.name}
                  scope="col"
                  class={column.numeric ? "num" : ""}
                  aria-sort={order?.column !== place ? "none" : order.falling ? "descending" : "ascending"}
                >
                  <button type="button" title={column.words} onClick={() => turn(place, column.numeric ?? false)}>
                    {column.name}
                    <span aria-hidden="true">{order?.column !== place ? "" : order.falling ? " ↓" : " ↑"}</span>
                  </button>
                </th>
              ) : (
                <th key={column.name} scope="col" title={column.words}>
                  <b>{column.name}</b>
                </th>
              ),
            )}
          </tr>
        </thead>
        <tbody>
          {visible.map((row) => (
            <tr key={row.key}>
              {row.cells.map((cell, place) => {
                const text = typeof cell === "number" ? (shown[place] ?? digits)(cell) : (cell ?? "-");
                const inside = place === 0 && row.href !== undefined ? <a href={row.href}>{text}</a> : text;
                return place === 0 ? (
                  <th key={place} scope="row" class={props.columns[place]?.numeric ? "num" : ""}>
                    {inside}
                  </th>
                ) : (
                  <td key={place} class={props.columns[place]?.numeric ? "num" : ""}>
                    {inside}
                  </td>
                );
              })}
            </tr>
          ))}
        </tbody>
      </table>
      {sorted.length > limit && (
        <button type="button" class="quiet" onClick={() => setAll(!all)}>
          {all
            ? `Only the first ${limit}`
            : beyond
              ? `The first ${whole(MOST_ROWS)} rows`
              : `All ${sorted.length} rows`}
        </button>
      )}
      {beyond && (
        <p class="small muted">
          There are {whole(sorted.length)} rows, of which {whole(MOST_ROWS)} can be shown: sort to see others.
        </p>
      )}
    </div>
  );
}

/** Whole numbers alone, which need no decimals. */
function isOfCounts(rows: Row[], column: number): boolean {
  return rows.every(({ cells }) => {
    const cell = cells[column];
    return typeof cell !== "number" || (Number.isInteger(cell) && Math.abs(cell) < 1e6);
  });
}

/** Missing values come last, in both directions. */
function compare(a: Row, b: Row, { column, falling }: Order): number {
  const [one, other] = [a.cells[column] ?? null, b.cells[column] ?? null];
  const missing = Number(one === null) - Number(other === null);
  if (missing !== 0 || one === null || other === null) return missing;
  const difference =
    typeof one === "number" && typeof other === "number"
      ? one - other
      : String(one).localeCompare(String(other), "en", { numeric: true });
  return falling ? -difference : difference;
}
