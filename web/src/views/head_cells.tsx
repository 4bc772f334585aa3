/** Layers down, heads across, every cell with its number and its colour. */
import type { JSX } from "preact";
import { diverging, inkOn, rgb, sequential } from "../colour";
import { digits } from "../readings";
import "./head_cells.css";
import { KeyedPlot } from "./keyed_plot";

export interface Cell {
  value: number | null;
  /** Shown where a number is missing; a dash by default. */
  text?: string;
  /** Shown when the mouse is on it: "head 3.7". */
  name: string;
  href?: string;
}

interface Props {
  columns: string[];
  rows: { name: string; cells: (Cell | null)[] }[];
  /** The value of the strongest colour; in a diverging scale of both ends. */
  most: number;
  least?: number;
  scale?: "sequential" | "diverging";
  show?: (value: number) => string;
  label: string;
}

const CELL = { width: 41, height: 26 };
const MARGIN = { left: 54, top: 22 };

export function HeadCells(props: Props): JSX.Element {
  const { columns, rows, most, least = 0, scale = "sequential", show = digits, label } = props;
  const width = MARGIN.left + columns.length * CELL.width + 1;
  const height = MARGIN.top + rows.length * CELL.height + 1;
  const colourOf = (value: number) =>
    scale === "diverging" ? diverging(value / (most || 1)) : sequential((value - least) / (most - least || 1));
  let links = 0;
  return (
    <div class="head-cells">
      <KeyedPlot width={width} height={height} label={label}>
        {columns.map((name, column) => (
          <text
            class="plot-label"
            x={MARGIN.left + (column + 0.5) * CELL.width}
            y={MARGIN.top - 7}
            text-anchor="middle"
          >
            {name}
          </text>
        ))}
        {rows.map((row, place) => (
          <g transform={`translate(0 ${MARGIN.top + place * CELL.height})`}>
            <text class="plot-label" x={MARGIN.left - 8} y={CELL.height / 2 + 4} text-anchor="end">
              {row.name}
            </text>
            {row.cells.map((cell, column) => {
              if (cell === null) return null;
              const colour = cell.value === null ? null : colourOf(cell.value);
              const told = cell.value === null ? (cell.text ?? "-") : show(cell.value);
              const sentence = `${cell.name}: ${told}`;
              const drawn = (
                <>
                  <rect
                    x={1}
                    y={1}
                    width={CELL.width - 2}
                    height={CELL.height - 2}
                    rx={3}
                    fill={colour === null ? "none" : rgb(colour)}
                    stroke="var(--line)"
                  />
                  <text
                    x={CELL.width / 2}
                    y={CELL.height / 2 + 4}
                    text-anchor="middle"
                    font-size="10.5"
                    fill={colour === null ? "var(--ink-soft)" : inkOn(colour)}
                  >
                    {told}
                  </text>
                  <title>{sentence}</title>
                </>
              );
              return (
                <g key={column} transform={`translate(${MARGIN.left + column * CELL.width} 0)`}>
                  {cell.href === undefined ? (
                    drawn
                  ) : (
                    <a
                      href={cell.href}
                      aria-label={sentence}
                      data-at={`${column},${place}`}
                      tabindex={links++ === 0 ? 0 : -1}
                    >
                      {drawn}
                    </a>
                  )}
                </g>
              );
            })}
          </g>
        ))}
      </KeyedPlot>
    </div>
  );
}
