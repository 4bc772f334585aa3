/** Attention by the distance between query and key. */
import type { JSX } from "preact";
import { Figure } from "../figure";
import { Curves, type Point } from "../plot";
import type { HeadName } from "../readings";
import { at, numbers, reading, shown } from "../readings";
import { exam } from "../store";

/** With more distances than this, far ones stand together. */
const MOST_DISTANCES = 32;

type Bin = [number, number];

/** [-8, -5], [-4, -3], -2, -1, 0, 1, 2, [3, 4], [5, 8], ... up to the farthest. */
function distanceBins(far: number): Bin[] {
  const ahead: Bin[] = [[1, 1]];
  for (let from = 2; from <= far; from = ahead.at(-1)![1] + 1) {
    ahead.push([from, Math.min(far, from === 2 ? 2 : 2 * (from - 1))]);
  }
  return [...ahead.map(([near, end]): Bin => [-end, -near]).reverse(), [0, 0], ...ahead];
}

function binName(bin: Bin | undefined): string {
  if (bin === undefined) return "";
  return bin[0] === bin[1] ? String(bin[0]) : `${bin[0]}…${bin[1]}`;
}

/** Means of the points of every bin, by the number of the bin. */
function binned(points: Point[], bins: Bin[]): Point[] {
  return bins.flatMap(([from, to], x) => {
    const there = points.flatMap((point) => (point.x >= from && point.x <= to && point.y !== null ? [point.y] : []));
    return there.length === 0 ? [] : [{ x, y: there.reduce((sum, y) => sum + y, 0) / there.length }];
  });
}

export function HeadOffsets({ head }: { head: HeadName }): JSX.Element | null {
  const of = exam.value;
  const found = reading(of, "roles.offset", head.kind);
  if (found === null) return null;
  const attention = numbers(at(found.value, head.layer, head.head));
  const chance = numbers(at(reading(of, "roles.offset_chance", head.kind)?.value ?? null, head.layer, head.head));
  const offsets = found.ticks["offset"] ?? attention.map((_, i) => i);
  const places = offsets.map((_, i) => i).filter((i) => attention[i] !== null && attention[i] !== undefined);
  const points = places.map((i) => ({ x: offsets[i]!, y: attention[i]! }));
  const even = places.map((i) => ({ x: offsets[i]!, y: chance[i] ?? null }));
  const far = Math.max(0, ...points.map(({ x }) => Math.abs(x)));
  const bins = far > MOST_DISTANCES ? distanceBins(far) : null;
  const drawn = (all: Point[]) => (bins === null ? all : binned(all, bins));
  return (
    <Figure
      id="offsets"
      about={{ head }}
      title="Attention by distance"
      words={`Share of the attention outside the sinks (first token, special tokens) by distance, which is key position minus query position: -1 is the previous token, 0 the token itself, 1 the next token.${bins === null ? "" : " Far distances stand together, each step twice as wide as the one before; the value is the mean over its distances."}`}
      table={() => ({
        columns: ["distance", "attention", "even attention"],
        rows: points.map(({ x, y }, i) => [x, y, even[i]?.y ?? null]),
      })}
    >
      <Curves
        series={[
          { name: `head ${shown(of, head)}`, points: drawn(points) },
          ...(chance.length > 0
            ? [{ name: "even attention", points: drawn(even), dashed: true, colour: "var(--none)" }]
            : []),
        ]}
        x="distance (key minus query)"
        y="attention"
        zero
        whole
        {...(bins === null ? {} : { xText: (place: number) => binName(bins[place]) })}
        label={`Attention of head ${shown(of, head)} by distance`}
      />
    </Figure>
  );
}
