/** Which heads the grid shows, in which order, in which colours; and what its colours mean. */
import type { Signal } from "@preact/signals";
import type { JSX } from "preact";
import { rgb, sequential } from "../colour";
import { Choice, Labelled, Picker, toggled } from "../controls";
import type { Kind } from "../contract";
import { digits, headMeasures, headsOf, kindsOf, measureWords, reading } from "../readings";
import { exam } from "../store";
import {
  chooseMeasure,
  chooseOrder,
  extent,
  filled,
  filtered,
  form,
  least,
  measure,
  most,
  order,
  orders,
  roles,
  showAll,
  sought,
  visible,
  weighting,
} from "./grid_state";
import { RoleDot } from "./role_dot";
import { formName, formOf, hasRoles, roleLabel, roleName, roleNotes, sinkOf } from "./roles";
import { Says } from "./says";

export function GridControls(): JSX.Element {
  const names = headMeasures(exam.value);
  return (
    <div class="grid-controls">
      <div class="row">
        <Choice
          label="Order"
          options={orders.value}
          words={{ layers: "by layer", similar: "similar together", work: "most work first" }}
          value={order.value}
          onChange={chooseOrder}
        />
        <Field label="Find" hint="3.7, previous …" class="field-words" field={sought} />
        <span class="small muted" role="status">
          {filtered.value ? `${visible.value.length} of ${headsOf(exam.value).length} heads ` : ""}
        </span>
        {filtered.value && (
          <button type="button" class="quiet" onClick={showAll}>
            Show all
          </button>
        )}
      </div>
      {names.length > 0 && <Measures names={names} />}
    </div>
  );
}

/** Order, colour and filters by any measure, folded. */
function Measures({ names }: { names: string[] }): JSX.Element {
  const forms = counted(headsOf(exam.value).map((head) => formOf(exam.value, head)));
  return (
    <details class="grid-more">
      <summary class="small muted">Measures and filters</summary>
      <div class="row">
        <Picker
          label="Measure"
          options={names.map((name) => ({ value: name, text: measureWords(name) }))}
          value={measure.value}
          onChange={chooseMeasure}
        />
        <Choice
          label="Order"
          options={["falling", "rising"]}
          words={{ falling: "highest first", rising: "lowest first" }}
          value={order.value === "rising" || order.value === "falling" ? order.value : ("" as "falling")}
          onChange={chooseOrder}
        />
        <Choice
          label="Tiles"
          options={["maps", "measure"]}
          value={filled.value ? "measure" : "maps"}
          onChange={(value) => (filled.value = value === "measure")}
        />
        {exam.value.work !== null && (
          <Choice
            label="Work"
            options={["opacity", "size", "none"]}
            words={{ opacity: "as opacity", size: "as size", none: "not shown" }}
            value={weighting.value}
            onChange={(value) => (weighting.value = value)}
          />
        )}
        {forms.length > 1 && (
          <Picker
            label="Form"
            options={[
              { value: "", text: "any" },
              ...forms.map(([name, count]) => ({ value: name, text: `${formName(name)} (${count})` })),
            ]}
            value={form.value}
            onChange={(value) => (form.value = value)}
          />
        )}
        {extent.value !== null && (
          <>
            <Field label="At least" hint={digits(extent.value[0])} class="field-number" numeric field={least} />
            <Field label="At most" hint={digits(extent.value[1])} class="field-number" numeric field={most} />
          </>
        )}
      </div>
      <MeasureWords />
    </details>
  );
}

function Field(props: {
  label: string;
  hint: string;
  class: string;
  numeric?: boolean;
  field: Signal<string>;
}): JSX.Element {
  return (
    <Labelled label={props.label}>
      <input
        type="text"
        class={props.class}
        inputMode={props.numeric ? "decimal" : "text"}
        value={props.field.value}
        placeholder={props.hint}
        onInput={(event) => (props.field.value = event.currentTarget.value)}
      />
    </Labelled>
  );
}

/** What the measure means, and the scale of its colours. */
function MeasureWords(): JSX.Element {
  const found = kindsOf(exam.value)
    .map((kind) => reading(exam.value, measure.value, kind))
    .find((one) => one !== null);
  return (
    <p class="small muted measure-words">
      {found && (
        <span>
          <b>{measureWords(measure.value).replace(":", "")}</b> – <Says of={found} />
        </span>
      )}
      {filled.value && extent.value !== null && (
        <span class="scale">
          {digits(extent.value[0])}
          {Array.from({ length: 12 }, (_, step) => (
            <i key={step} style={{ background: rgb(sequential(step / 11)) }} />
          ))}
          {digits(extent.value[1])}
        </span>
      )}
    </p>
  );
}

/** Roles and sinks with their signs and counts; a click shows only these. */
export function Legend(): JSX.Element {
  const of = exam.value;
  const heads = headsOf(of);
  const kinds = new Map<string, Kind>(heads.map((head) => [roleLabel(of, head), head.kind]));
  const labels = counted(heads.map((head) => roleLabel(of, head)));
  const sinks = counted(heads.map((head) => sinkOf(of, head)));
  return (
    <div class="grid-legend">
      {hasRoles(of) && (
        <div class="roles" role="group" aria-label="Show only heads of these roles">
          {labels.map(([label, count]) => (
            <Role key={label} name={label} count={count} sign={<RoleDot label={label} />}>
              {roleName(label, kinds.get(label) ?? "encoder")}
            </Role>
          ))}
          {sinks.map(([sink, count]) => (
            <Role key={sink} name={`sink ${sink}`} count={count} sign={<i class="sink-mark" />}>
              {roleName(sink, "encoder")}
            </Role>
          ))}
        </div>
      )}
      {roleNotes(of).map((note) => (
        <p key={note} class="small muted">
          {note}
        </p>
      ))}
    </div>
  );
}

function Role(props: { name: string; count: number; sign: JSX.Element; children: string }): JSX.Element {
  const { name, count } = props;
  return (
    <button
      type="button"
      class="role"
      aria-pressed={roles.value.has(name)}
      onClick={() => (roles.value = toggled(roles.value, name))}
    >
      {props.sign}
      {props.children} <b>{count}</b>
    </button>
  );
}

/** Labels with how many heads have them, the most frequent first and "none" last. */
function counted(labels: string[]): [string, number][] {
  const counts = new Map<string, number>();
  for (const label of labels) if (label !== "") counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].sort((a, b) => Number(a[0] === "none") - Number(b[0] === "none") || b[1] - a[1]);
}
