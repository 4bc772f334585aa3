/** Where a head stands among all heads of the model: a line for each measure, a dot for each head. */
import type { JSX } from "preact";
import { linear } from "../axis";
import type { Exam, Reading } from "../contract";
import { Figure } from "../figure";
import type { HeadName } from "../readings";
import { digits, headsOf, intervalOf, ofHead, reading, shown } from "../readings";
import { exam } from "../store";
import { measureName } from "./measure_names";
import { useWidth } from "./width";

const MEASURES = [
  "saturation.entropy",
  "saturation.max_weight",
  "saturation.jacobian",
  "sinks.first",
  "importance.gradient",
  "ablation.change",
  "paths.head",
  "bottleneck.keys",
  "bottleneck.values",
  "redundancy.nearest",
];

interface Strip {
  name: string;
  found: Reading;
  value: number;
  interval: [number, number] | null;
  /** The values of all heads, with this one. */
  others: { head: HeadName; value: number }[];
}

const ROW = 58;
const SIDE = 10;

export function HeadStanding({ head }: { head: HeadName }): JSX.Element | null {
  const of = exam.value;
  const strips = MEASURES.flatMap((name) => stripOf(of, name, head) ?? []);
  if (strips.length === 0) return null;
  return (
    <Figure
      id="standing"
      about={{ head }}
      title="Compared with all heads"
      words="One dot per head of the model; this head is marked, with its 95 % interval where there is one."
      table={() => ({
        columns: ["measure", "value", "low", "high", "rank", "of", "meaning", "source"],
        rows: strips.map((strip) => [
          strip.name,
          strip.value,
          strip.interval?.[0] ?? null,
          strip.interval?.[1] ?? null,
          placeOf(strip),
          strip.others.length,
          strip.found.description,
          strip.found.source,
        ]),
      })}
    >
      <Strips strips={strips} head={head} />
    </Figure>
  );
}

function stripOf(of: Exam, name: string, head: HeadName): Strip | null {
  const value = ofHead(of, name, head);
  const found = reading(of, name, head.kind);
  if (typeof value !== "number" || found === null) return null;
  const others = headsOf(of).flatMap((other) => {
    const number = ofHead(of, name, other);
    return typeof number === "number" ? [{ head: other, value: number }] : [];
  });
  return { name, found, value, interval: intervalOf(of, name, head), others };
}

/** 1 is the highest. */
function placeOf({ value, others }: Strip): number {
  return 1 + others.filter((other) => other.value > value).length;
}

/** "3rd highest of 72", "lowest of 72" */
function placeWords(strip: Strip): string {
  const { length } = strip.others;
  const [fromTop, fromBottom] = [placeOf(strip), 1 + strip.others.filter((other) => other.value < strip.value).length];
  const [place, end] = fromTop <= fromBottom ? [fromTop, "highest"] : [fromBottom, "lowest"];
  const alike = strip.others.filter((other) => other.value === strip.value).length - 1;
  return `${place === 1 ? end : `${ordinal(place)} ${end}`} of ${length}${alike > 0 ? `, tied with ${alike} more` : ""}`;
}

function ordinal(n: number): string {
  const ending = { one: "st", two: "nd", few: "rd", other: "th" } as Record<string, string>;
  return `${n}${ending[new Intl.PluralRules("en", { type: "ordinal" }).select(n)] ?? "th"}`;
}

function Strips({ strips, head }: { strips: Strip[]; head: HeadName }): JSX.Element {
  const { box, width } = useWidth<HTMLDivElement>();
  const height = ROW * strips.length;
  return (
    <div ref={box}>
      {width > 0 && (
        <svg
          class="plot"
          viewBox={`0 0 ${width} ${height}`}
          role="img"
          aria-label={strips
            .map((strip) => `${measureName(strip.name)} ${digits(strip.value)}, ${placeWords(strip)}`)
            .join("; ")}
        >
          {strips.map((strip, place) => (
            <g key={strip.name} transform={`translate(0 ${ROW * place})`}>
              <StripLine strip={strip} head={head} width={width} />
            </g>
          ))}
        </svg>
      )}
    </div>
  );
}

function StripLine({ strip, head, width }: { strip: Strip; head: HeadName; width: number }): JSX.Element {
  const { value, interval, others } = strip;
  const ends = [...others.map((other) => other.value), ...(interval ?? [])];
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const x = linear(low < high ? [low, high] : [low - 1, high + 1], [SIDE, width - SIDE]);
  const line = 28;
  const told =
    interval === null ? digits(value) : `${digits(value)} (${digits(interval[0])} to ${digits(interval[1])})`;
  return (
    <>
      <text class="strip-name" y={12}>
        {measureName(strip.name)}
      </text>
      <text class="plot-label" x={width} y={12} text-anchor="end">
        {width > 380 ? `${told}, ${placeWords(strip)}` : `${digits(value)}, ${placeWords(strip)}`}
      </text>
      <line class="plot-axis" x1={SIDE} x2={width - SIDE} y1={line} y2={line} stroke-opacity={0.4} />
      {others.map((other) => (
        <circle
          key={other.head.name}
          cx={x(other.value)}
          cy={line}
          r={4}
          fill={other.head.kind === head.kind ? "var(--c0)" : "var(--none)"}
          fill-opacity={0.35}
        >
          <title>{`${shown(exam.value, other.head)}: ${digits(other.value)}`}</title>
        </circle>
      ))}
      {interval !== null && (
        <line x1={x(interval[0])} x2={x(interval[1])} y1={line} y2={line} stroke="var(--c1)" stroke-width={3} />
      )}
      <path d={`M${x(value)} ${line - 9}v18`} stroke="var(--c1)" stroke-width={3} />
      <text class="strip-end" x={SIDE - 6} y={line + 18}>
        {digits(low)}
      </text>
      <text class="strip-end" x={width - SIDE + 6} y={line + 18} text-anchor="end">
        {digits(high)}
      </text>
    </>
  );
}
