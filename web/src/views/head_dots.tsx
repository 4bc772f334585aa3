/** A number of every head by layer: a dot each, their mean as a line, their range as a bar behind them. */
import type { JSX } from "preact";
import { axis, linear, outline, tickText } from "../axis";
import { digits } from "../readings";
import { onArrowKey } from "./arrow_keys";
import "./head_dots.css";

export interface DotGroup {
  name: string;
  colour: string;
  dashed?: boolean;
  /** Only the mean, without band and dots. */
  bare?: boolean;
  /** By layer, by head. */
  values: (number | null)[][];
  tell: (layer: number, head: number) => string;
  href?: (layer: number, head: number) => string;
}

const SIZE = { width: 560, height: 260 };
const MARGIN = { left: 58, right: 14, top: 10, bottom: 40 };
/** Dots of a layer stand beside one another, head 0 at the left. */
const SPREAD = 0.56;
const BAND = 0.7;

export function HeadDots(props: { groups: DotGroup[]; y: string; label: string }): JSX.Element {
  const { groups, y, label } = props;
  const layers = Math.max(0, ...groups.map((group) => group.values.length));
  const all = groups.flatMap((group) => group.values.flat()).filter((value) => value !== null);
  const across = linear([-0.5, layers - 0.5], [MARGIN.left, SIZE.width - MARGIN.right]);
  const { place: up, ticks } = axis(all, [SIZE.height - MARGIN.bottom, MARGIN.top], { zero: true });
  let links = 0;
  return (
    <div class="head-dots">
      <svg
        class="plot"
        viewBox={`0 0 ${SIZE.width} ${SIZE.height}`}
        role="group"
        aria-label={label}
        onKeyDown={onArrowKey}
      >
        <g class="plot-grid">
          {ticks.map((tick) => (
            <line x1={MARGIN.left} x2={SIZE.width - MARGIN.right} y1={up(tick)} y2={up(tick)} />
          ))}
        </g>
        <g class="plot-text">
          {ticks.map((tick) => (
            <text x={MARGIN.left - 6} y={up(tick)} text-anchor="end" dominant-baseline="middle">
              {tickText(tick)}
            </text>
          ))}
          {layerTicks(layers).map((layer) => (
            <text x={across(layer)} y={SIZE.height - MARGIN.bottom + 16} text-anchor="middle">
              {layer}
            </text>
          ))}
          <text
            class="plot-name"
            x={(MARGIN.left + SIZE.width - MARGIN.right) / 2}
            y={SIZE.height - 6}
            text-anchor="middle"
          >
            layer
          </text>
          <text
            class="plot-name"
            transform={`translate(13 ${(MARGIN.top + SIZE.height - MARGIN.bottom) / 2}) rotate(-90)`}
            text-anchor="middle"
          >
            {y}
          </text>
        </g>
        {groups
          .filter((group) => !group.bare)
          .map((group) =>
            summaries(group).map(
              ({ layer, low, high }) =>
                low !== null &&
                high !== null && (
                  <rect
                    key={`${group.name} ${layer}`}
                    fill={group.colour}
                    fill-opacity={0.13}
                    x={across(layer - BAND / 2)}
                    width={across(BAND) - across(0)}
                    y={up(high)}
                    height={up(low) - up(high)}
                  />
                ),
            ),
          )}
        {groups.map((group) => (
          <path
            fill="none"
            {...strokeOf(group)}
            d={outline(summaries(group).map(({ layer, mean }) => (mean === null ? null : [across(layer), up(mean)])))}
          />
        ))}
        {groups
          .filter((group) => !group.bare)
          .map((group) =>
            group.values.map((heads, layer) =>
              heads.map((value, head) => {
                if (value === null) return null;
                const x = across(layer + (heads.length > 1 ? (head / (heads.length - 1) - 0.5) * SPREAD : 0));
                const told = `${group.tell(layer, head)}: ${digits(value)}`;
                const dot = (
                  <circle {...inkOf(group)} cx={x} cy={up(value)} r={heads.length > 16 ? 2.5 : 4}>
                    <title>{told}</title>
                  </circle>
                );
                return group.href === undefined ? (
                  dot
                ) : (
                  <a
                    href={group.href(layer, head)}
                    aria-label={told}
                    data-at={`${layer * heads.length + head},0`}
                    tabindex={links++ === 0 ? 0 : -1}
                  >
                    {dot}
                  </a>
                );
              }),
            ),
          )}
      </svg>
      <ul class="legend">
        {groups.map((group) => (
          <li key={group.name}>
            <svg width="22" height="10" aria-hidden="true">
              <line {...strokeOf(group)} x1="1" x2="21" y1="5" y2="5" />
              {!group.bare && <circle {...inkOf(group)} cx="11" cy="5" r="3.5" />}
            </svg>
            {group.name}
          </li>
        ))}
      </ul>
    </div>
  );
}

function strokeOf({ colour, dashed }: DotGroup) {
  return { stroke: colour, "stroke-width": 2, "stroke-dasharray": dashed ? "6 4" : undefined };
}

/** Hollow where the line is dashed. */
function inkOf({ colour, dashed }: DotGroup) {
  return {
    fill: dashed ? "var(--paper)" : colour,
    stroke: dashed ? colour : "var(--paper)",
    "stroke-width": dashed ? 1.5 : 1,
  };
}

interface Summary {
  layer: number;
  mean: number | null;
  low: number | null;
  high: number | null;
}

export function summaries(group: DotGroup): Summary[] {
  return group.values.map((heads, layer) => {
    const there = heads.filter((value) => value !== null);
    if (there.length === 0) return { layer, mean: null, low: null, high: null };
    const mean = there.reduce((sum, value) => sum + value, 0) / there.length;
    return { layer, mean, low: Math.min(...there), high: Math.max(...there) };
  });
}

/** Not more than two dozen. */
function layerTicks(layers: number): number[] {
  const every = Math.ceil(layers / 24);
  return Array.from({ length: Math.ceil(layers / every) || 0 }, (_, place) => place * every);
}
