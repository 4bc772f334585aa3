/** A matrix on a canvas: token labels, zoom, and the value under the pointer or under the cursor that keys move. */
import type { ComponentChildren, JSX } from "preact";
import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Table } from "./export";
import {
  draw,
  LABEL,
  largestOf,
  painted,
  plan,
  pooled,
  scaleWords,
  word,
  type Blocks,
  type CellAt,
  type Shape,
} from "./heatmap_draw";
import { bounded, everything, following, inside, moved, zoomed, type Seen } from "./heatmap_extent";
import "./heatmap.css";
import { digits } from "./readings";
import { theme } from "./store";
import { STEPS } from "./views/arrow_keys";
import { shortened } from "./views/text_width";
import { useWidth } from "./views/width";

export { word } from "./heatmap_draw";

export function Heatmap(props: {
  values: Float32Array;
  rows: string[];
  columns: string[];
  label: string;
  /** By default diverging if some values are below zero. */
  scale?: "sequential" | "diverging";
  /** Draw the square root, so that small weights are seen. */
  gamma?: boolean;
  /** The strongest colour is that of the largest number, also if that is below 1. */
  stretched?: boolean;
  height?: number;
}): JSX.Element {
  const { values, rows, columns } = props;
  const canvas = useRef<HTMLCanvasElement>(null);
  const { box, width } = useWidth<HTMLDivElement>();
  const [seen, setSeen] = useState<Seen>(() => everything(rows.length, columns.length));
  const [cell, setCell] = useState<CellAt | null>(null);
  const [pointer, setPointer] = useState<{ x: number; y: number } | null>(null);
  const dragged = useRef<{ x: number; y: number; seen: Seen } | null>(null);

  useLayoutEffect(() => {
    setSeen(everything(rows.length, columns.length));
    setCell(null);
  }, [rows.length, columns.length]);

  const scale = props.scale ?? (values.some((value) => value < 0) ? "diverging" : "sequential");
  const gamma = props.gamma ?? false;
  const shape = plan(width, props.height ?? 560, seen);
  const { block } = shape;
  const blocks = useMemo(
    () => (block === 1 ? null : pooled(values, columns.length, seen, block)),
    [values, columns.length, block, block === 1 ? null : seen],
  );
  const colours = useMemo(() => {
    const largest = largestOf(blocks?.values ?? values) || 1;
    const top = scale === "diverging" || blocks !== null || props.stretched ? largest : Math.max(1, largest);
    return { scale, top, gamma };
  }, [values, blocks, scale, gamma, props.stretched]);
  const picture = useMemo(
    () => painted(blocks ?? { values, rows: rows.length, columns: columns.length }, colours),
    [values, blocks, colours, theme.value],
  );

  useLayoutEffect(() => {
    if (canvas.current !== null && width > 0) {
      draw(canvas.current, picture, shape, seen, { rows, columns }, cell, colours);
    }
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
    if (start === null) {
      setPointer({ x: event.clientX, y: event.clientY });
      return setCell(under(event));
    }
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
      setPointer(null);
      setSeen((now) => ({ rows: following(now.rows, next.row), columns: following(now.columns, next.column) }));
    } else if (event.key === "+" || event.key === "=") zoom(0.7, cell);
    else if (event.key === "-") zoom(1.4, cell);
    else if (event.key === "0") setSeen(everything(rows.length, columns.length));
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const told = cell === null ? null : valueAt(cell, props, seen, block, blocks);
  const said =
    cell === null || told === null
      ? "Rows are queries, columns are keys; hover, or use the arrow keys"
      : `${word(rows[cell.row])} → ${word(columns[cell.column])}: ${told}`;
  const whole = seen.rows.to - seen.rows.from === rows.length && seen.columns.to - seen.columns.from === columns.length;
  return (
    <div class="heatmap" ref={box} data-scale={scaleWords(colours, block)}>
      <canvas
        ref={canvas}
        tabIndex={0}
        role="application"
        aria-label={`${props.label}. Arrow keys move over the cells, plus and minus zoom, 0 shows all.`}
        onMouseMove={onMove}
        onMouseLeave={() => setCell(null)}
        onBlur={() => setCell(null)}
        onMouseDown={(event) => !whole && (dragged.current = { x: event.clientX, y: event.clientY, seen })}
        onMouseUp={() => (dragged.current = null)}
        onDblClick={(event) => zoom(0.5, under(event))}
        onWheel={onWheel}
        onKeyDown={onKey}
      />
      {cell !== null && told !== null && (
        <Tip at={pointer ?? middleOf(canvas.current, shape, seen, cell)}>
          <b>{told}</b>
          <br />
          {word(rows[cell.row])} → {word(columns[cell.column])}
        </Tip>
      )}
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

/** The number of a cell; where means are shown, that of its block, too. */
function valueAt(
  cell: CellAt,
  { values, columns }: { values: Float32Array; columns: string[] },
  seen: Seen,
  block: number,
  blocks: Blocks | null,
): string {
  const value = digits(values[cell.row * columns.length + cell.column]);
  if (blocks === null) return value;
  const [down, across] = [cell.row - seen.rows.from, cell.column - seen.columns.from].map((n) => Math.floor(n / block));
  return `${value} (mean of the block ${digits(blocks.values[down! * blocks.columns + across!])})`;
}

interface Place {
  x: number;
  y: number;
}

/** The middle of a cell in the window. */
function middleOf(canvas: HTMLCanvasElement | null, shape: Shape, seen: Seen, cell: CellAt): Place {
  const at = canvas?.getBoundingClientRect() ?? { left: 0, top: 0 };
  return {
    x: at.left + LABEL + (cell.column - seen.columns.from + 0.5) * shape.cellWidth,
    y: at.top + LABEL + (cell.row - seen.rows.from + 0.5) * shape.cellHeight,
  };
}

const AWAY = 16;

/** Words beside a place in the window, on the side where there is room. The words below the matrix are for readers. */
function Tip({ at, children }: { at: Place; children: ComponentChildren }): JSX.Element {
  const box = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (box.current === null) return;
    const { width, height } = box.current.getBoundingClientRect();
    const right = at.x + AWAY + width <= document.documentElement.clientWidth;
    const above = at.y - AWAY - height >= 0;
    box.current.style.left = `${Math.max(0, right ? at.x + AWAY : at.x - AWAY - width)}px`;
    box.current.style.top = `${above ? at.y - AWAY - height : at.y + AWAY}px`;
  });
  return (
    <div class="heatmap-tip small" ref={box} aria-hidden="true">
      {children}
    </div>
  );
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
