/** Two examinations side by side: what differs, how certain it is, and where to see it. */
import type { JSX } from "preact";
import type { Comparison, Exam, HeadMatch, Kind } from "../contract";
import { live } from "../live";
import { baseName } from "../caption";
import { capital, KIND_WORDS, SHORT, whole } from "../readings";
import { page } from "../store";
import { DataTable } from "../table";
import "./compare.css";
import { Changes, Roles } from "./compare_changes";
import { DepthCompared } from "./compare_depth";
import { HeadsCompared } from "./compare_heads";
import { MeasuresCompared } from "./compare_measures";
import { SlopesCompared } from "./compare_slopes";
import { MapsCompared } from "./compare_maps";

export function CompareView(): JSX.Element {
  const [before, after] = page.value.exams;
  const { comparison } = page.value;
  return (
    <section class="compare whole-words stack">
      <h2>Compare</h2>
      {before === undefined || after === undefined || comparison === null ? (
        <HowToCompare />
      ) : (
        <>
          <Headline before={before} after={after} comparison={comparison} />
          <SlopesCompared before={before} after={after} matches={comparison.heads.matches} />
          <MeasuresCompared comparison={comparison} />
          <Roles after={after} roles={comparison.roles} />
          <HeadsCompared before={before} after={after} matches={comparison.heads.matches} />
          <MapsCompared before={before} after={after} comparison={comparison} />
          <DepthCompared before={before} after={after} comparison={comparison} />
          <details>
            <summary>All {whole(comparison.changes.length)} measurements that differ</summary>
            <Changes after={after} changes={comparison.changes} />
          </details>
          <Uncompared before={before} after={after} comparison={comparison} />
        </>
      )}
    </section>
  );
}

function HowToCompare(): JSX.Element {
  if (live.changed.value) return <p class="muted">Waiting for the original model …</p>;
  return (
    <p>
      Nothing has been changed yet. Cut, project or swap heads in the Reshape view; the original and the changed model
      are then compared here.
    </p>
  );
}

/** The verdict in words, and below it how much was compared. */
function Headline({ before, after, comparison }: { before: Exam; after: Exam; comparison: Comparison }): JSX.Element {
  const { changes, roles, heads, compared, verdict } = comparison;
  const judged = changes.some((change) => change.certain !== null);
  const certain = changes.filter((change) => change.certain).length;
  const counts = [
    `${whole(compared)} measurements in common, ${whole(changes.length)} differ${judged ? ` (${whole(certain)} significantly)` : ""}`,
    `${whole(heads.compared)} heads compared`,
    ...(heads.cut > 0 ? [`${whole(heads.cut)} heads cut`] : []),
    ...(heads.new > 0 ? [`${whole(heads.new)} new heads`] : []),
    ...(heads.not_compared > 0 ? [`${whole(heads.not_compared)} heads not compared`] : []),
    ...(heads.roles_compared > 0
      ? [`${whole(roles.length)} of ${whole(heads.roles_compared)} compared heads have a different role`]
      : []),
  ];
  const said = comparison.nothing_changed ? "Nothing changed: all measurements are the same." : sentence(verdict);
  return (
    <div>
      <p class="muted">
        {baseName(before.label)} → {baseName(after.label)}
      </p>
      {said !== "" && <p class="compare-verdict">{said}</p>}
      <p class="compare-counts small muted">
        {counts.join("; ")}.{judged && " Significant: at a false discovery rate of 5 % over all measurements."}
      </p>
    </div>
  );
}

function sentence(clauses: string[]): string {
  return clauses.length === 0 ? "" : `${capital(clauses.join("; ").replaceAll(" -> ", " → "))}.`;
}

/** One line that opens: heads without a match, notes, and the two examinations. */
function Uncompared(props: { before: Exam; after: Exam; comparison: Comparison }): JSX.Element {
  const { before, after, comparison } = props;
  const apart = comparison.heads.matches.filter(({ state }) => state !== "compared").length;
  const parts = [
    ...(apart > 0 ? [`${whole(apart)} heads`] : []),
    ...(comparison.notes.length > 0 ? [`${whole(comparison.notes.length)} notes`] : []),
    "the two examinations",
  ];
  return (
    <details class="compare-rest">
      <summary>What cannot be compared: {parts.join(", ")}</summary>
      <div class="stack">
        <HeadsOfOne before={before} after={after} matches={comparison.heads.matches} />
        <Notes notes={comparison.notes} />
        <Sides before={before} after={after} />
      </div>
    </details>
  );
}

/** What the models and the texts do not have in common. */
function Sides({ before, after }: { before: Exam; after: Exam }): JSX.Element | null {
  const other = described(after);
  const facts = described(before).map(([what, one], place) => [what, one, other[place]![1]]);
  const rows = facts.filter(([, one, two]) => one !== two);
  if (rows.length === 0) return null;
  return (
    <div class="card">
      <DataTable
        caption="The two examinations"
        columns={["what differs", "before", "after"].map((name) => ({ name }))}
        rows={rows.map(([what, one, two]) => ({ key: what!, cells: [what!, one || "-", two || "-"] }))}
      />
    </div>
  );
}

function described({ label, model, corpus }: Exam): [string, string][] {
  const text = (value: unknown) => (typeof value === "number" ? whole(value) : typeof value === "string" ? value : "");
  const kinds = Object.entries(model.layers) as [Kind, number][];
  const heads = (kind: Kind) =>
    Object.entries(model.heads).reduce(
      (sum, [slot, count]) => (slot.startsWith(`${SHORT[kind]}.`) ? sum + count : sum),
      0,
    );
  return [
    ["examination", label],
    ["model", baseName(model.name)],
    ["class", text(model.class)],
    ["layers", kinds.map(([kind, count]) => `${count} ${KIND_WORDS[kind]}`).join(", ")],
    ["heads", kinds.map(([kind]) => `${heads(kind)} ${KIND_WORDS[kind]}`).join(", ")],
    ["parameters", text(model.parameters)],
    ["reshaped", model.lineage?.reshapes.join("; ") ?? ""],
    ["precision", text(model.dtype)],
    ["run without", Array.isArray(model["without"]) ? model["without"].join(", ") : ""],
    ["text", text(corpus.name)],
    ["sentences", text(corpus.sentences)],
    ["tokens", text(corpus.tokens)],
  ];
}

/** Heads that were cut, heads that are new, and heads without a match in the other model. */
function HeadsOfOne({
  before,
  after,
  matches,
}: {
  before: Exam;
  after: Exam;
  matches: HeadMatch[];
}): JSX.Element | null {
  const named = (state: HeadMatch["state"], side: "before" | "after"): string[] =>
    matches.flatMap((match) => (match.state === state && match[side] !== null ? [match[side]] : []));
  const lists: [string, string[]][] = [
    [`Cut from ${after.label}`, named("cut", "before")],
    [`Cut from ${before.label}`, named("cut", "after")],
    [`New in ${after.label}`, named("new", "after")],
    [`New in ${before.label}`, named("new", "before")],
  ];
  const left = matches.filter(({ state }) => state === "not compared");
  const reasons = [...new Set(left.map(({ why }) => why))];
  const layersOf = (reason: string | null): string[] => [
    ...new Set(left.filter(({ why }) => why === reason).map(({ head }) => head.slice(0, head.lastIndexOf(".")))),
  ];
  if (matches.every(({ state }) => state === "compared")) return null;
  return (
    <div class="card">
      <h3>Heads that are not compared</h3>
      <ul class="compare-notes small">
        {lists
          .filter(([, heads]) => heads.length > 0)
          .map(([words, heads]) => (
            <li key={words}>
              {words}: {heads.join(", ")}
            </li>
          ))}
        {reasons.map((why) => (
          <li key={why}>
            Heads of {layersOf(why).join(", ")}: {why}
          </li>
        ))}
      </ul>
    </div>
  );
}

function Notes({ notes }: { notes: string[] }): JSX.Element | null {
  if (notes.length === 0) return null;
  return (
    <div class="card">
      <h3>What else differs</h3>
      <ul class="compare-notes small">
        {notes.map((note) => (
          <li key={note}>{note}</li>
        ))}
      </ul>
    </div>
  );
}
