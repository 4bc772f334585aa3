/** What plots share: axes with their names, and below them a legend, inside the picture so that it is saved with it. */
import type { ComponentChildren, JSX } from "preact";
import { tickText, type Axis } from "./axis";
import { shortened, textWidth } from "./views/text_width";

export const WIDTH = 560;
export const MARGIN = { top: 10, right: 14, bottom: 40, left: 58 };

/** An entry of the legend; its sign is drawn around (0, 0), and at most 22 wide. */
interface Entry {
  name: string;
  sign: JSX.Element;
}

/** Plots are shrunk on small screens, so the legend is larger there. */
const SMALL_SCREEN = matchMedia("(max-width: 640px)");
const SIGN = 28;
const GAP = 12;

export function Frame(props: {
  height: number;
  x: Axis;
  y: Axis;
  xText?: (tick: number) => string;
  xName: string;
  yName: string;
  label: string;
  legend: Entry[];
  /** For a plot with links in it, among which arrow keys move. */
  onKeyDown?: (event: KeyboardEvent) => void;
  children: ComponentChildren;
}): JSX.Element {
  const { height, x, y, legend, onKeyDown } = props;
  const [left, right, top, bottom] = [MARGIN.left, WIDTH - MARGIN.right, MARGIN.top, height - MARGIN.bottom];
  const size = SMALL_SCREEN.matches ? 17 : 13;
  const lines = inLines(legend, size, right - MARGIN.right);
  return (
    <svg
      class="plot"
      viewBox={`0 0 ${WIDTH} ${height + 1.5 * size * lines.length + 4}`}
      role={onKeyDown === undefined ? "img" : "group"}
      aria-label={[props.label, ...legend.map(({ name }) => name)].join("; ")}
      onKeyDown={onKeyDown}
    >
      <g class="plot-grid">
        {y.ticks.map((tick) => (
          <line key={tick} x1={left} x2={right} y1={y.place(tick)} y2={y.place(tick)} />
        ))}
      </g>
      <g class="plot-text">
        {y.ticks.map((tick) => (
          <text key={tick} x={left - 6} y={y.place(tick)} text-anchor="end" dominant-baseline="middle">
            {tickText(tick)}
          </text>
        ))}
        {x.ticks.map((tick) => (
          <text key={tick} x={x.place(tick)} y={bottom + 16} text-anchor="middle">
            {(props.xText ?? tickText)(tick)}
          </text>
        ))}
        <text class="plot-name" x={(left + right) / 2} y={height - 6} text-anchor="middle">
          {props.xName}
        </text>
        <text class="plot-name" transform={`translate(13 ${(top + bottom) / 2}) rotate(-90)`} text-anchor="middle">
          {props.yName}
        </text>
      </g>
      <line class="plot-axis" x1={left} x2={right} y1={bottom} y2={bottom} />
      {props.children}
      {lines.map((entries, line) =>
        entries.map(({ name, sign, short, from }) => (
          <g key={from} transform={`translate(${MARGIN.right + from} ${height + 1.5 * size * (line + 0.5)})`}>
            <g transform="translate(11 0)">{sign}</g>
            <text class="plot-label" x={SIGN} font-size={size} dominant-baseline="central">
              {short}
              {short !== name && <title>{name}</title>}
            </text>
          </g>
        )),
      )}
    </svg>
  );
}

interface Placed extends Entry {
  short: string;
  from: number;
}

/** Entries stand side by side while there is room. */
function inLines(legend: Entry[], size: number, room: number): Placed[][] {
  const lines: Placed[][] = [];
  let next = Infinity;
  for (const entry of legend) {
    const whole = textWidth(entry.name, size);
    const width = Math.min(whole, room - SIGN);
    const short = shortened(entry.name, Math.floor((entry.name.length * width) / Math.max(1, whole)));
    if (next + SIGN + width > room) {
      lines.push([]);
      next = 0;
    }
    lines.at(-1)!.push({ ...entry, short, from: next });
    next += SIGN + width + GAP;
  }
  return lines;
}
