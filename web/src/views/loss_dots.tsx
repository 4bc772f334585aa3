/** Loss before, predicted, after and healed on one line, with the gap between prediction and measurement. */
import type { JSX } from "preact";
import { axis, tickText } from "../axis";
import type { LossSteps } from "../contract";
import { digits } from "../readings";

const SIZE = { width: 440, row: 24, left: 80, right: 66, bottom: 22 };

export function LossDots({ loss, name }: { loss: LossSteps; name: string }): JSX.Element {
  const { before, predicted, after, healed } = loss;
  const rows = [
    { name: "before", value: before, colour: "var(--ink-soft)", hollow: false },
    { name: "predicted", value: predicted, colour: "var(--c1)", hollow: true },
    { name: "measured", value: after, colour: "var(--c0)", hollow: false },
    ...(healed === null ? [] : [{ name: "healed", value: healed, colour: "var(--c2)", hollow: false }]),
  ];
  const values = rows.map(({ value }) => value);
  const { place: x, ticks } = axis(values, [SIZE.left, SIZE.width - SIZE.right], { count: 4 });
  const bottom = rows.length * SIZE.row + 4;
  const middle = (row: number): number => (row + 0.5) * SIZE.row + 2;
  const told = rows.map(({ name, value }) => `${name} ${digits(value)}`).join(", ");
  return (
    <svg
      class="plot loss-dots"
      viewBox={`0 0 ${SIZE.width} ${bottom + SIZE.bottom}`}
      role="img"
      aria-label={`${name}: ${told}`}
    >
      <g class="plot-grid">
        {ticks.map((tick) => (
          <line key={tick} x1={x(tick)} x2={x(tick)} y1={4} y2={bottom} />
        ))}
      </g>
      <g class="plot-text">
        {ticks.map((tick) => (
          <text key={tick} x={x(tick)} y={bottom + 15} text-anchor="middle">
            {tickText(tick)}
          </text>
        ))}
      </g>
      <line
        stroke="var(--c1)"
        stroke-width={2}
        stroke-dasharray="3 3"
        x1={x(predicted)}
        x2={x(predicted)}
        y1={middle(1)}
        y2={middle(2)}
      />
      <line
        stroke="var(--c1)"
        stroke-width={2}
        stroke-dasharray="3 3"
        x1={x(predicted)}
        x2={x(after)}
        y1={middle(2)}
        y2={middle(2)}
      />
      {rows.map(({ name, value, colour, hollow }, row) => (
        <g key={name}>
          <text class="plot-label" x={SIZE.left - 14} y={middle(row)} text-anchor="end" dominant-baseline="middle">
            {name}
          </text>
          <circle
            cx={x(value)}
            cy={middle(row)}
            r={6}
            fill={hollow ? "var(--paper)" : colour}
            stroke={colour}
            stroke-width={2.5}
          />
          <text class="plot-label" x={SIZE.width - 8} y={middle(row)} text-anchor="end" dominant-baseline="middle">
            {digits(value)}
          </text>
        </g>
      ))}
    </svg>
  );
}
