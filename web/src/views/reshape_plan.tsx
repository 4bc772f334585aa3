/** Cost and worth of each head in one plan: which heads to remove for a budget, and what that is predicted to do. */
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { Labelled } from "../controls";
import type { Exam, Receipt } from "../contract";
import { Figure } from "../figure";
import { live } from "../live";
import { Curves } from "../plot";
import { digits, headsOf, ofHead, percent, shown, whole, type HeadName } from "../readings";
import { exam, linkTo, page } from "../store";
import { DataTable } from "../table";
import { explainedShare, formOf, labelOf, roleName } from "./roles";

/** Measures of worth, the best first, and how a sum of them is called. */
const WORTHS = [
  { name: "ablation.change", axis: "predicted rise of the loss", says: "the sum of what single heads cost" },
  {
    name: "importance.gradient",
    axis: "estimated change of the loss",
    says: "the sum of |dL/d gate|, a first-order estimate",
  },
] as const;
type Worth = (typeof WORTHS)[number];

interface Planned {
  head: HeadName;
  worth: number;
  /** Parameters of the head; null where they were not counted. */
  cost: number | null;
}

/** The heads by worth, the smallest first, and those that copy from the context last; null where it was not measured. */
export function planOf(of: Exam): { worth: Worth; heads: Planned[] } | null {
  for (const worth of WORTHS) {
    const heads = headsOf(of).flatMap((head): Planned[] => {
      const value = ofHead(of, worth.name, head);
      const cost = ofHead(of, "cost.parameters", head);
      return typeof value === "number" ? [{ head, worth: value, cost: typeof cost === "number" ? cost : null }] : [];
    });
    const copies = ({ head }: Planned): number => Number(/induc|retri/.test(labelOf(of, head)));
    if (heads.length > 1) return { worth, heads: heads.sort((a, b) => copies(a) - copies(b) || a.worth - b.worth) };
  }
  return null;
}

const budget = signal<number | null>(null);
const FIRST_SHARE = 0.25;

export function PlanPart(): JSX.Element | null {
  const of = page.value.live === null ? exam.value : (live.base.value?.exam ?? exam.value);
  const plan = planOf(of);
  if (plan === null) return null;
  const { worth, heads } = plan;
  const most = heads.length - 1;
  const count = Math.min(budget.value ?? Math.max(1, Math.round(FIRST_SHARE * heads.length)), most);
  const sums = heads.reduce<number[]>((all, one) => [...all, (all.at(-1) ?? 0) + one.worth], [0]);
  const removed = heads.slice(0, count);
  const costs = heads.every(({ cost }) => cost !== null);
  const total = heads.reduce((sum, { cost }) => sum + (cost ?? 0), 0);
  const saved = removed.reduce((sum, { cost }) => sum + (cost ?? 0), 0);
  const measured = page.value.receipts.flatMap((receipt) => measuredBy(receipt, heads.length));
  return (
    <section class="stack" aria-labelledby="reshape-plan">
      <h3 id="reshape-plan">A plan: cost and worth of each head</h3>
      <div class="columns reshape-pair">
        <Figure
          id="plan"
          title="What removing heads is predicted to do"
          words={`Heads with the least worth go first, heads that copy from the context last. The prediction is ${worth.says}.`}
          table={() => ({
            columns: ["heads removed", "head", worth.name, "parameters", worth.axis],
            rows: heads.map(({ head, worth: value, cost }, place) => [
              place + 1,
              shown(of, head),
              value,
              cost,
              sums[place + 1] ?? null,
            ]),
          })}
        >
          <Labelled label="Heads to remove">
            <input
              type="range"
              min={1}
              max={most}
              step={1}
              value={count}
              aria-valuetext={`${count} of ${heads.length} heads`}
              onInput={(event) => (budget.value = Number(event.currentTarget.value))}
            />
            <output>
              {count} of {heads.length}
            </output>
          </Labelled>
          <p class="plan-says" role="status">
            Without these <b>{count}</b> of {heads.length} heads: {worth.axis} <b>{digits(sums[count])}</b>
            {costs && total > 0 && (
              <>
                , <b>{percent(saved / total)}</b> of the parameters of attention saved
              </>
            )}
            .
          </p>
          <Curves
            series={[
              { name: "predicted", points: sums.slice(0, -1).map((y, x) => ({ x, y })) },
              { name: "chosen", points: [{ x: count, y: sums[count] ?? null }], colour: "var(--c1)" },
              ...(measured.length > 0 ? [{ name: "measured, by receipt", points: measured, colour: "var(--c2)" }] : []),
            ]}
            x="heads removed"
            y={worth.axis}
            whole
            zero
            label={`${worth.axis} by the number of heads removed; ${digits(sums[count])} for ${count} heads`}
          />
          <Next removed={removed} of={of} />
        </Figure>
        <Plan of={of} heads={heads} count={count} worth={worth} />
      </div>
    </section>
  );
}

/** The rise that a receipt of pruning measured, if it began with this number of heads. */
function measuredBy(receipt: Receipt, heads: number): { x: number; y: number }[] {
  const { heads_before: before, heads_cut: cut } = receipt.facts;
  return receipt.reshape === "prune" && before === heads && cut !== undefined
    ? [{ x: cut, y: receipt.loss.after - receipt.loss.before }]
    : [];
}

/** On the live page a button that does it; else the command. */
function Next({ removed, of }: { removed: Planned[]; of: Exam }): JSX.Element {
  if (page.value.live !== null && page.value.live.reshape === true) {
    const names = removed.map(({ head }) => head.name);
    return (
      <button type="button" onClick={() => live.change({ ...live.changes.value, cut: names })}>
        Cut these {names.length} heads
      </button>
    );
  }
  return (
    <p>
      Next:{" "}
      <code>{`attnworks prune MODEL --heads "${removed.map(({ head }) => shown(of, head)).join(",")}" --out NEW`}</code>
    </p>
  );
}

function Plan(props: { of: Exam; heads: Planned[]; count: number; worth: Worth }): JSX.Element {
  const { of, heads, count, worth } = props;
  const advice = (planned: Planned, place: number): string => {
    const form = formOf(of, planned.head);
    const more = ["keys", "values"].filter((kind) => Number(ofHead(of, `bottleneck.${kind}`, planned.head)) > 0);
    if (place < count) return "remove";
    if (more.length > 0) return `grow ${more.join(" and ")}`;
    if (form !== "" && form !== "none" && planned.head.kind !== "cross")
      return `keep, or a fixed form (explains ${explainedShare(of, planned.head) ?? "-"})`;
    return "keep";
  };
  return (
    <div class="card">
      <DataTable
        caption="The plan, head by head"
        columns={[
          { name: "head" },
          { name: "role" },
          { name: worth.name === "ablation.change" ? "loss without it" : "sensitivity", numeric: true },
          ...(heads.some(({ cost }) => cost !== null) ? [{ name: "parameters", numeric: true }] : []),
          { name: "plan" },
        ]}
        rows={heads.map((planned, place) => ({
          key: planned.head.name,
          cells: [
            shown(of, planned.head),
            labelOf(of, planned.head) === "" ? "-" : roleName(labelOf(of, planned.head), planned.head.kind),
            planned.worth,
            ...(planned.cost === null ? [] : [whole(planned.cost)]),
            advice(planned, place),
          ],
          href: linkTo("head", planned.head.name),
        }))}
        limit={12}
      />
    </div>
  );
}
