/** The words read and the words written, with lines between them: where the model looked while it wrote. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { word } from "../heatmap";
import { percent } from "../readings";
import "./word_lines.css";
import { shortened, textWidth } from "./text_width";
import { KeyedPlot } from "./keyed_plot";
import { useWidth } from "./width";

/** Row after row of `weights` is a word written, and column after column a word read. */
export interface Alignment {
  read: string[];
  written: string[];
  weights: Float32Array;
}

type Side = "read" | "written";
interface Chosen {
  side: Side;
  place: number;
}

interface Link {
  read: number;
  written: number;
  weight: number;
}

const FONT = 14;
const LETTERS = 18;
const FAINTEST = 0.04;
/** The weights of the word that is chosen. */
const FAINTEST_CHOSEN = 0.005;

export function WordLines(props: Alignment & { label: string }): JSX.Element {
  const over = useSignal<Chosen | null>(null);
  const held = useSignal<Chosen | null>(null);
  const { box, width: room } = useWidth<HTMLDivElement>();
  useEffect(() => {
    held.value = over.value = null;
  }, [JSON.stringify([props.read, props.written])]);
  const layout = layoutOf(props, room);
  const chosen = over.value ?? held.value;
  const touches = (link: Link) => chosen !== null && link[chosen.side] === chosen.place;
  const partners = new Set(chosen === null ? [] : strongestOf(props, chosen, 3).map(({ place }) => place));
  const links = useMemo(() => linksOf(props), [props.weights, props.read.length]);
  const drawn = links.filter((link) => (touches(link) ? link.weight > FAINTEST_CHOSEN : link.weight >= FAINTEST));
  return (
    <div class="word-lines" ref={box}>
      <p class="word-told small" role="status">
        {chosen === null
          ? "Point at a word, or move with the arrow keys, to see its attention. Click to keep it selected."
          : sentenceOf(props, chosen)}
      </p>
      {room > 0 && (
        <KeyedPlot
          width={layout.width}
          height={layout.height}
          label={`${props.label}; arrow keys move between the words`}
          onMouseLeave={() => (over.value = null)}
        >
          {drawn.map((link) => (
            <path
              key={`${link.read} ${link.written}`}
              class={chosen === null ? "word-line" : touches(link) ? "word-line chosen" : "word-line aside"}
              d={layout.path(link)}
              stroke-width={0.75 + 6 * link.weight}
              stroke-opacity={
                chosen === null ? 0.08 + 0.9 * link.weight : touches(link) ? 0.3 + 0.7 * link.weight : 0.07
              }
            />
          ))}
          {(["read", "written"] as const).map((side) =>
            props[side].map((token, place) => {
              const at = layout[side][place]!;
              const is = chosen?.side === side && chosen.place === place;
              const partner = chosen !== null && chosen.side !== side && partners.has(place);
              const here = { side, place };
              const hold = () => (held.value = held.value?.side === side && held.value.place === place ? null : here);
              return (
                <g
                  key={`${side} ${place}`}
                  class={`word ${is ? "chosen" : partner ? "partner" : ""}`}
                  transform={`translate(${at.x} ${at.y})`}
                  role="button"
                  tabindex={place === 0 ? 0 : -1}
                  data-at={
                    layout.upright ? `${Number(side === "written")},${place}` : `${place},${Number(side === "written")}`
                  }
                  aria-pressed={held.value?.side === side && held.value.place === place}
                  aria-label={`${shortened(word(token), LETTERS)}: ${sentenceOf(props, here)}`}
                  onMouseEnter={() => (over.value = here)}
                  onFocus={() => (over.value = here)}
                  onBlur={() => (over.value = null)}
                  onClick={hold}
                  onKeyDown={(event) => {
                    if (event.key !== "Enter" && event.key !== " ") return;
                    event.preventDefault();
                    hold();
                  }}
                >
                  <rect width={at.width} height={layout.line} rx={5} />
                  <text x={at.width / 2} y={layout.line / 2 + 5} text-anchor="middle" font-size={FONT}>
                    {shortened(word(token), LETTERS)}
                  </text>
                </g>
              );
            }),
          )}
        </KeyedPlot>
      )}
    </div>
  );
}

// In words ------------------------------------------------------------------------------------------------------------

function weightsOf({ read, written, weights }: Alignment, { side, place }: Chosen): number[] {
  return side === "written"
    ? [...weights.slice(place * read.length, (place + 1) * read.length)]
    : written.map((_, row) => weights[row * read.length + place] ?? 0);
}

function strongestOf(alignment: Alignment, chosen: Chosen, count: number): { place: number; weight: number }[] {
  return weightsOf(alignment, chosen)
    .map((weight, place) => ({ place, weight }))
    .sort((a, b) => b.weight - a.weight)
    .slice(0, count);
}

function sentenceOf(alignment: Alignment, chosen: Chosen): string {
  const others = chosen.side === "written" ? alignment.read : alignment.written;
  const three = strongestOf(alignment, chosen, 3).map(
    ({ place, weight }) => `${word(others[place])} ${percent(weight)}`,
  );
  const own = word(alignment[chosen.side][chosen.place]);
  return chosen.side === "written"
    ? `While writing “${own}” the model attends to ${three.join(", ")}`
    : `“${own}” gets the most attention while the model writes ${three.join(", ")}`;
}

/** Lines of all weights that are seen, scaled by 1 or by the largest. */
function linksOf({ read, written, weights }: Alignment): Link[] {
  const top = weights.reduce((most, weight) => Math.max(most, Math.abs(weight)), 1);
  return written.flatMap((_, row) => {
    const links = read.map((_, column) => ({
      read: column,
      written: row,
      weight: Math.abs(weights[row * read.length + column] ?? 0) / top,
    }));
    return links.filter(({ weight }) => weight > FAINTEST_CHOSEN);
  });
}

// Layout --------------------------------------------------------------------------------------------------------------

interface Spot {
  x: number;
  y: number;
  width: number;
}

interface Layout {
  read: Spot[];
  written: Spot[];
  width: number;
  height: number;
  /** The height of a word. */
  line: number;
  upright: boolean;
  path: (link: Link) => string;
}

/** Two rows of words if they fit, and two columns if not. */
function layoutOf(alignment: Alignment, room: number): Layout {
  const [read, written] = [widths(alignment.read), widths(alignment.written)];
  const [across, other] = [rowWidth(read), rowWidth(written)];
  return Math.max(across, other) <= room ? inRows(read, written, room) : inColumns(read, written, room);
}

const SPACE = 6;
/** The width as a multiple of the smallest possible width. */
const LOOSE = 1.6;

function widths(words: string[]): number[] {
  return words.map((token) => 16 + textWidth(shortened(word(token), LETTERS), FONT));
}

function rowWidth(words: number[]): number {
  return words.reduce((sum, width) => sum + width + SPACE, 0);
}

function inRows(read: number[], written: number[], room: number): Layout {
  const line = 28;
  const height = 230;
  const widest = Math.min(room, LOOSE * Math.max(rowWidth(read), rowWidth(written)));
  /** Words of the shorter row stand further apart. */
  const row = (words: number[], y: number): Spot[] => {
    const space = SPACE + (widest - rowWidth(words)) / Math.max(1, words.length);
    let x = space / 2;
    return words.map((width) => {
      const spot = { x, y, width };
      x += width + space;
      return spot;
    });
  };
  const [above, below] = [row(read, 2), row(written, height - line - 2)];
  const path = (link: Link) => {
    const [from, to] = [above[link.read]!, below[link.written]!];
    const [start, end] = [from.x + from.width / 2, to.x + to.width / 2];
    const [top, bottom] = [line + 3, height - line - 3];
    const middle = (top + bottom) / 2;
    return `M${start},${top}C${start},${middle} ${end},${middle} ${end},${bottom}`;
  };
  return { read: above, written: below, width: widest, height, line, upright: false, path };
}

function inColumns(read: number[], written: number[], room: number): Layout {
  const line = 26;
  const step = line + 4;
  const [left, right] = [Math.max(...read), Math.max(...written)];
  const width = Math.min(room, left + right + 280);
  const column = (words: number[], place: (width: number) => number): Spot[] =>
    words.map((own, row) => ({ x: place(own), y: 2 + row * step, width: own }));
  const [first, second] = [column(read, (own) => left - own), column(written, () => width - right)];
  const path = (link: Link) => {
    const [start, end] = [2 + link.read * step + line / 2, 2 + link.written * step + line / 2];
    const middle = (left + width - right) / 2;
    return `M${left + 2},${start}C${middle},${start} ${middle},${end} ${width - right - 2},${end}`;
  };
  return {
    read: first,
    written: second,
    width,
    height: step * Math.max(read.length, written.length) + 4,
    line,
    upright: true,
    path,
  };
}
