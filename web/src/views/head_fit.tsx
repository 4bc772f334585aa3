/** How near a head is to a structured form: the head, the nearest map of that form, and the difference. */
import type { JSX } from "preact";
import { useMemo } from "preact/hooks";
import { slotOf } from "../blobs";
import type { Exam, Pin } from "../contract";
import { Figure } from "../figure";
import { Heatmap } from "../heatmap";
import { Bars } from "../plot";
import type { HeadName } from "../readings";
import { capital, digits, ofHead, shown, sides } from "../readings";
import { exam } from "../store";
import { closestForm, closestName, formName, formOf, formWords, noFormSentence } from "./roles";

const FAMILIES = ["even", "identity", "offset", "column", "columns", "band", "permutation", "map"];

export function HeadFit(props: { pin: Pin; head: HeadName; map: Float32Array; fit: Float32Array }): JSX.Element {
  const { pin, head, map, fit } = props;
  const { rows, columns } = sides(pin, head.kind);
  const difference = useMemo(() => map.map((weight, i) => weight - (fit[i] ?? 0)), [map, fit]);
  const fits = slotOf(pin, head)?.fits ?? null;
  const form = fits?.forms[head.head] ?? "";
  const error = fits?.errors[head.head] ?? null;
  const words = formWords(exam.value, form, head.kind);
  const name = form === closestForm(exam.value, head) ? closestName(exam.value, head, form) : formName(form);
  const none = noFormSentence(exam.value, head);
  const panels: [string, Float32Array][] = [
    ["The head", map],
    [`Closest ${name}`, fit],
    ["Difference", difference],
  ];
  return (
    <Figure
      id="fit"
      about={{ head, sentence: pin.tokens }}
      title={`Closest structured form: ${name}${words ? ` (${words})` : ""}`}
      words={
        <>
          The error on this sentence is {digits(error)} per query: 0 is a perfect fit, 2 the worst.{" "}
          {none !== null && `Over all sentences: ${none}. `}
          In the difference, violet is where the head attends more than the form, orange where it attends less; the
          colour scale ends at the largest difference.
        </>
      }
      table={() => ({
        columns: ["query token", "key token", "head", form || "form", "difference"],
        rows: rows.flatMap((query, row) =>
          columns.map((key, column) => {
            const i = row * columns.length + column;
            return [query, key, map[i] ?? null, fit[i] ?? null, difference[i] ?? null];
          }),
        ),
      })}
    >
      <div class="columns fit-maps">
        {panels.map(([title, values]) => (
          <div key={title}>
            <h4>{title}</h4>
            <Heatmap
              values={values}
              rows={rows}
              columns={columns}
              {...(values === difference ? { scale: "diverging" } : { gamma: true })}
              height={360}
              label={`${title}, head ${shown(exam.value, head)}`}
            />
          </div>
        ))}
      </div>
    </Figure>
  );
}

/** Errors of all forms, from all sentences examined; null where structure was not measured. */
export function HeadForms({ head }: { head: HeadName }): JSX.Element | null {
  const of = exam.value;
  const errors = formErrors(of, head);
  const nothing = ofHead(of, "structure.zero", head);
  if (errors.length === 0) return null;
  const best = formOf(of, head);
  const none = noFormSentence(of, head);
  return (
    <Figure
      id="forms"
      about={{ head }}
      title="Fit of each structured form"
      words={
        <>
          Error per query, mean over all sentences: 0 is a perfect fit, 2 the worst.{" "}
          {typeof nothing === "number" && `The dashed line is the error of a map of zeros (${digits(nothing)}). `}More
          flexible forms always fit better.{" "}
          {none === null
            ? "The highlighted form fits best when all forms are given the same description length."
            : `${capital(none)}.`}
        </>
      }
      table={() => ({
        columns: ["form", "error", "description"],
        rows: errors.map(([form, error]) => [formName(form), error, formWords(of, form, head.kind)]),
      })}
    >
      <Bars
        bars={errors.map(([form, value]) => ({
          name: form === best ? `${formName(form)} (chosen)` : formName(form),
          value,
          colour: form === best ? "var(--c0)" : "var(--none)",
        }))}
        x="error"
        label={`Errors of structured forms for head ${shown(of, head)}`}
        {...(typeof nothing === "number" ? { reference: { value: nothing, name: "map of zeros" } } : {})}
      />
    </Figure>
  );
}

/** The smallest first. */
function formErrors(of: Exam, head: HeadName): [string, number][] {
  return FAMILIES.flatMap((form): [string, number][] => {
    const error = ofHead(of, `structure.${form}`, head);
    return typeof error === "number" ? [[form, error]] : [];
  }).sort((a, b) => a[1] - b[1]);
}
