/** A number of every head by layer: a dot each, their mean as a line, their range as a bar behind them. */
import type { JSX } from "preact";
import { axis, linear, outline, wholeAxis } from "../axis";
import { strokeOf } from "../plot";
import { Frame, MARGIN, WIDTH } from "../plot_frame";
import { digits } from "../readings";
import { onArrowKey } from "./arrow_keys";
import "./head_dots.css";

export interface DotGroup {
  name: string;
  colour: string;
  dashed: boolean;
  /** Only the mean, without band and dots. */
  bare: boolean;
  /** By layer, by head. */
  values: (number | null)[][];
  tell: (layer: number, head: number) => string;
  href: (layer: number, head: number) => string;
}

const HEIGHT = 260;
/** Dots of a layer stand beside one another, head 0 at the left. */
const SPREAD = 0.56;
const BAND = 0.7;
/** The line of means is level here in every layer, so that one without neighbours is seen, too. */
const LEVEL = 0.3;

export function HeadDots(props: { groups: DotGroup[]; y: string; label: string }): JSX.Element {
  const { groups, y, label } = props;
  const full = groups.filter((group) => !group.bare);
  const layers = Math.max(0, ...groups.map((group) => group.values.length));
  const mostHeads = Math.max(0, ...full.flatMap((group) => group.values.map((heads) => heads.length)));
  const all = groups.flatMap((group) => group.values.flat()).filter((value) => value !== null);
  const across = linear([-0.5, layers - 0.5], [MARGIN.left, WIDTH - MARGIN.right]);
  const vertical = axis(all, [HEIGHT - MARGIN.bottom, MARGIN.top], { zero: true });
  const up = vertical.place;
  let links = 0;
  return (
    <div class="head-dots">
      <Frame
        height={HEIGHT}
        x={{ ...wholeAxis([...Array(layers).keys()], [0, 1]), place: across }}
        y={vertical}
        xName="layer"
        yName={y}
        label={label}
        legend={groups.map((group) => ({
          name: group.name,
          sign: (
            <>
              <line {...strokeOf(group)} x1={-10} x2={10} />
              {!group.bare && <circle {...inkOf(group)} r={3.5} />}
            </>
          ),
        }))}
        onKeyDown={onArrowKey}
      >
        {full.map((group) =>
          summaries(group).map(
            (found) =>
              found && (
                <rect
                  key={`${group.name} ${found.layer}`}
                  fill={group.colour}
                  fill-opacity={0.13}
                  x={across(found.layer - BAND / 2)}
                  width={across(BAND) - across(0)}
                  y={up(found.high)}
                  height={up(found.low) - up(found.high)}
                />
              ),
          ),
        )}
        {groups.map((group) => (
          <path
            key={group.name}
            fill="none"
            {...strokeOf(group)}
            d={outline(
              summaries(group).flatMap((found) => {
                const ends = [-LEVEL / 2, LEVEL / 2];
                return found === null ? [null] : ends.map((end) => [across(found.layer + end), up(found.mean)]);
              }),
            )}
          />
        ))}
        {full.map((group, row) =>
          group.values.map((heads, layer) =>
            heads.map((value, head) => {
              if (value === null) return null;
              const x = across(layer + (heads.length > 1 ? (head / (heads.length - 1) - 0.5) * SPREAD : 0));
              const told = `${group.tell(layer, head)}: ${digits(value)}`;
              return (
                <a
                  key={`${row} ${layer} ${head}`}
                  href={group.href(layer, head)}
                  aria-label={told}
                  data-at={`${layer * mostHeads + head},${row}`}
                  tabindex={links++ === 0 ? 0 : -1}
                >
                  <circle {...inkOf(group)} cx={x} cy={up(value)} r={heads.length > 16 ? 2.5 : 4}>
                    <title>{told}</title>
                  </circle>
                </a>
              );
            }),
          ),
        )}
      </Frame>
    </div>
  );
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
  mean: number;
  low: number;
  high: number;
}

/** Of every layer, or null where it has no number. */
function summaries(group: DotGroup): (Summary | null)[] {
  return group.values.map((heads, layer) => {
    const there = heads.filter((value) => value !== null);
    if (there.length === 0) return null;
    const mean = there.reduce((sum, value) => sum + value, 0) / there.length;
    return { layer, mean, low: Math.min(...there), high: Math.max(...there) };
  });
}
