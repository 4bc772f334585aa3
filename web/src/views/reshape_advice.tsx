/** Cheaper attention: the error of every mechanism in every layer against the time it saves, and the mix to take. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { Choice } from "../controls";
import type { Advice } from "../contract";
import { Figure } from "../figure";
import { Scatter } from "../plot";
import { digits, percent } from "../readings";
import { DataTable } from "../table";

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
          No advice was given to this page. <code>attnworks advise MODEL --n 1024 --json &gt; advice.json</code> tries
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
    columns: ["layer", "mechanism", "error", "times faster", "seconds", "FLOPs", "chosen", "why not"],
    rows: trials.map((trial) => [
      trial.slot,
      trial.spec,
      trial.error,
      faster(trial),
      trial.seconds,
      trial.flops,
      isChosen(advice, trial) ? "yes" : "",
      trial.reason ?? "",
    ]),
  });
  return (
    <>
      <Verdict advice={advice} />
      <div class="columns reshape-pair reshape-even">
        <Figure
          id="reshape-advice-plot"
          title={`Error and speed at ${advice.length.toLocaleString("en-US")} positions`}
          words={
            <>
              A point is a mechanism in a layer: good ones are to the left and high. Rings mark the mix that is advised.
              The line is the error that a mix may have over all layers, as root mean square:{" "}
              {percent(advice.max_error)}; one layer may be to the right of it if others keep what they have. Errors are
              relative ones of attention, measured on text of {advice.tried_at} tokens.
            </>
          }
          table={table}
        >
          {parts.length > 2 && <Choice label="Layers" options={parts} value={part} words={KINDS} onChange={setPart} />}
          <Scatter
            points={tried.map((trial) => ({
              x: Math.max(SMALLEST, trial.error),
              y: trial.speed,
              name: `${trial.spec} in ${trial.slot}: error ${digits(trial.error)}, ${digits(trial.speed)} x as fast`,
              group: trial.spec.split(":")[0] ?? trial.spec,
              ring: isChosen(advice, trial),
            }))}
            x="relative error of attention"
            y="times faster"
            logX
            logY
            {...(advice.max_error > 0 ? { lineX: advice.max_error } : {})}
            label="Error of attention against speed, a point for every mechanism in every layer"
          />
        </Figure>
        <div class="card">
          <DataTable
            caption="All that was tried"
            columns={[
              { name: "layer" },
              { name: "mechanism" },
              { name: "error", numeric: true, words: "relative error of the output of attention" },
              { name: "times faster", numeric: true },
              { name: "verdict" },
            ]}
            rows={trials.map((trial) => ({
              key: `${trial.slot} ${trial.spec}`,
              cells: [trial.slot, trial.spec, trial.error, faster(trial), verdict(advice, trial, faster(trial))],
            }))}
            limit={16}
          />
        </div>
      </div>
    </>
  );
}

function Verdict({ advice }: { advice: Advice }): JSX.Element {
  const mix = Object.entries(advice.chosen);
  return (
    <div class="card">
      {mix.length === 0 ? (
        <p>
          <strong>Leave {advice.model} as it is.</strong> No mix of these mechanisms saves time and keeps the error over
          all layers, and the rise of the loss, within {percent(advice.max_error)}.
        </p>
      ) : (
        <>
          <p>
            <strong>
              {mix.length === 1 ? "One layer" : `${mix.length} layers`} can be swapped: attention takes{" "}
              {percent(advice.time_ratio)} of its time
              {advice.model_time_ratio !== null && `, the whole model ${percent(advice.model_time_ratio)}`}.
            </strong>{" "}
            The error over all layers is {percent(advice.error)}, of at most {percent(advice.max_error)}; the loss goes
            from {digits(advice.loss)} to {digits(advice.loss + advice.rise)} before any healing.
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
              To do it: <code>{advice.command}</code>
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

function isChosen(advice: Advice, { slot, spec }: Trial): boolean {
  return advice.chosen[slot] === spec;
}

/** Errors are limited as the root mean square of all layers, so one layer alone may have more than the limit. */
function verdict(advice: Advice, trial: Trial, faster: number | null): string {
  if (trial.reason !== null) return `cannot be: ${trial.reason}`;
  if (isChosen(advice, trial)) return "advised";
  const mostAlone = advice.max_error * Math.sqrt(advice.present.length);
  if (trial.error !== null && trial.error > mostAlone) return "error too large, even alone";
  return faster !== null && faster < 1 ? "slower" : "not in the mix";
}
