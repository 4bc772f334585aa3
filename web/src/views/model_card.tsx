/** Which model was examined, on which text. */
import type { JSX } from "preact";
import type { Exam, Kind } from "../contract";
import { capital, KIND_WORDS, kindsOf, layersOf, slotName, whole } from "../readings";
import { exam, page } from "../store";
import "./model_card.css";

export function ModelCard(): JSX.Element {
  const of = exam.value;
  const facts = [...modelFacts(of), ...corpusFacts(of)];
  const notes = [...of.notes, ...page.value.remarks];
  return (
    <section class="card model-card" aria-labelledby="model-title">
      <h3 id="model-title">{of.model.name || "The model"}</h3>
      <dl class="terms">
        {facts.map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
      </dl>
      {notes.length > 0 && (
        <ul class="small muted notes">
          {notes.map((note) => (
            <li key={note}>{note}</li>
          ))}
        </ul>
      )}
    </section>
  );
}

function modelFacts(of: Exam): [string, string][] {
  const { model } = of;
  const architecture = [model.class, model.family && `family ${model.family}`].filter(Boolean).join(", ");
  return [
    ...fact("Architecture", architecture || null),
    ...kindsOf(of).map((kind): [string, string] => [capital(KIND_WORDS[kind]), layersWords(of, kind)]),
    ...fact("Parameters", model.parameters === undefined ? null : whole(model.parameters)),
    ...fact("Precision", model.dtype ?? null),
    ...fact("Reshaped", model.lineage?.reshapes.join("; ") ?? null),
  ];
}

/** "6 layers of 12 heads", or "6 layers of 3 to 12 heads". */
function layersWords(of: Exam, kind: Kind): string {
  const counts = layersOf(of, kind).map((layer) => of.model.heads[slotName(kind, layer)] ?? 0);
  const [fewest, most] = [Math.min(...counts), Math.max(...counts)];
  if (counts.length === 0) return "no heads";
  return `${counted(counts.length, "layer")} of ${fewest === most ? counted(most, "head") : `${fewest} to ${most} heads`}`;
}

function corpusFacts(of: Exam): [string, string][] {
  const { corpus } = of;
  const sizes = [
    ...(corpus.sentences === undefined ? [] : [counted(corpus.sentences, "sentence")]),
    ...(corpus.tokens === undefined ? [] : [counted(corpus.tokens, "token")]),
    ...(corpus.longest === undefined ? [] : [`the longest sentence has ${whole(corpus.longest)}`]),
    ...(corpus.dropped ? [`${whole(corpus.dropped)} left out`] : []),
  ];
  return [...fact("Examined on", corpus.name ?? null), ...fact("Text", sizes.join(", ") || null)];
}

function fact(name: string, value: string | null): [string, string][] {
  return value === null ? [] : [[name, value]];
}

function counted(count: number, thing: string): string {
  return `${whole(count)} ${thing}${count === 1 ? "" : "s"}`;
}
