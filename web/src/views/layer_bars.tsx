/** One bar for every layer, of one part or of several. */
import type { JSX } from "preact";
import { percent } from "../readings";
import { useWidth } from "./width";

export interface LayerBar {
  name: string;
  /** In the order of `parts`. */
  shares: number[];
}

const NAME = 62;
const VALUE = 56;
const TALL = 22;

/** Bars from 0 to 1, or to the largest of them. */
export function LayerBars(props: {
  bars: LayerBar[];
  parts: { name: string; colour: string }[];
  label: string;
  whole?: boolean;
}): JSX.Element {
  const { bars, parts } = props;
  const { box, width } = useWidth<HTMLDivElement>();
  const room = Math.max(60, width - NAME - VALUE);
  const sums = bars.map(({ shares }) => shares.reduce((sum, share) => sum + share, 0));
  const full = props.whole ? 1 : Math.max(...sums, 1e-12);
  const legend = parts.length > 1;
  const height = bars.length * TALL + 4;
  return (
    <div ref={box} class="layer-bars">
      {legend && (
        <p class="small layer-bars-legend">
          {parts.map(({ name, colour }) => (
            <span key={name}>
              <i style={{ background: colour }} /> {name}
            </span>
          ))}
        </p>
      )}
      <svg
        class="plot"
        viewBox={`0 0 ${Math.max(160, width)} ${height}`}
        style={{ height: `${height}px` }}
        role="img"
        aria-label={`${props.label}: ${bars.map(({ name }, row) => `${name} ${percent(sums[row] ?? 0)}`).join(", ")}`}
      >
        {bars.map(({ name, shares }, row) => {
          let from = NAME;
          const y = row * TALL + 3;
          return (
            <g key={name}>
              <text class="plot-label" x={NAME - 8} y={y + 8} text-anchor="end" dominant-baseline="middle">
                {name}
              </text>
              {shares.map((share, part) => {
                const long = (room * share) / full;
                const x = from;
                from += long;
                return (
                  <rect key={part} x={x} y={y} width={Math.max(0, long)} height={TALL - 6} fill={parts[part]?.colour} />
                );
              })}
              <text class="plot-label" x={from + 6} y={y + 8} dominant-baseline="middle">
                {percent(legend ? (shares[0] ?? 0) : (sums[row] ?? 0))}
              </text>
            </g>
          );
        })}
      </svg>
    </div>
  );
}
