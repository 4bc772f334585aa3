/** The receipts of a model as a line: what each step did to the loss, to scores and to the size. */
import type { JSX } from "preact";
import type { Receipt } from "../contract";
import { digits, percent } from "../readings";

/** BLEU 63.8 → 66.0, 13 % fewer parameters */
function resultOf({ loss, scores, parameters }: Receipt): string {
  const quality = Object.entries(scores).map(
    ([name, score]) => `${name} ${digits(score.before)} → ${digits(score.healed ?? score.after)}`,
  );
  const change = parameters.before === 0 ? 0 : parameters.after / parameters.before - 1;
  return [
    `loss ${digits(loss.before)} → ${digits(loss.healed ?? loss.after)}${loss.healed === null ? "" : " after healing"}`,
    ...quality,
    ...(change === 0 ? [] : [`${percent(Math.abs(change))} ${change < 0 ? "fewer" : "more"} parameters`]),
  ].join("; ");
}

export function Timeline({ receipts }: { receipts: Receipt[] }): JSX.Element {
  const [first, last] = [receipts[0]!, receipts.at(-1)!];
  return (
    <div class="card">
      <ol class="timeline">
        {receipts.map((receipt, place) => (
          <li key={place}>
            <a href={`#receipt-${place + 1}`} onClick={(event) => reach(event, place)}>
              {receipt.title}
            </a>
            <span class="small muted">{resultOf(receipt)}</span>
          </li>
        ))}
      </ol>
      {receipts.length > 1 && (
        <p class="small">
          In all: {digits(first.parameters.before)} → {digits(last.parameters.after)} parameters, loss{" "}
          {digits(first.loss.before)} → {digits(last.loss.healed ?? last.loss.after)}.
        </p>
      )}
    </div>
  );
}

/** The part behind # names a view, so the page scrolls there itself. */
function reach(event: Event, place: number): void {
  event.preventDefault();
  document.getElementById(`receipt-${place + 1}`)?.scrollIntoView({ block: "start", behavior: "smooth" });
}
