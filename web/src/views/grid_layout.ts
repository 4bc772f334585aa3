/** Where every head stands on the canvas of the grid: layers down and heads across, or one after the other. */
import type { Exam, Kind } from "../contract";
import type { HeadName } from "../readings";
import { KIND_WORDS, kindsOf } from "../readings";
import { layerWork } from "./work";

export interface PlacedHead {
  head: HeadName;
  x: number;
  y: number;
}

interface PlacedText {
  x: number;
  y: number;
  text: string;
  align: "left" | "center" | "right";
  strong?: boolean;
}

export interface GridLayout {
  width: number;
  height: number;
  /** Of a tile. */
  side: number;
  /** Whether tiles carry their names, as the place of a tile does not say which head it is. */
  named: boolean;
  tiles: PlacedHead[];
  texts: PlacedText[];
  /** The work of layers; `share` of all, and of the largest. */
  bars: { x: number; y: number; width: number; share: number; ofLargest: number }[];
}

export interface Room {
  width: number;
  height: number;
}

const GAP = 4;
const SMALLEST = 15;
/** Where tiles would be narrower than this, layers take several lines of wider ones. */
const NARROW = 18;
const WRAPPED = 24;
const LARGEST = 150;
const WIDE = 420;
const FLAT = 64;
const CAPTION = 14;
const LABEL = 26;
const BAR = 46;
const BAR_TEXT = 40;
const BETWEEN = 26;
/** Kinds stand beside one another if tiles are not much smaller then. */
const MUCH = 0.6;

/** Layers down: as large as the room allows, in both directions; `compact` moves heads together and names them. */
export function inLayers(of: Exam, heads: HeadName[], room: Room, compact: boolean): GridLayout {
  const blocks = kindsOf(of)
    .map((kind) => ({ kind, rows: rowsOf(heads.filter((head) => head.kind === kind)) }))
    .filter(({ rows }) => rows.length > 0);
  const bar = room.width < WIDE ? BAR / 3 : BAR;
  const barRoom = of.work === null ? 0 : bar + BAR_TEXT + GAP;
  const lost = LABEL + barRoom;
  const across = blocks.map(({ rows }) => Math.max(...rows.map((row) => row.length)));
  const down = blocks.map(({ rows }) => rows.length);
  const titled = blocks.length > 1;
  const top = (titled ? 22 : 0) + (compact ? 4 : 18);
  const line = GAP + (compact ? CAPTION : 0);
  const sum = (numbers: number[]) => numbers.reduce((total, number) => total + number, 0);
  const beside = Math.min(
    (room.width - sum(across.map(() => lost)) - BETWEEN * (blocks.length - 1)) / sum(across) - GAP,
    (room.height - top) / Math.max(...down) - line,
  );
  const most = Math.max(1, ...across);
  const free = room.width - lost;
  const lines = free / most - GAP >= NARROW ? 1 : Math.max(1, Math.ceil((most * (WRAPPED + GAP)) / free));
  const perLine = Math.ceil(most / lines);
  const below = Math.min(free / perLine - GAP, (room.height - top * blocks.length) / (sum(down) * lines) - line);
  const isBeside = blocks.length > 1 && beside >= Math.max(SMALLEST, Math.min(MUCH * below, LARGEST / 3));
  const least = lines > 1 ? Math.min(WRAPPED, free / perLine - GAP) : Math.min(SMALLEST, free / perLine - GAP);
  const side = Math.floor(Math.min(LARGEST, Math.max(least, isBeside ? beside : below)));
  const layout: GridLayout = { width: 0, height: 0, side, named: compact, tiles: [], texts: [], bars: [] };
  const largest = Math.max(...Object.values(of.work?.layers ?? {}), 1e-12);
  let [left, up, bottom] = [0, 0, 0];
  blocks.forEach(({ kind, rows }, block) => {
    const inLine = isBeside ? across[block]! : Math.min(perLine, across[block]!);
    const wide = LABEL + inLine * (side + GAP) + barRoom;
    let y = up + top;
    if (titled) layout.texts.push({ x: left, y: up + 8, text: KIND_WORDS[kind], align: "left", strong: true });
    if (!compact && inLine === across[block]) {
      const every = side < 18 ? 2 : 1;
      for (let column = 0; column < inLine; column += every) {
        const x = left + LABEL + column * (side + GAP) + side / 2;
        layout.texts.push({ x, y: y - 9, text: String(column), align: "center" });
      }
    }
    if (barRoom > 0) {
      layout.texts.push({ x: left + wide - barRoom + GAP, y: y - 9, text: "work", align: "left" });
    }
    for (const row of rows) {
      const middle = y + side / 2;
      layout.texts.push({ x: left + LABEL - 6, y: middle, text: String(row[0]!.layer), align: "right" });
      row.forEach((head, place) => {
        const x = left + LABEL + (place % inLine) * (side + GAP);
        layout.tiles.push({ head, x, y: y + Math.floor(place / inLine) * (side + line) });
      });
      const share = layerWork(of, row[0]!);
      if (share !== null) {
        const x = left + wide - barRoom + GAP;
        layout.bars.push({ x, y: middle, width: bar, share, ofLargest: share / largest });
      }
      y += Math.ceil(row.length / inLine) * (side + line);
    }
    layout.width = Math.max(layout.width, left + wide);
    bottom = Math.max(bottom, y);
    if (isBeside) left += wide + BETWEEN;
    else up = y + BETWEEN / 2;
  });
  return { ...layout, height: Math.max(1, bottom) };
}

/** One after the other, each with its name. */
export function inOrder(heads: HeadName[], room: Room): GridLayout {
  const most = Math.sqrt((room.width * room.height) / Math.max(1, heads.length)) - GAP - CAPTION / 2;
  const side = Math.floor(Math.min(LARGEST, FLAT + Math.max(0, most - FLAT), Math.max(38, most)));
  const perLine = Math.max(1, Math.floor((room.width + GAP) / (side + GAP)));
  const tiles = heads.map((head, place) => ({
    head,
    x: (place % perLine) * (side + GAP),
    y: Math.floor(place / perLine) * (side + GAP + CAPTION),
  }));
  const height = Math.max(1, Math.ceil(heads.length / perLine) * (side + GAP + CAPTION));
  return { width: room.width, height, side, named: true, tiles, texts: [], bars: [] };
}

function rowsOf(heads: HeadName[]): HeadName[][] {
  const rows = new Map<number, HeadName[]>();
  for (const head of heads) rows.set(head.layer, [...(rows.get(head.layer) ?? []), head]);
  return [...rows].sort(([a], [b]) => a - b).map(([, row]) => row);
}

/** The kinds whose rows are words of this side. */
export function kindsOfSide(side: "tokens" | "target", hasTarget: boolean): Kind[] {
  if (!hasTarget) return side === "tokens" ? ["encoder", "decoder", "cross"] : [];
  return side === "tokens" ? ["encoder"] : ["decoder", "cross"];
}
