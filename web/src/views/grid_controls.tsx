/** Which heads the grid shows, in which order, in which colours. */
import type { Signal } from "@preact/signals";
import type { JSX } from "preact";
import { rgb, sequential } from "../colour";
import { Choice, Labelled, Picker, toggled } from "../controls";
import type { Kind } from "../contract";
import { digits, headMeasures, headsOf, kindsOf, measureWords, reading } from "../readings";
import { exam } from "../store";
import {
  chooseMeasure,
  chosenColouring,
  colouring,
  extent,
  filtered,
  form,
  least,
  measure,
  most,
  order,
  roles,
  showAll,
  sought,
  visible,
} from "./grid_state";
import { RoleDot } from "./role_dot";
import { formName, formOf, hasRoles, labelOf, roleName, roleNotes } from "./roles";
import { Says } from "./says";

export function GridControls(): JSX.Element {
  const names = headMeasures(exam.value);
  const forms = counted(headsOf(exam.value).map((head) => formOf(exam.value, head)));
  return (
    <div class="grid-controls stack">
      <div class="row">
        {names.length > 0 && (
          <>
            <Picker
              label="Measure"
              options={names.map((name) => ({ value: name, text: measureWords(name) }))}
              value={measure.value}
              onChange={chooseMeasure}
            />
            <Choice
              label="Order"
              options={["layers", "falling", "rising"]}
              words={{ layers: "by layer", falling: "highest first", rising: "lowest first" }}
              value={order.value}
              onChange={(value) => (order.value = value)}
            />
            {hasRoles(exam.value) && (
              <Choice
                label="Colour"
                options={["role", "measure"]}
                value={colouring.value}
                onChange={(value) => (chosenColouring.value = value)}
              />
            )}
          </>
        )}
      </div>
      {names.length > 0 && <MeasureWords />}
      <div class="row">
        <Field label="Find" hint="3.7, previous …" class="field-words" field={sought} />
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
      <RoleLegend />
      {roleNotes(exam.value).map((note) => (
        <p key={note} class="small muted">
          {note}
        </p>
      ))}
      <p class="small muted grid-count" role="status">
        {filtered.value ? `${visible.value.length} of ${headsOf(exam.value).length} heads. ` : ""}
        {filtered.value && (
          <button type="button" class="quiet" onClick={showAll}>
            Show all
          </button>
        )}
      </p>
    </div>
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
      {colouring.value === "measure" && extent.value !== null && (
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

/** Roles with their colours and counts; a click shows only these. */
function RoleLegend(): JSX.Element | null {
  const heads = headsOf(exam.value);
  const kinds = new Map<string, Kind>(heads.map((head) => [labelOf(exam.value, head), head.kind]));
  const labels = counted(heads.map((head) => labelOf(exam.value, head)));
  if (labels.length === 0) return null;
  return (
    <div class="roles" role="group" aria-label="Show only heads of these roles">
      {labels.map(([label, count]) => (
        <button
          key={label}
          type="button"
          class="role"
          aria-pressed={roles.value.has(label)}
          onClick={() => (roles.value = toggled(roles.value, label))}
        >
          <RoleDot label={label} />
          {roleName(label, kinds.get(label) ?? "encoder")} <b>{count}</b>
        </button>
      ))}
    </div>
  );
}

/** Labels with how many heads have them, the most frequent first and "none" last. */
function counted(labels: string[]): [string, number][] {
  const counts = new Map<string, number>();
  for (const label of labels) if (label !== "") counts.set(label, (counts.get(label) ?? 0) + 1);
  return [...counts].sort((a, b) => Number(a[0] === "none") - Number(b[0] === "none") || b[1] - a[1]);
}
