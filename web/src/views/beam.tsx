/** How the beam search found a translation: every hypothesis that it kept, step by step. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import type { Pin } from "../contract";
import { Figure } from "../figure";
import { word } from "../heatmap";
import { digits, percent } from "../readings";
import "./beam.css";
import { hypothesesOf, stepProbability, textOf, wayTo, type Hypothesis } from "./beam_layout";
import { shortened, textWidth } from "./text_width";
import { KeyedPlot } from "./keyed_plot";

const ROW = 34;
const BOX = 24;
const GAP = 48;
const TOP = 26;
const LETTERS = 16;

export function BeamTree({ pin }: { pin: Pin }): JSX.Element {
  const steps = useMemo(() => hypothesesOf(pin), [pin]);
  const over = useSignal<Hypothesis | null>(null);
  const held = useSignal<Hypothesis | null>(null);
  const all = steps.flat();
  const told = over.value ?? held.value ?? all.findLast((one) => one.best) ?? null;
  const way = new Set(over.value === null && held.value === null ? [] : wayTo(told!));
  const places = columnsOf(steps);
  const width = places.at(-1)!.x + places.at(-1)!.width + 8;
  const height = TOP + ROW * Math.max(...steps.map((step) => step.length));
  const ended = all.filter((one) => one.ended);
  const drawnLast = (one: Hypothesis) => 2 * Number(way.has(one)) + Number(one.best);
  return (
    <Figure
      id="beam-tree"
      title="How the translation was found"
      words={
        <>
          A beam search writes from left to right and keeps the{" "}
          {Math.max(...steps.map((step) => step.filter((one) => !one.ended).length))} most probable hypotheses at every
          step, the best on top. The thicker a line, the more probable the word given the words before it. Filled: the
          translation. Dashed frame: dropped. {ended.length} of {all.length - 1} hypotheses were completed.
        </>
      }
      table={() => ({
        columns: ["step", "rank", "word", "probability of the word", "log-probability", "state", "text so far"],
        rows: all
          .slice(1)
          .map((one) => [
            one.step + 1,
            one.rank + 1,
            word(one.token),
            stepProbability(one),
            one.logprob,
            stateOf(one),
            textOf(one),
          ]),
      })}
    >
      <div class="beam-box" onMouseLeave={() => (over.value = null)}>
        <KeyedPlot width={width} height={height} label="Tree of the beam search; move with the arrow keys">
          <g class="plot-text">
            {places.slice(1).map(({ x, width: room }, step) => (
              <text key={step} x={x + room / 2} y={12} text-anchor="middle">
                {step + 1}
              </text>
            ))}
          </g>
          {[...all]
            .sort((a, b) => drawnLast(a) - drawnLast(b))
            .map(
              (one) =>
                one.parent && (
                  <path
                    class={`beam-edge ${classOf(one, way)}`}
                    d={edge(one.parent, one, places)}
                    stroke-width={1 + (one.fruitful ? 5 : 2.5) * stepProbability(one)}
                  />
                ),
            )}
          {all.map((one, place) => {
            const { x, width: room } = places[one.step + 1]!;
            return (
              <g
                key={place}
                class={`beam-node ${classOf(one, way)}`}
                transform={`translate(${x} ${TOP + ROW * one.rank})`}
                role="button"
                tabindex={place === 0 ? 0 : -1}
                data-at={`${one.step + 1},${one.rank}`}
                aria-pressed={held.value === one}
                aria-label={`${boxText(one)}: ${sentenceOf(one)}`}
                onMouseEnter={() => (over.value = one)}
                onFocus={() => (over.value = one)}
                onBlur={() => (over.value = null)}
                onClick={() => (held.value = held.value === one ? null : one)}
                onKeyDown={(event) => {
                  if (event.key !== "Enter" && event.key !== " ") return;
                  event.preventDefault();
                  held.value = held.value === one ? null : one;
                }}
              >
                <rect width={room} height={BOX} rx={one.ended ? 12 : 5} />
                <text x={room / 2} y={BOX / 2 + 4} text-anchor="middle">
                  {boxText(one)}
                </text>
              </g>
            );
          })}
        </KeyedPlot>
      </div>
      <p class="beam-told small" role="status">
        {told === null ? " " : sentenceOf(told)}
      </p>
    </Figure>
  );
}

interface Place {
  x: number;
  width: number;
}

/** Every step is as wide as its longest word. */
function columnsOf(steps: Hypothesis[][]): Place[] {
  const places: Place[] = [];
  for (const step of steps) {
    const last = places.at(-1);
    const width = 18 + Math.max(14, ...step.map((one) => textWidth(boxText(one), 12)));
    places.push({ x: last === undefined ? 2 : last.x + last.width + GAP, width });
  }
  return places;
}

function edge(from: Hypothesis, to: Hypothesis, places: Place[]): string {
  const [start, end] = [places[from.step + 1]!, places[to.step + 1]!];
  const y = ({ rank }: Hypothesis) => TOP + ROW * rank + BOX / 2;
  const [left, right] = [start.x + start.width, end.x];
  const middle = (left + right) / 2;
  return `M${left},${y(from)}C${middle},${y(from)} ${middle},${y(to)} ${right},${y(to)}`;
}

function boxText(one: Hypothesis): string {
  if (one.step < 0) return "start";
  return one.ended ? `■ end ${digits(one.logprob).replace("-", "−")}` : shortened(word(one.token), LETTERS);
}

function classOf(one: Hypothesis, way: Set<Hypothesis>): string {
  return [one.best ? "best" : one.fruitful ? "" : "lost", way.has(one) ? "told" : ""].join(" ").trim();
}

function stateOf(one: Hypothesis): string {
  if (one.best) return one.ended ? "the translation" : "start of the translation";
  return one.ended ? "completed" : one.fruitful ? "start of a completed hypothesis" : "dropped";
}

function sentenceOf(one: Hypothesis): string {
  if (one.step < 0) return "start: no words yet";
  const logprob = digits(one.logprob).replace("-", "−");
  const last = one.ended ? "end of sentence" : `“${word(one.token)}”`;
  return (
    `${textOf(one) || "(nothing)"}${one.ended ? " ■" : " …"} ` +
    `log-probability ${logprob}, probability ${percent(Math.exp(one.logprob))}; ` +
    `${last} given the words before it: ${percent(stepProbability(one))}; ${stateOf(one)}`
  );
}
