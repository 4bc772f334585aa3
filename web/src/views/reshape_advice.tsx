/** Cheaper attention: the error of every mechanism in every layer against the time it saves, and the mix to take. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Choice } from "../controls";
import type { Advice, Interval } from "../contract";
import { Figure } from "../figure";
import { Scatter } from "../plot";
import { containsOne, digits, percent, signed, whole } from "../readings";

type Trial = Advice["trials"][number];
/** Smaller errors are drawn here, for zero has no place on a logarithmic axis. */
const SMALLEST = 1e-6;
const KINDS = { all: "all layers", enc: "encoder", dec: "decoder", cross: "cross-attention" };
type Part = keyof typeof KINDS;

export function AdvicePart({ advice }: { advice: Advice | null }): JSX.Element {
  return (
    <section class="stack" aria-labelledby="reshape-advice">
      <h3 id="reshape-advice">Cheaper attention: error against speed</h3>
      {advice === null ? (
        <p class="muted">
          This page contains no advice. <code>attnworks advise MODEL --length 1024 --json &gt; advice.json</code> tries
          every mechanism in every layer; <code>attnworks report EXAM --advice advice.json</code> shows it here.
        </p>
      ) : (
        <Advised advice={advice} />
      )}
    </section>
  );
}

function Advised({ advice }: { advice: Advice }): JSX.Element {
  const [part, setPart] = useState<Part>("all");
  const now = new Map(advice.present.map(({ slot, seconds }) => [slot, seconds]));
  const faster = ({ slot, seconds }: Trial): number | null => {
    const before = now.get(slot);
    return seconds === null || before === undefined || seconds === 0 ? null : before / seconds;
  };
  const parts = (Object.keys(KINDS) as Part[]).filter(
    (name) => name === "all" || [...now.keys()].some((slot) => slot.startsWith(`${name}.`)),
  );
  const trials = advice.trials.filter(({ slot }) => part === "all" || slot.startsWith(`${part}.`));
  const tried = trials.flatMap((trial) => {
    const [error, speed] = [trial.error, faster(trial)];
    return error === null || speed === null ? [] : [{ ...trial, error, speed }];
  });
  const table = () => ({
    columns: ["layer", "mechanism", "error", "speed-up", "95 % low", "95 % high", "seconds", "FLOPs", "verdict"],
    rows: trials.map((trial) => [
      trial.slot,
      trial.spec,
      trial.error,
      faster(trial),
      ...(speeds(trial.time_interval) ?? [null, null]),
      trial.seconds,
      trial.flops,
      verdict(advice, trial),
    ]),
  });
  return (
    <>
      <Verdict advice={advice} />
      <Figure
        id="reshape-advice-plot"
        title={`Error and speed at ${advice.length.toLocaleString("en-US")} positions`}
        words={
          <>
            Each point is a mechanism in one layer; good ones are at the top left. Rings mark the advised mix. The line
            is the largest error allowed for a mix, as root mean square over all layers: {percent(advice.max_error)}.
            Errors are relative errors of attention, measured on texts of up to {whole(advice.tried_at)} tokens.
          </>
        }
        table={table}
      >
        {parts.length > 2 && <Choice label="Layers" options={parts} value={part} words={KINDS} onChange={setPart} />}
        <Scatter
          points={tried.map((trial) => ({
            x: Math.max(SMALLEST, trial.error),
            y: trial.speed,
            name: `${trial.spec} in ${trial.slot}: error ${digits(trial.error)}, ${digits(trial.speed)} x as fast${between(trial.time_interval)}`,
            group: trial.spec.split(":")[0] ?? trial.spec,
            ring: isChosen(advice, trial),
          }))}
          x="relative error of attention"
          y="speed-up"
          logX
          logY
          {...(advice.max_error > 0 ? { lineX: advice.max_error } : {})}
          label="Error of attention against speed, a point for every mechanism in every layer"
        />
      </Figure>
    </>
  );
}

function Verdict({ advice }: { advice: Advice }): JSX.Element {
  const mix = Object.entries(advice.chosen);
  return (
    <div class="card">
      {mix.length === 0 ? (
        <p>
          <strong>Leave {advice.model} as it is.</strong> {whyNot(advice)}
        </p>
      ) : (
        <>
          <p>
            <strong>
              {pays(advice)
                ? ""
                : "Nothing makes the whole model measurably faster: leave it as it is, or ask for longer texts. "}
              {mix.length === 1 ? "One layer" : `${mix.length} layers`} can be swapped: {times(advice)}.
            </strong>{" "}
            95 % intervals are in brackets. The error over all layers is {percent(advice.error)} (limit{" "}
            {percent(advice.max_error)}). {losses(advice)}
          </p>
          <ul class="reshape-done">
            {mix.map(([slot, spec]) => (
              <li key={slot}>
                <span class="reshape-where">{slot}</span> {spec}
              </li>
            ))}
          </ul>
          {advice.command && (
            <p>
              {pays(advice) ? "Command" : "Command to apply it anyway"}: <code>{advice.command}</code>
            </p>
          )}
        </>
      )}
      {advice.notes.map((note) => (
        <p key={note} class="small muted">
          {note}
        </p>
      ))}
    </div>
  );
}

/** Why no mix is advised. */
function whyNot({ refused, max_error }: Advice): string {
  const most = percent(max_error);
  if (refused === null)
    return `No mix of these mechanisms is measurably faster and keeps the error over all layers within ${most}.`;
  const after = refused.after === null ? "a value that is not a finite number" : digits(refused.after);
  return `The fastest mix within an error of ${most} would raise the loss on texts of up to ${whole(refused.tokens)} tokens from ${digits(refused.before)} to ${after}, by more than that share.`;
}

/** Whether the whole model gets measurably faster, as far as it was timed. */
function pays({ model_time_interval: interval }: Advice): boolean {
  return interval === null || interval[1] < 1;
}

/** What attention and the whole model gain; a gain that cannot be measured is called so. */
function times(advice: Advice): string {
  const { model_time_ratio: model, model_time_interval: interval, model_time_least: least } = advice;
  const attention = `attention ${timeShare(advice.time_ratio, advice.time_interval)}`;
  if (model === null || interval === null) return attention;
  const doubted = least !== null && model < least && !containsOne(interval);
  const told = doubted ? `takes ${ends(interval)} of its time` : timeShare(model, interval);
  return `${attention}; the whole model ${told}`;
}

function timeShare(ratio: number, interval: Interval): string {
  return containsOne(interval)
    ? `has no measurable gain (it takes ${ends(interval)} of its time)`
    : `takes ${percent(ratio)} of its time (${ends(interval)})`;
}

function ends([low, high]: Interval): string {
  return `${percent(low)} to ${percent(high)}`;
}

/** The loss at the length asked for, and on sentences as they are where that is another. */
function losses({ loss, rise, tried_at, sentence_loss, sentence_rise }: Advice): string {
  const sentences =
    sentence_loss === null || sentence_rise === null
      ? ""
      : `; on single sentences ${fromTo(sentence_loss, sentence_rise)}`;
  return `On texts of up to ${whole(tried_at)} tokens the loss goes ${fromTo(loss, rise)}${sentences}, before any healing.`;
}

function fromTo(loss: number, rise: number): string {
  return `from ${digits(loss)} to ${digits(loss + rise)} (${signed(rise)})`;
}

/** How many times faster, from the slow end to the fast end. */
function speeds(interval: Interval | null): Interval | null {
  return interval === null ? null : [1 / interval[1], 1 / interval[0]];
}

function between(interval: Interval | null): string {
  const speed = speeds(interval);
  return speed === null ? "" : ` (95 % interval ${digits(speed[0])} to ${digits(speed[1])})`;
}

function isChosen(advice: Advice, { slot, spec }: Trial): boolean {
  return advice.chosen[slot] === spec;
}

/** Errors are limited as the root mean square of all layers, so one layer alone may have more than the limit. */
function verdict(advice: Advice, trial: Trial): string {
  if (trial.reason !== null) return `not possible: ${trial.reason}`;
  if (isChosen(advice, trial)) return "advised";
  const mostAlone = advice.max_error * Math.sqrt(advice.present.length);
  if (trial.error !== null && trial.error > mostAlone) return "error too large, even alone";
  if (trial.time_interval === null) return "not in the mix";
  if (containsOne(trial.time_interval)) return "no measurable gain";
  return trial.time_interval[0] > 1 ? "slower" : "not in the mix";
}
