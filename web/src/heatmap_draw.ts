/** Draws a matrix: cells or means of blocks of cells, labels, a crosshair, and the scale of its colours. */
import { diverging, sequential, type Rgb } from "./colour";
import { bounded, inside, type Seen } from "./heatmap_extent";
import { shortened } from "./views/text_width";

export interface CellAt {
  row: number;
  column: number;
}

export const LABEL = 84;
const LETTERS = 12;
const FONT = 11;
/** Cells that would be smaller than this are shown by their mean. */
const SMALLEST = 2;
const SCALE = { room: 40, bar: 8, width: 220 };

export interface Shape {
  width: number;
  height: number;
  cellWidth: number;
  cellHeight: number;
  /** Cells in a block, each way, of which the mean is shown. */
  block: number;
}

/** Cells are square if the height allows it, and no larger than a word needs. */
export function plan(width: number, height: number, seen: Seen): Shape {
  const [down, across] = [seen.rows.to - seen.rows.from, seen.columns.to - seen.columns.from];
  const side = Math.min((width - LABEL - 2) / Math.max(1, across), (height - LABEL) / Math.max(1, down), 44);
  return {
    width,
    height: Math.ceil(LABEL + side * down + 2 + SCALE.room),
    cellWidth: side,
    cellHeight: side,
    block: side >= SMALLEST || side <= 0 ? 1 : Math.ceil(SMALLEST / side),
  };
}

export interface Colours {
  scale: "sequential" | "diverging";
  /** The number of the strongest colour. */
  top: number;
  /** Draw the square root, so that small weights are seen. */
  gamma: boolean;
}

/** "0 to 1, square-root scale" */
export function scaleWords({ scale, top, gamma }: Colours, block: number): string {
  const low = scale === "diverging" ? scaleNumber(-top) : "0";
  const means = block > 1 ? `, means of ${block} × ${block} tokens` : "";
  return `${low} to ${scaleNumber(top)}, ${gamma ? "square-root" : "linear"} scale${means}`;
}

function shadeOf(share: number, { scale, gamma }: Colours): Rgb {
  const lifted = gamma ? Math.sign(share) * Math.sqrt(Math.abs(share)) : share;
  return scale === "diverging" ? diverging(lifted || 0) : sequential(Math.max(0, lifted || 0));
}

export interface Blocks {
  values: Float32Array;
  rows: number;
  columns: number;
}

/** Means of blocks of cells of the part that is seen. */
export function pooled(values: Float32Array, columns: number, seen: Seen, block: number): Blocks {
  const [down, across] = [seen.rows, seen.columns].map(({ from, to }) => Math.ceil((to - from) / block));
  const [sums, counts] = [new Float64Array(down! * across!), new Float64Array(down! * across!)];
  for (let row = seen.rows.from; row < seen.rows.to; row++) {
    const first = Math.floor((row - seen.rows.from) / block) * across!;
    for (let column = seen.columns.from; column < seen.columns.to; column++) {
      const place = first + Math.floor((column - seen.columns.from) / block);
      sums[place]! += values[row * columns + column] ?? 0;
      counts[place]! += 1;
    }
  }
  return { values: Float32Array.from(sums, (sum, i) => sum / counts[i]!), rows: down!, columns: across! };
}

export function largestOf(values: Float32Array): number {
  return values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

/** One pixel for every number. */
export function painted({ values, rows, columns }: Blocks, colours: Colours): HTMLCanvasElement {
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [Math.max(1, columns), Math.max(1, rows)];
  const pen = canvas.getContext("2d")!;
  const image = pen.createImageData(canvas.width, canvas.height);
  const shades = Array.from({ length: 2049 }, (_, i) => shadeOf((i - 1024) / 1024, colours));
  for (let i = 0; i < rows * columns; i++) {
    const share = bounded((values[i] ?? 0) / colours.top || 0, -1, 1);
    const [red, green, blue] = shades[1024 + Math.round(1024 * share)]!;
    image.data.set([red, green, blue, 255], 4 * i);
  }
  pen.putImageData(image, 0, 0);
  return canvas;
}

export function draw(
  canvas: HTMLCanvasElement,
  picture: HTMLCanvasElement,
  shape: Shape,
  seen: Seen,
  tokens: { rows: string[]; columns: string[] },
  cell: CellAt | null,
  colours: Colours,
): void {
  const fine = Math.max(2, devicePixelRatio);
  [canvas.width, canvas.height] = [shape.width * fine, shape.height * fine];
  canvas.style.height = `${shape.height}px`;
  canvas.style.width = `${shape.width}px`;
  const pen = canvas.getContext("2d")!;
  const style = getComputedStyle(canvas);
  const [down, across] = [seen.rows.to - seen.rows.from, seen.columns.to - seen.columns.from];
  const [right, bottom] = [across * shape.cellWidth, down * shape.cellHeight];
  pen.scale(fine, fine);
  pen.imageSmoothingEnabled = false;
  if (shape.block > 1) {
    const { width, height } = picture;
    const [w, h] = [width * shape.block * shape.cellWidth, height * shape.block * shape.cellHeight];
    pen.save();
    pen.beginPath();
    pen.rect(LABEL, LABEL, right, bottom);
    pen.clip();
    pen.drawImage(picture, 0, 0, width, height, LABEL, LABEL, w, h);
    pen.restore();
  } else {
    pen.drawImage(picture, seen.columns.from, seen.rows.from, across, down, LABEL, LABEL, right, bottom);
  }
  pen.strokeStyle = style.borderTopColor;
  pen.strokeRect(LABEL - 0.5, LABEL - 0.5, right + 1, bottom + 1);
  pen.font = `${FONT}px ${style.fontFamily}`;
  pen.textBaseline = "middle";
  const step = (size: number) => Math.max(1, Math.ceil(FONT / size));
  const name = (place: number, turn: 0 | 1, strong: boolean): void => {
    const from = turn ? seen.columns.from : seen.rows.from;
    const middle = LABEL + (place - from + 0.5) * (turn ? shape.cellWidth : shape.cellHeight);
    const text = word((turn ? tokens.columns : tokens.rows)[place]);
    label(pen, text, turn ? middle : LABEL - 6, turn ? LABEL - 6 : middle, turn, strong, style.color);
  };
  const near = (place: number, of: number | undefined, size: number) =>
    of !== undefined && place !== of && Math.abs(place - of) * size < FONT;
  for (let row = seen.rows.from; row < seen.rows.to; row += step(shape.cellHeight)) {
    if (row !== cell?.row && !near(row, cell?.row, shape.cellHeight)) name(row, 0, false);
  }
  for (let column = seen.columns.from; column < seen.columns.to; column += step(shape.cellWidth)) {
    if (column !== cell?.column && !near(column, cell?.column, shape.cellWidth)) name(column, 1, false);
  }
  if (cell !== null && inside(cell.row, seen.rows) && inside(cell.column, seen.columns)) {
    name(cell.row, 0, true);
    name(cell.column, 1, true);
    crosshair(pen, shape, seen, cell, [right, bottom], style.outlineColor);
  }
  colourScale(pen, LABEL, LABEL + bottom + 14, Math.min(SCALE.width, shape.width - LABEL - 24), colours, style);
}

/** The row and the column of a cell are shaded, all else stays as it is; the cell is framed. */
function crosshair(
  pen: CanvasRenderingContext2D,
  shape: Shape,
  seen: Seen,
  cell: CellAt,
  [right, bottom]: [number, number],
  ink: string,
): void {
  const x = LABEL + (cell.column - seen.columns.from) * shape.cellWidth;
  const y = LABEL + (cell.row - seen.rows.from) * shape.cellHeight;
  const [width, height] = [Math.max(3, shape.cellWidth), Math.max(3, shape.cellHeight)];
  pen.fillStyle = ink;
  pen.globalAlpha = 0.14;
  pen.fillRect(LABEL, y, x - LABEL, height);
  pen.fillRect(x + width, y, Math.max(0, LABEL + right - x - width), height);
  pen.fillRect(x, LABEL, width, y - LABEL);
  pen.fillRect(x, y + height, width, Math.max(0, LABEL + bottom - y - height));
  pen.globalAlpha = 1;
  pen.strokeStyle = ink;
  pen.lineWidth = 2;
  pen.strokeRect(x, y, width, height);
}

/** A bar of all colours with the numbers that they stand for; equal steps along it are equal steps of colour. */
function colourScale(
  pen: CanvasRenderingContext2D,
  x: number,
  y: number,
  width: number,
  colours: Colours,
  style: CSSStyleDeclaration,
): void {
  const { scale, top, gamma } = colours;
  const low = scale === "diverging" ? -1 : 0;
  for (let i = 0; i < width; i++) {
    const place = low + ((1 - low) * i) / Math.max(1, width - 1);
    const [red, green, blue] = shadeOf(gamma ? Math.sign(place) * place * place : place, colours);
    pen.fillStyle = `rgb(${red} ${green} ${blue})`;
    pen.fillRect(x + i, y, 1.5, SCALE.bar);
  }
  pen.strokeStyle = style.borderTopColor;
  pen.lineWidth = 1;
  pen.strokeRect(x - 0.5, y - 0.5, width + 1, SCALE.bar + 1);
  pen.fillStyle = style.color;
  pen.font = `10px ${style.fontFamily}`;
  pen.textAlign = "center";
  const shares = scale === "diverging" ? [-1, 0, 1] : gamma ? [0, 0.05, 0.25, 0.5, 1] : [0, 0.25, 0.5, 0.75, 1];
  for (const share of shares) {
    const place = gamma ? Math.sign(share) * Math.sqrt(Math.abs(share)) : share;
    const at = x + ((place - low) / (1 - low)) * width;
    pen.fillRect(at - 0.5, y + SCALE.bar, 1, 3);
    pen.fillText(scaleNumber(share * top), at, y + SCALE.bar + 10);
  }
  pen.textAlign = "left";
}

/** 0.25, 1, 0.013: no more digits than are needed. */
function scaleNumber(value: number): string {
  return String(Number(value.toPrecision(2)));
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

/** A token as one visible line: a blank or an empty one gets a sign. */
export function word(token: string | undefined): string {
  const text = (token ?? "").replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2066-\u2069]/g, "·");
  return text.trim() === "" ? "␣" : text;
}
