/** Attention by the distance between query and key. */
import type { JSX } from "preact";
import { Figure } from "../figure";
import { Curves } from "../plot";
import type { HeadName } from "../readings";
import { at, numbers, reading, shown } from "../readings";
import { exam } from "../store";

export function HeadOffsets({ head }: { head: HeadName }): JSX.Element | null {
  const of = exam.value;
  const found = reading(of, "roles.offset", head.kind);
  if (found === null) return null;
  const attention = numbers(at(found.value, head.layer, head.head));
  const chance = numbers(at(reading(of, "roles.offset_chance", head.kind)?.value ?? null, head.layer));
  const offsets = found.ticks["offset"] ?? attention.map((_, i) => i);
  const places = offsets.map((_, i) => i).filter((i) => attention[i] !== null && attention[i] !== undefined);
  const points = places.map((i) => ({ x: offsets[i]!, y: attention[i]! }));
  const even = places.map((i) => ({ x: offsets[i]!, y: chance[i] ?? null }));
  return (
    <Figure
      id="offsets"
      title="Attention by distance"
      words="Mean attention by distance (key position minus query position): -1 is the previous token, 0 the token itself, 1 the next token."
      table={() => ({
        columns: ["distance", "attention", "uniform attention"],
        rows: points.map(({ x, y }, i) => [x, y, even[i]?.y ?? null]),
      })}
    >
      <Curves
        series={[
          { name: `head ${shown(of, head)}`, points },
          ...(chance.length > 0
            ? [{ name: "uniform attention", points: even, dashed: true, colour: "var(--none)" }]
            : []),
        ]}
        x="distance (key minus query)"
        y="attention"
        zero
        whole
        label={`Attention of head ${shown(of, head)} by distance`}
      />
    </Figure>
  );
}
