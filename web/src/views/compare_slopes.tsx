/** Slopes: a line for every head from its number before to its number after, for the measures that matter most. */
import type { JSX } from "preact";
import { axis, tickText } from "../axis";
import type { Exam, HeadMatch } from "../contract";
import { Figure } from "../figure";
import { digits, headMeasures, ofHead, parseHead, renamed } from "../readings";
import { measureName } from "./measure_names";
import { shortened } from "./text_width";
import { useWidth } from "./width";

const SHOWN = [
  "ablation.change",
  "importance.gradient",
  "saturation.entropy",
  "sinks.first",
  "saturation.max_weight",
  "paths.head",
];
const MOST = 4;
const PANEL = { width: 230, height: 210, top: 30, bottom: 24, side: 46 };
/** A change of less than this share of the range of all heads is drawn in grey. */
const LITTLE = 0.05;

export interface Slope {
  head: string;
  before: number | null;
  after: number | null;
}

/** Numbers of all heads that one of the two models has. */
export function slopesOf(before: Exam, after: Exam, matches: HeadMatch[], measure: string): Slope[] {
  const value = (exam: Exam, name: string | null): number | null => {
    const head = name === null ? null : parseHead(exam, name);
    const found = head === null ? null : ofHead(exam, measure, head);
    return typeof found === "number" ? found : null;
  };
  return matches.flatMap((match) => {
    const [one, other] = [value(before, match.before), value(after, match.after)];
    if (match.state === "not compared" || (one === null && other === null)) return [];
    const head = renamed(match.before ?? match.after ?? "", match.after ?? match.before ?? "");
    return [{ head, before: one, after: other }];
  });
}

export function SlopesCompared(props: { before: Exam; after: Exam; matches: HeadMatch[] }): JSX.Element | null {
  const { before, after, matches } = props;
  const { box, width } = useWidth<HTMLDivElement>();
  const both = headMeasures(before).filter((name) => headMeasures(after).includes(name));
  const panels = SHOWN.filter((name) => both.includes(name))
    .slice(0, MOST)
    .map((measure) => ({ measure, slopes: slopesOf(before, after, matches, measure) }))
    .filter(({ slopes }) => slopes.some((slope) => slope.before !== null && slope.after !== null));
  if (panels.length === 0) return null;
  const across = Math.max(1, Math.min(panels.length, Math.floor(width / PANEL.width)));
  const wide = width / across;
  const down = Math.ceil(panels.length / across);
  return (
    <Figure
      id="slopes"
      title="Each head, before and after"
      words="A line for each head. Violet: higher after. Orange: lower. Grey: changed by little. A hollow dot: only one of the models has the head."
      table={() => ({
        columns: ["measure", "head", "before", "after"],
        rows: panels.flatMap(({ measure, slopes }) =>
          slopes.map((slope) => [measureName(measure), slope.head, slope.before, slope.after]),
        ),
      })}
    >
      <div ref={box}>
        {width > 0 && (
          <svg
            class="plot"
            viewBox={`0 0 ${width} ${down * PANEL.height}`}
            role="img"
            aria-label={panels.map(({ measure, slopes }) => panelWords(measure, slopes)).join("; ")}
          >
            {panels.map(({ measure, slopes }, place) => (
              <g
                key={measure}
                transform={`translate(${(place % across) * wide} ${Math.floor(place / across) * PANEL.height})`}
              >
                <Panel title={measureName(measure)} slopes={slopes} width={wide} />
              </g>
            ))}
          </svg>
        )}
      </div>
    </Figure>
  );
}

function panelWords(measure: string, slopes: Slope[]): string {
  const both = slopes.filter((slope) => slope.before !== null && slope.after !== null);
  const mean = (side: "before" | "after") => both.reduce((sum, slope) => sum + slope[side]!, 0) / both.length;
  return `${measureName(measure)}: mean of ${both.length} heads ${digits(mean("before"))} before, ${digits(mean("after"))} after`;
}

function Panel({ title, slopes, width }: { title: string; slopes: Slope[]; width: number }): JSX.Element {
  const values = slopes.flatMap(({ before, after }) => [before, after]).filter((value) => value !== null);
  const bottom = PANEL.height - PANEL.bottom;
  const y = axis(values, [bottom, PANEL.top], { count: 4 });
  const range = Math.max(...values) - Math.min(...values) || 1;
  const [left, right] = [PANEL.side, width - 24];
  return (
    <>
      <text class="plot-name" x={left} y={16} font-weight="600">
        {shortened(title, Math.floor(width / 7))}
        <title>{title}</title>
      </text>
      <g class="plot-text">
        {y.ticks.map((tick) => (
          <text key={tick} x={left - 8} y={y.place(tick)} text-anchor="end" dominant-baseline="middle">
            {tickText(tick)}
          </text>
        ))}
        <text x={left} y={bottom + 17} text-anchor="middle">
          before
        </text>
        <text x={right} y={bottom + 17} text-anchor="middle">
          after
        </text>
      </g>
      {[left, right].map((x) => (
        <line key={x} class="plot-axis" x1={x} x2={x} y1={PANEL.top} y2={bottom} stroke-opacity={0.4} />
      ))}
      {slopes.map(({ head, before, after }) => {
        if (before === null || after === null) {
          const [x, value] = before === null ? [right, after!] : [left, before];
          return (
            <circle key={head} cx={x} cy={y.place(value)} r={3.5} fill="var(--paper-2)" stroke="var(--ink-soft)">
              <title>{`${head}, ${before === null ? "new" : "cut"}: ${digits(value)}`}</title>
            </circle>
          );
        }
        const shift = (after - before) / range;
        const colour = Math.abs(shift) < LITTLE ? "var(--none)" : shift > 0 ? "var(--c3)" : "var(--c1)";
        return (
          <path
            key={head}
            d={`M${left} ${y.place(before)}L${right} ${y.place(after)}`}
            fill="none"
            stroke={colour}
            stroke-width={1.5}
            stroke-opacity={0.75}
          >
            <title>{`${head}: ${digits(before)} → ${digits(after)}`}</title>
          </path>
        );
      })}
    </>
  );
}
