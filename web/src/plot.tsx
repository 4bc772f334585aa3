/** Curves, bars and points, as SVG that takes its colours from the page. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { axis, outline, tickText, wholeAxis } from "./axis";
import { CATEGORIES } from "./colour";
import { Frame, MARGIN, WIDTH } from "./plot_frame";
import { digits } from "./readings";
import { shortened } from "./views/text_width";

export interface Point {
  x: number;
  y: number | null;
  low?: number | null;
  high?: number | null;
}

/** Where points have a low and a high, a band is filled between them. */
export interface Series {
  name: string;
  points: Point[];
  colour?: string;
  dashed?: boolean;
}

export function Curves(props: {
  series: Series[];
  x: string;
  y: string;
  label: string;
  log?: boolean;
  whole?: boolean;
  zero?: boolean;
  height?: number;
  /** What stands below x, where it is not the number itself. */
  xText?: (x: number) => string;
}): JSX.Element {
  const [over, setOver] = useState<number | null>(null);
  const xText = props.xText ?? ((x: number) => (props.whole ? String(x) : digits(x)));
  const height = props.height ?? 260;
  const coloured = props.series.map((series, place) => ({
    ...series,
    colour: series.colour ?? CATEGORIES[place % CATEGORIES.length]!,
  }));
  const points = coloured.flatMap((series) => series.points);
  const xs = [...new Set(points.map((point) => point.x))].sort((a, b) => a - b);
  const ys = points.flatMap(({ y, low, high }) => [y, low, high].filter((value) => typeof value === "number"));
  const across: [number, number] = [MARGIN.left + 8, WIDTH - MARGIN.right - 8];
  const x = props.whole ? wholeAxis(xs, across) : axis(xs, across, {});
  const y = axis(ys, [height - MARGIN.bottom, MARGIN.top], { log: props.log ?? false, zero: props.zero ?? false });
  const path = (points: Point[]): string =>
    outline(points.map((point) => (y.fits(point.y) ? [x.place(point.x), y.place(point.y)] : null)));
  const fill = (points: Point[]): string => {
    const banded = points.filter((point) => y.fits(point.low) && y.fits(point.high));
    const edge = (side: "low" | "high") => banded.map((p): [number, number] => [x.place(p.x), y.place(p[side]!)]);
    return banded.length ? `${outline([...edge("high"), ...edge("low").reverse()])}Z` : "";
  };
  const follow = (event: MouseEvent): void => {
    const box = (event.currentTarget as Element).querySelector("svg.plot")?.getBoundingClientRect();
    if (box === undefined || xs.length === 0) return;
    const at = ((event.clientX - box.left) / box.width) * WIDTH;
    setOver(xs.reduce((best, value) => (Math.abs(x.place(value) - at) < Math.abs(x.place(best) - at) ? value : best)));
  };
  return (
    <div onMouseMove={follow} onMouseLeave={() => setOver(null)}>
      <Frame
        height={height}
        x={x}
        y={y}
        {...(props.xText === undefined ? {} : { xText })}
        xName={props.x}
        yName={props.y}
        label={props.label}
        legend={coloured.map((series) => ({
          name: series.name,
          sign: <line x1={-10} x2={10} {...strokeOf(series)} />,
        }))}
      >
        {[
          ...coloured.map((series) => (
            <g key={series.name}>
              <path d={fill(series.points)} fill={series.colour} fill-opacity={0.16} />
              <path d={path(series.points)} fill="none" {...strokeOf(series)} />
              {series.points.length <= 60 &&
                series.points.map(
                  (point) =>
                    y.fits(point.y) && (
                      <circle key={point.x} cx={x.place(point.x)} cy={y.place(point.y)} r={2.6} fill={series.colour} />
                    ),
                )}
            </g>
          )),
          over !== null && (
            <line
              key="over"
              class="plot-over"
              x1={x.place(over)}
              x2={x.place(over)}
              y1={MARGIN.top}
              y2={height - MARGIN.bottom}
            />
          ),
        ]}
      </Frame>
      <p class="small muted hover-line" aria-hidden="true">
        {over === null
          ? " "
          : `${props.x} ${xText(over)}: ${coloured
              .map((series) => [series.name, series.points.find((point) => point.x === over)?.y] as const)
              .filter(([, value]) => typeof value === "number")
              .map(([name, value]) => `${name} ${digits(value)}`)
              .join(" · ")}`}
      </p>
    </div>
  );
}

export function strokeOf({ colour, dashed }: { colour: string; dashed?: boolean }) {
  return { stroke: colour, "stroke-width": 2, "stroke-dasharray": dashed ? "6 4" : undefined };
}

/** Horizontal bars, one below the other. */
export function Bars(props: {
  bars: { name: string; value: number | null; colour?: string; href?: string }[];
  x: string;
  label: string;
  reference?: { value: number; name: string };
}): JSX.Element {
  const linked = props.bars.some((bar) => bar.href !== undefined);
  const room = Math.min(190, 24 + 6.6 * Math.max(...props.bars.map((bar) => bar.name.length), 4));
  const height = 22 * props.bars.length + 44;
  const values = props.bars.map((bar) => bar.value ?? 0);
  const x = axis([...values, 0, ...(props.reference ? [props.reference.value] : [])], [room, WIDTH - 64], {
    zero: true,
  });
  return (
    <svg class="plot" viewBox={`0 0 ${WIDTH} ${height}`} role={linked ? "group" : "img"} aria-label={props.label}>
      <g class="plot-grid">
        {x.ticks.map((tick) => (
          <line key={tick} x1={x.place(tick)} x2={x.place(tick)} y1={4} y2={height - 38} />
        ))}
      </g>
      <g class="plot-text">
        {x.ticks.map((tick) => (
          <text key={tick} x={x.place(tick)} y={height - 24} text-anchor="middle">
            {tickText(tick)}
          </text>
        ))}
        <text class="plot-name" x={(room + WIDTH - 64) / 2} y={height - 6} text-anchor="middle">
          {props.x}
        </text>
      </g>
      {props.bars.map((bar, place) => {
        const [zero, end] = [x.place(0), x.place(bar.value ?? 0)];
        const y = 6 + 22 * place;
        const name = (
          <text class="plot-label" x={room - 8} y={y + 9} text-anchor="end" dominant-baseline="middle">
            {shortened(bar.name, 26)}
          </text>
        );
        return (
          <g key={place}>
            {bar.href === undefined ? name : <a href={bar.href}>{name}</a>}
            <rect
              x={Math.min(zero, end)}
              y={y}
              width={Math.max(1, Math.abs(end - zero))}
              height={17}
              rx={2}
              fill={bar.colour ?? "var(--c0)"}
            />
            <text class="plot-label" x={Math.max(zero, end) + 5} y={y + 9} dominant-baseline="middle">
              {digits(bar.value)}
            </text>
          </g>
        );
      })}
      {props.reference && (
        <g>
          <line
            class="plot-over"
            x1={x.place(props.reference.value)}
            x2={x.place(props.reference.value)}
            y1={2}
            y2={height - 38}
          />
          <title>{props.reference.name}</title>
        </g>
      )}
    </svg>
  );
}

/** Outlines of a square, a triangle and a diamond; a circle has none. */
const SHAPES = [undefined, "M-4-4h8v8h-8z", "M0-5.5L5 4H-5z", "M0-5.5L5.5 0L0 5.5L-5.5 0z"];

/** Points by group: a colour and a shape for each. */
export function Scatter(props: {
  points: { x: number; y: number; name: string; group: string; ring?: boolean }[];
  x: string;
  y: string;
  label: string;
  logX?: boolean;
  logY?: boolean;
  lineX?: number;
}): JSX.Element {
  const [over, setOver] = useState<string | null>(null);
  const height = 340;
  const groups = [...new Set(props.points.map((point) => point.group))];
  const x = axis(
    [...props.points.map((p) => p.x), ...(props.lineX === undefined ? [] : [props.lineX])],
    [MARGIN.left + 8, WIDTH - MARGIN.right - 8],
    { log: props.logX ?? false },
  );
  const y = axis(
    props.points.map((p) => p.y),
    [height - MARGIN.bottom - 8, MARGIN.top + 8],
    { log: props.logY ?? false },
  );
  return (
    <div>
      <Frame
        height={height}
        x={x}
        y={y}
        xName={props.x}
        yName={props.y}
        label={props.label}
        legend={groups.map((name, place) => ({ name, sign: <Mark group={place} /> }))}
      >
        {[
          props.lineX !== undefined && x.fits(props.lineX) && (
            <line
              key="line"
              class="plot-over"
              x1={x.place(props.lineX)}
              x2={x.place(props.lineX)}
              y1={MARGIN.top}
              y2={height - MARGIN.bottom}
            />
          ),
          ...props.points
            .filter((point) => x.fits(point.x) && y.fits(point.y))
            .map((point, place) => (
              <g
                key={place}
                transform={`translate(${x.place(point.x)} ${y.place(point.y)})`}
                onMouseEnter={() => setOver(point.name)}
                onMouseLeave={() => setOver(null)}
              >
                <title>{point.name}</title>
                {point.ring && <circle r={9} fill="none" class="plot-ring" />}
                <Mark group={groups.indexOf(point.group)} />
              </g>
            )),
        ]}
      </Frame>
      <p class="small muted hover-line" aria-hidden="true">
        {over ?? " "}
      </p>
    </div>
  );
}

function Mark({ group }: { group: number }): JSX.Element {
  const fill = CATEGORIES[group % CATEGORIES.length]!;
  const shape = SHAPES[(group + Math.floor(group / CATEGORIES.length)) % SHAPES.length];
  return shape === undefined ? <circle r={4.5} fill={fill} /> : <path d={shape} fill={fill} />;
}
