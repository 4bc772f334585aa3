/** A matrix on a canvas: token labels, zoom, and the value under the pointer or under the cursor that keys move. */
import type { JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { diverging, sequential, type Rgb } from "./colour";
import type { Table } from "./export";
import { digits } from "./readings";
import { theme } from "./store";
import { STEPS } from "./views/arrow_keys";
import { shortened } from "./views/text_width";
import { useWidth } from "./views/width";

/** The part of the matrix that is seen: from (inclusive) to (exclusive), in whole cells. */
interface Extent {
  from: number;
  to: number;
}

interface Seen {
  rows: Extent;
  columns: Extent;
}

interface CellAt {
  row: number;
  column: number;
}

const LABEL = 84;
const LETTERS = 12;
const FONT = 11;
const FEWEST = 4;

export function Heatmap(props: {
  values: Float32Array;
  rows: string[];
  columns: string[];
  label: string;
  /** By default diverging if some values are below zero. */
  scale?: "sequential" | "diverging";
  /** Draw the square root, so that small weights are seen. */
  gamma?: boolean;
  height?: number;
}): JSX.Element {
  const { values, rows, columns } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const { box, width } = useWidth<HTMLDivElement>();
  const [seen, setSeen] = useState<Seen>(() => everything(rows.length, columns.length));
  const [cell, setCell] = useState<CellAt | null>(null);
  const dragged = useRef<{ x: number; y: number; seen: Seen } | null>(null);

  useLayoutEffect(() => {
    setSeen(everything(rows.length, columns.length));
    setCell(null);
  }, [rows.length, columns.length]);

  const scale = props.scale ?? (values.some((value) => value < 0) ? "diverging" : "sequential");
  const picture = useMemo(
    () => painted(values, rows.length, columns.length, scale, props.gamma ?? false),
    [values, rows.length, columns.length, scale, props.gamma, theme.value],
  );
  const shape = plan(width, props.height ?? 560, seen);

  useLayoutEffect(() => {
    if (canvas.current !== null && width > 0) draw(canvas.current, picture, shape, seen, rows, columns, cell);
  }, [picture, width, shape.height, seen, cell, rows, columns]);

  const under = (event: MouseEvent): CellAt | null => {
    const at = canvas.current!.getBoundingClientRect();
    const column = seen.columns.from + Math.floor((event.clientX - at.left - LABEL) / shape.cellWidth);
    const row = seen.rows.from + Math.floor((event.clientY - at.top - LABEL) / shape.cellHeight);
    return inside(row, seen.rows) && inside(column, seen.columns) ? { row, column } : null;
  };

  const zoom = (factor: number, centre: CellAt | null): void =>
    setSeen((now) => ({
      rows: zoomed(now.rows, rows.length, factor, centre?.row),
      columns: zoomed(now.columns, columns.length, factor, centre?.column),
    }));

  const onWheel = (event: WheelEvent): void => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY > 0 ? 1.25 : 0.8, under(event));
  };

  const onMove = (event: MouseEvent): void => {
    if (event.buttons === 0) dragged.current = null;
    const start = dragged.current;
    if (start === null) return setCell(under(event));
    const by = (pixels: number, size: number) => -Math.round(pixels / size);
    setSeen({
      rows: moved(start.seen.rows, rows.length, by(event.clientY - start.y, shape.cellHeight)),
      columns: moved(start.seen.columns, columns.length, by(event.clientX - start.x, shape.cellWidth)),
    });
  };

  const onKey = (event: KeyboardEvent): void => {
    const step = STEPS[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (step !== undefined) {
      const from = cell ?? { row: seen.rows.from, column: seen.columns.from };
      const next = {
        row: bounded(from.row + step[1], 0, rows.length - 1),
        column: bounded(from.column + step[0], 0, columns.length - 1),
      };
      setCell(next);
      setSeen((now) => ({ rows: following(now.rows, next.row), columns: following(now.columns, next.column) }));
    } else if (event.key === "+" || event.key === "=") zoom(0.7, cell);
    else if (event.key === "-") zoom(1.4, cell);
    else if (event.key === "0") setSeen(everything(rows.length, columns.length));
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const said =
    cell === null
      ? "Rows are queries, columns are keys; hover, or use the arrow keys"
      : `${word(rows[cell.row])} → ${word(columns[cell.column])}: ${digits(values[cell.row * columns.length + cell.column])}`;
  const whole = seen.rows.to - seen.rows.from === rows.length && seen.columns.to - seen.columns.from === columns.length;
  return (
    <div class="heatmap" ref={box}>
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-label={`${props.label}. Arrow keys move over the cells, plus and minus zoom, 0 shows all.`}
        onMouseMove={onMove}
        onMouseLeave={() => setCell(null)}
        onMouseDown={(event) => !whole && (dragged.current = { x: event.clientX, y: event.clientY, seen })}
        onMouseUp={() => (dragged.current = null)}
        onDblClick={(event) => zoom(0.5, under(event))}
        onWheel={onWheel}
        onKeyDown={onKey}
      />
      <div class="heatmap-tools">
        <output class="small">{said}</output>
        <span class="row">
          <button type="button" class="quiet" aria-label="Zoom in" onClick={() => zoom(0.6, cell)}>
            +
          </button>
          <button type="button" class="quiet" aria-label="Zoom out" onClick={() => zoom(1.6, cell)}>
            −
          </button>
          <button type="button" class="quiet" onClick={() => setSeen(everything(rows.length, columns.length))}>
            All
          </button>
        </span>
      </div>
    </div>
  );
}

// The visible part ------------------------------------------------------------------------------------------------------

function everything(rows: number, columns: number): Seen {
  return { rows: { from: 0, to: rows }, columns: { from: 0, to: columns } };
}

function zoomed(seen: Extent, count: number, factor: number, centre: number | undefined): Extent {
  const size = bounded(Math.round((seen.to - seen.from) * factor), Math.min(FEWEST, count), count);
  const middle = centre ?? (seen.from + seen.to) / 2;
  const share = (middle - seen.from) / Math.max(1, seen.to - seen.from);
  const from = bounded(Math.round(middle - share * size), 0, count - size);
  return { from, to: from + size };
}

function moved(seen: Extent, count: number, by: number): Extent {
  const size = seen.to - seen.from;
  const from = bounded(seen.from + by, 0, count - size);
  return { from, to: from + size };
}

/** Scroll only as far as needed to show this cell. */
function following(seen: Extent, place: number): Extent {
  const by = place < seen.from ? place - seen.from : place >= seen.to ? place - seen.to + 1 : 0;
  return { from: seen.from + by, to: seen.to + by };
}

function inside(place: number, { from, to }: Extent): boolean {
  return place >= from && place < to;
}

function bounded(x: number, low: number, high: number): number {
  return Math.max(low, Math.min(high, x));
}

// Drawing ---------------------------------------------------------------------------------------------------------------

interface Shape {
  width: number;
  height: number;
  cellWidth: number;
  cellHeight: number;
}

/** Cells are square if the height allows it, and no larger than a word needs. */
function plan(width: number, height: number, seen: Seen): Shape {
  const [down, across] = [seen.rows.to - seen.rows.from, seen.columns.to - seen.columns.from];
  const side = Math.min((width - LABEL - 2) / Math.max(1, across), (height - LABEL) / Math.max(1, down), 44);
  return { width, height: Math.ceil(LABEL + side * down + 2), cellWidth: side, cellHeight: side };
}

/** One pixel for every number. */
function painted(
  values: Float32Array,
  rows: number,
  columns: number,
  scale: "sequential" | "diverging",
  gamma: boolean,
): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.max(1, columns), Math.max(1, rows)];
  const pen = canvas.getContext("2d")!;
  const image = pen.createImageData(canvas.width, canvas.height);
  const signed = scale === "diverging";
  const largest = values.reduce((most, value) => Math.max(most, Math.abs(value)), signed ? 1e-9 : 0) || 1;
  const top = signed ? largest : Math.max(1, largest);
  const shades: Rgb[] = Array.from({ length: 511 }, (_, i) =>
    signed ? diverging((i - 255) / 255) : sequential(Math.max(0, i - 255) / 255),
  );
  for (let i = 0; i < rows * columns; i++) {
    const share = (values[i] ?? 0) / top;
    const lifted = gamma ? Math.sign(share) * Math.sqrt(Math.abs(share)) : share;
    const [red, green, blue] = shades[255 + Math.round(255 * bounded(lifted || 0, -1, 1))]!;
    image.data.set([red, green, blue, 255], 4 * i);
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

function draw(
  canvas: HTMLCanvasElement,
  picture: HTMLCanvasElement,
  shape: Shape,
  seen: Seen,
  rows: string[],
  columns: string[],
  cell: CellAt | null,
): void {
  const fine = Math.max(2, devicePixelRatio);
  [canvas.width, canvas.height] = [shape.width * fine, shape.height * fine];
  canvas.style.height = `${shape.height}px`;
  canvas.style.width = `${shape.width}px`;
  const pen = canvas.getContext("2d")!;
  const style = getComputedStyle(canvas);
  const ink = style.color;
  const [down, across] = [seen.rows.to - seen.rows.from, seen.columns.to - seen.columns.from];
  const [right, bottom] = [across * shape.cellWidth, down * shape.cellHeight];
  pen.scale(fine, fine);
  pen.imageSmoothingEnabled = shape.cellWidth < 1;
  pen.drawImage(picture, seen.columns.from, seen.rows.from, across, down, LABEL, LABEL, right, bottom);
  pen.strokeStyle = style.borderTopColor;
  pen.strokeRect(LABEL - 0.5, LABEL - 0.5, right + 1, bottom + 1);
  pen.font = `${FONT}px ${style.fontFamily}`;
  pen.textBaseline = "middle";
  const step = (size: number) => Math.max(1, Math.ceil(FONT / size));
  for (let row = seen.rows.from; row < seen.rows.to; row += step(shape.cellHeight)) {
    label(
      pen,
      word(rows[row]),
      LABEL - 6,
      LABEL + (row - seen.rows.from + 0.5) * shape.cellHeight,
      0,
      row === cell?.row,
      ink,
    );
  }
  for (let column = seen.columns.from; column < seen.columns.to; column += step(shape.cellWidth)) {
    const x = LABEL + (column - seen.columns.from + 0.5) * shape.cellWidth;
    label(pen, word(columns[column]), x, LABEL - 6, 1, column === cell?.column, ink);
  }
  if (cell !== null && inside(cell.row, seen.rows) && inside(cell.column, seen.columns)) {
    pen.strokeStyle = style.outlineColor;
    pen.lineWidth = 2;
    const x = LABEL + (cell.column - seen.columns.from) * shape.cellWidth;
    const y = LABEL + (cell.row - seen.rows.from) * shape.cellHeight;
    pen.strokeRect(x, y, Math.max(3, shape.cellWidth), Math.max(3, shape.cellHeight));
  }
}

/** Beside a row (turn 0) or upright above a column (turn 1). */
function label(
  pen: CanvasRenderingContext2D,
  text: string,
  x: number,
  y: number,
  turn: 0 | 1,
  strong: boolean,
  ink: string,
): void {
  pen.save();
  pen.translate(x, y);
  pen.fillStyle = ink;
  pen.globalAlpha = strong ? 1 : 0.75;
  if (strong) pen.font = `bold ${pen.font}`;
  pen.textAlign = turn ? "left" : "right";
  if (turn) pen.rotate(-Math.PI / 2);
  pen.fillText(shortened(text, LETTERS), 0, 0);
  pen.restore();
}

/** Its numbers: a row for every row, named by its token. */
export function matrixTable(first: string, values: Float32Array, rows: string[], columns: string[]): Table {
  return {
    columns: [first, ...columns.map((token, place) => `${place} ${word(token)}`)],
    rows: rows.map((token, row) => [word(token), ...values.slice(row * columns.length, (row + 1) * columns.length)]),
  };
}

/** The first words of a sentence. */
export function beginning(tokens: string[]): string {
  return shortened(tokens.map(word).join(" "), 40);
}

/** A token as one visible line: a blank or an empty one gets a sign. */
export function word(token: string | undefined): string {
  const text = (token ?? "").replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g, "·");
  return text.trim() === "" ? "␣" : text;
}
