/** The grid of heads on its canvas: tinted pictures, marks of sinks, bars of work. */
import type { Thumbnail } from "../blobs";
import { roleColour, sequential, type Rgb } from "../colour";
import type { Exam, Kind } from "../contract";
import type { HeadName } from "../readings";
import type { GridLayout } from "./grid_layout";
import { roleLabel, sinkOf } from "./roles";
import { workPercent } from "./work";

/** Pictures of all heads beside one another, each in the colours of its role. */
export interface Atlas {
  canvas: HTMLCanvasElement;
  at: Map<string, { x: number; y: number; rows: number; columns: number }>;
}

export interface Look {
  exam: Exam;
  /** From 0 to 1, by head; null where heads do not differ in it. */
  weight: (head: HeadName) => number | null;
  by: "opacity" | "size" | "none";
  /** A flat colour instead of the picture. */
  fill: (head: HeadName) => string | null;
  caption: (head: HeadName) => string;
  row: { kinds: Kind[]; at: number; of: number } | null;
  spot: ReadonlySet<string> | null;
}

const CELL = 24;
/** Below 1, small weights are lifted further. */
const STEEP = 0.8;
const PALE = 0.5;
const DIMMED = 0.09;
const SMALL = 0.45;
const MARK = 2.5;

/** Colours of the page, resolved. */
export class Inks {
  private readonly style = getComputedStyle(document.documentElement);
  private readonly found = new Map<string, Rgb>();
  private readonly pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true })!;

  of(colour: string): string {
    const name = /^var\((.*)\)$/.exec(colour)?.[1];
    return name === undefined ? colour : this.style.getPropertyValue(name).trim();
  }

  rgb(colour: string): Rgb {
    let found = this.found.get(colour);
    if (found === undefined) {
      this.pen.fillStyle = this.of(colour);
      this.pen.fillRect(0, 0, 1, 1);
      const [red, green, blue] = this.pen.getImageData(0, 0, 1, 1).data;
      found = [red!, green!, blue!];
      this.found.set(colour, found);
    }
    return found;
  }
}

export function atlasOf(of: Exam, pictures: Map<string, Thumbnail>, heads: readonly HeadName[]): Atlas {
  const inks = new Inks();
  const paper = inks.rgb("var(--paper-2)");
  const across = Math.max(1, Math.ceil(Math.sqrt(heads.length)));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [across * CELL, Math.max(1, Math.ceil(heads.length / across)) * CELL];
  const pen = canvas.getContext("2d")!;
  const at: Atlas["at"] = new Map();
  const shades = new Map<string, Uint8ClampedArray>();
  heads.forEach((head, place) => {
    const picture = pictures.get(head.name);
    if (picture === undefined || picture.rows * picture.columns === 0) return;
    const label = roleColour(roleLabel(of, head));
    const colour = label === "var(--none)" ? "var(--ink-soft)" : label;
    let palette = shades.get(colour);
    if (palette === undefined) shades.set(colour, (palette = tint(paper, inks.rgb(colour))));
    const { rows, columns, levels } = picture;
    const image = pen.createImageData(columns, rows);
    for (let i = 0; i < levels.length; i++) image.data.set(palette.subarray(4 * levels[i]!, 4 * levels[i]! + 4), 4 * i);
    const [x, y] = [(place % across) * CELL, Math.floor(place / across) * CELL];
    pen.putImageData(image, x, y);
    at.set(head.name, { x, y, rows, columns });
  });
  return { canvas, at };
}

/** From paper to the colour: levels are square roots of weights, so that small weights are seen. */
function tint(from: Rgb, to: Rgb): Uint8ClampedArray {
  const palette = new Uint8ClampedArray(4 * 256);
  for (let level = 0; level < 256; level++) {
    const t = (level / 255) ** STEEP;
    for (let channel = 0; channel < 3; channel++) {
      palette[4 * level + channel] = from[channel]! + t * (to[channel]! - from[channel]!);
    }
    palette[4 * level + 3] = 255;
  }
  return palette;
}

export function drawGrid(canvas: HTMLCanvasElement, layout: GridLayout, atlas: Atlas | null, look: Look): void {
  const fine = Math.max(1, window.devicePixelRatio || 1);
  const [width, height] = [Math.round(layout.width * fine), Math.round(layout.height * fine)];
  if (canvas.width !== width || canvas.height !== height) [canvas.width, canvas.height] = [width, height];
  const pen = canvas.getContext("2d")!;
  const inks = new Inks();
  pen.setTransform(fine, 0, 0, fine, 0, 0);
  pen.clearRect(0, 0, layout.width, layout.height);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const soft = inks.of("var(--ink-soft)");
  for (const { x, y, text, align, strong } of layout.texts) {
    pen.font = `${strong ? "600 13px" : "11px"} system-ui, sans-serif`;
    pen.textAlign = align;
    pen.fillStyle = strong ? inks.of("var(--ink)") : soft;
    pen.fillText(text, x, y);
  }
  pen.font = "11px system-ui, sans-serif";
  pen.textAlign = "left";
  for (const { x, y, width: most, share, ofLargest } of layout.bars) {
    const long = Math.max(1, most * ofLargest);
    pen.fillStyle = inks.of("var(--accent)");
    pen.fillRect(x, y - 4, long, 8);
    pen.fillStyle = inks.of("var(--ink)");
    pen.fillText(workPercent(share), x + long + 5, y);
  }
  for (const { head, x, y } of layout.tiles) drawTile(pen, inks, layout, atlas, look, head, x, y);
  pen.globalAlpha = 1;
}

function drawTile(
  pen: CanvasRenderingContext2D,
  inks: Inks,
  layout: GridLayout,
  atlas: Atlas | null,
  look: Look,
  head: HeadName,
  left: number,
  top: number,
): void {
  const weight = look.by === "none" ? null : look.weight(head);
  const strength = weight === null ? 1 : Math.sqrt(weight);
  const side = look.by === "size" ? layout.side * (SMALL + (1 - SMALL) * strength) : layout.side;
  const [x, y] = [left + (layout.side - side) / 2, top + (layout.side - side) / 2];
  const chosen = look.spot === null ? null : look.spot.has(head.name);
  const alpha = chosen === null ? (look.by === "opacity" ? PALE + (1 - PALE) * strength : 1) : chosen ? 1 : DIMMED;
  const of = atlas?.at.get(head.name);
  const fill = look.fill(head);
  const inRow = look.row !== null && look.row.kinds.includes(head.kind) && fill === null;
  pen.globalAlpha = look.row === null ? alpha : 0.22 * alpha;
  if (fill !== null) {
    pen.globalAlpha = chosen === false ? DIMMED : 1;
    pen.fillStyle = fill;
    pen.fillRect(x, y, side, side);
  } else if (atlas !== null && of !== undefined) {
    pen.imageSmoothingEnabled = of.rows > side;
    pen.drawImage(atlas.canvas, of.x, of.y, of.columns, of.rows, x, y, side, side);
    if (inRow && look.row !== null) {
      const row = Math.min(of.rows - 1, Math.floor((look.row.at * of.rows) / look.row.of));
      const thick = Math.max(2, side / of.rows);
      pen.globalAlpha = 1;
      pen.imageSmoothingEnabled = false;
      pen.drawImage(atlas.canvas, of.x, of.y + row, of.columns, 1, x, y + (row * side) / of.rows, side, thick);
    }
  } else {
    pen.fillStyle = inks.of(roleColour(roleLabel(look.exam, head)));
    pen.globalAlpha *= 0.4;
    pen.fillRect(x, y, side, side);
  }
  pen.globalAlpha = chosen === false ? DIMMED : 1;
  const bordered = chosen ? "var(--accent)" : "var(--line)";
  pen.strokeStyle = inks.of(bordered);
  pen.lineWidth = chosen ? 2 : 1;
  pen.strokeRect(x - 0.5, y - 0.5, side + 1, side + 1);
  if (sinkOf(look.exam, head) !== "") {
    pen.fillStyle = inks.of("var(--ink-soft)");
    pen.fillRect(x - MARK - 0.5, y - 1, MARK, side + 2);
  }
  if (layout.named) {
    pen.fillStyle = inks.of("var(--ink)");
    pen.fillText(look.caption(head), left, top + layout.side + 8, layout.side + 2);
  }
}

export function measureFill(share: number | null): string {
  const [red, green, blue] = sequential(share ?? 0);
  return share === null ? "transparent" : `rgb(${red} ${green} ${blue})`;
}
