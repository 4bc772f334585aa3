/** What was done to the model: what was predicted, and what was measured. */
import type { JSX } from "preact";
import type { Interval, Receipt } from "../contract";
import { Figure, type Table } from "../figure";
import { containsOne, digits, percent, whole, signed } from "../readings";
import { exam, page } from "../store";
import { Timeline } from "./reshape_timeline";
import { LossDots } from "./loss_dots";

export function ReceiptsPart({ receipts }: { receipts: Receipt[] }): JSX.Element {
  return (
    <section class="stack" aria-labelledby="reshape-receipts">
      <h3 id="reshape-receipts">Receipts: predicted and measured</h3>
      {receipts.length === 0 ? (
        <NoReceipts />
      ) : (
        <>
          <Timeline receipts={receipts} />
          <ol class="columns reshape-receipts">
            {receipts.map((receipt, place) => (
              <li key={place}>
                <ReceiptCard receipt={receipt} place={place} />
              </li>
            ))}
          </ol>
        </>
      )}
    </section>
  );
}

/** Only the live page knows that a model was not reshaped, because it reads the folder of the model. */
function NoReceipts(): JSX.Element {
  const done = exam.value.model.lineage?.reshapes ?? [];
  if (done.length > 0) {
    return (
      <p>
        This model was reshaped: {done.join("; ")}. <code>attnworks report EXAM --model FOLDER</code> shows the receipts
        in its folder here.
      </p>
    );
  }
  const isLive = page.value.live !== null;
  return (
    <p class="muted">
      {isLive ? "This model was not reshaped: its folder holds no receipts." : "No receipts were given."}{" "}
      <code>attnworks prune MODEL --keep 0.75 --out NEW</code> (or <code>project</code>, <code>swap</code>,{" "}
      <code>grow</code>) makes a new model with a receipt;{" "}
      <code>{isLive ? "attnworks serve NEW" : "attnworks report EXAM --model NEW"}</code> shows it here.
    </p>
  );
}

function ReceiptCard({ receipt, place }: { receipt: Receipt; place: number }): JSX.Element {
  const done = Object.entries(receipt.done).sort(([one], [other]) => inModel(one, other));
  return (
    <Figure
      id={`receipt-${place + 1}`}
      title={`${place + 1}. ${receipt.title}`}
      words={said(receipt)}
      table={() => tableOf(receipt)}
    >
      {receipt.warnings.length > 0 && (
        <ul class="reshape-warnings" aria-label="Warnings">
          {receipt.warnings.map((warning) => (
            <li key={warning}>{warning}</li>
          ))}
        </ul>
      )}
      {receipt.loss_at_length !== null && (
        <>
          <p class="small">Loss on {textsOf(receipt.loss_at_length.tokens)}</p>
          <LossDots loss={receipt.loss_at_length} name={`Loss on ${textsOf(receipt.loss_at_length.tokens)}`} />
          <p class="small">Loss on single sentences</p>
        </>
      )}
      <LossDots loss={receipt.loss} name="Loss" />
      <Sizes receipt={receipt} />
      <details open={done.length <= 8}>
        <summary>
          {done.length === 0
            ? "Nothing was changed"
            : `Changes in ${done.length} ${done.length === 1 ? "place" : "places"}`}
        </summary>
        <ul class="reshape-done">
          {done.map(([where, what]) => (
            <li key={where}>
              <span class="reshape-where">{where}</span> {what}
            </li>
          ))}
        </ul>
      </details>
      <Facts facts={receipt.facts} />
      <p class="small muted">
        This change took {digits(receipt.seconds)} s. FLOPs are those of attention over {whole(receipt.length)} tokens.
      </p>
    </Figure>
  );
}

function textsOf(tokens: number): string {
  return `texts of up to ${whole(tokens)} tokens`;
}

function tableOf({ loss, loss_at_length: long, parameters, flops, bytes, time, scores }: Receipt): Table {
  return {
    columns: ["quantity", "before", "predicted", "after", "healed"],
    rows: [
      ["loss", loss.before, loss.predicted, loss.after, loss.healed],
      ...(long === null
        ? []
        : [[`loss on ${textsOf(long.tokens)}`, long.before, long.predicted, long.after, long.healed]]),
      ["parameters", parameters.before, null, parameters.after, null],
      ["attention FLOPs", flops.before, null, flops.after, null],
      ...(bytes === null ? [] : [["bytes", bytes.before, null, bytes.after, null]]),
      ...(time === null ? [] : [["time of a forward pass", 1, null, time, null]]),
      ...Object.entries(scores).map(([name, score]) => [name, score.before, null, score.after, score.healed]),
    ],
  };
}

/** Encoder, decoder, cross-attention; 2 before 10. */
function inModel(one: string, other: string): number {
  const kind = (where: string): number => ["enc", "dec", "cross"].indexOf(where.split(".")[0] ?? "");
  return kind(one) - kind(other) || one.localeCompare(other, "en", { numeric: true });
}

/** The predicted and the measured loss in words, at the requested length if there is one. */
function said({ loss: ofSentences, loss_at_length: long, objective }: Receipt): string {
  const loss = long ?? ofSentences;
  const where = long === null ? "" : ` on ${textsOf(long.tokens)}`;
  const [expected, came] = [loss.predicted - loss.before, loss.after - loss.before];
  const rise = loss.intervals?.rise ?? null;
  const sure = rise === null ? "" : ` (95 % interval of the change ${signed(rise[0])} to ${signed(rise[1])})`;
  const healed =
    loss.healed === null
      ? ""
      : ` Healing brought it to ${digits(loss.healed)}, ${loss.healed <= loss.before ? "below" : "above"} the original loss.`;
  return (
    `The loss (${objective})${where} was predicted to ${moves(expected)} and ${came === expected ? "did so" : moved(came)}${sure}: ` +
    `the prediction was off by ${digits(Math.abs(loss.after - loss.predicted))}.${healed}`
  );
}

function moves(by: number): string {
  return by === 0 ? "stay the same" : `${by > 0 ? "rise" : "fall"} by ${digits(Math.abs(by))}`;
}

function moved(by: number): string {
  return by === 0 ? "stayed the same" : `${by > 0 ? "rose" : "fell"} by ${digits(Math.abs(by))}`;
}

function Sizes({ receipt }: { receipt: Receipt }): JSX.Element {
  const sizes = [
    { name: "parameters", ...receipt.parameters },
    { name: "attention FLOPs", ...receipt.flops },
    ...(receipt.bytes === null ? [] : [{ name: "bytes", ...receipt.bytes }]),
  ];
  return (
    <table class="reshape-sizes">
      <caption class="visually-hidden">Sizes, time and scores before and after</caption>
      <thead>
        <tr>
          <td />
          <th scope="col" class="num">
            before
          </th>
          <th scope="col" class="num">
            after
          </th>
          <th scope="col" class="num">
            change
          </th>
        </tr>
      </thead>
      <tbody>
        {sizes.map(({ name, before, after }) => (
          <SizeRow key={name} name={name} before={whole(before)} after={whole(after)} change={share(before, after)} />
        ))}
        {receipt.time !== null && (
          <SizeRow
            name="time of a forward pass"
            before="1"
            after={digits(receipt.time)}
            change={timeChange(receipt.time, receipt.time_interval)}
          />
        )}
        {Object.entries(receipt.scores).map(([name, { before, after, healed }]) => (
          <SizeRow
            key={name}
            name={name}
            before={digits(before)}
            after={digits(after)}
            healed={healed === null ? null : digits(healed)}
            change={signed((healed ?? after) - before)}
          />
        ))}
      </tbody>
    </table>
  );
}

function SizeRow(props: {
  name: string;
  before: string;
  after: string;
  healed?: string | null;
  change: string;
}): JSX.Element {
  return (
    <tr>
      <th scope="row">{props.name}</th>
      <td class="num">{props.before}</td>
      <td class="num">
        {props.after}
        {typeof props.healed === "string" && <span class="reshape-healed">healed {props.healed}</span>}
      </td>
      <td class="num">{props.change}</td>
    </tr>
  );
}

function Facts({ facts }: { facts: Record<string, number> }): JSX.Element | null {
  const known = Object.entries(facts);
  if (known.length === 0) return null;
  return (
    <details>
      <summary>Further numbers</summary>
      <table class="reshape-sizes">
        <tbody>
          {known.map(([name, value]) => (
            <tr key={name}>
              <th scope="row">{name.replaceAll("_", " ")}</th>
              <td class="num">{digits(value)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </details>
  );
}

/** If the interval contains 1, there is no measurable change. */
function timeChange(time: number, interval: Interval | null): string {
  if (interval === null) return share(1, time);
  const ends = `95 % interval ${digits(interval[0])} to ${digits(interval[1])}`;
  return containsOne(interval) ? `no measurable change (${ends})` : `${share(1, time)} (${ends})`;
}

function share(before: number, after: number): string {
  return before === 0 ? "-" : `${after > before ? "+" : ""}${percent(after / before - 1)}`;
}
