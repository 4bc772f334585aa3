/** What changed, head by head and number by number. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import type { Change, Comparison, Exam } from "../contract";
import { Labelled } from "../controls";
import { parseHead, renamed, whole } from "../readings";
import { measureName } from "./measure_names";
import { roleName } from "./roles";
import { linkTo } from "../store";
import { DataTable } from "../table";

export function Roles({ after, roles }: { after: Exam; roles: Comparison["roles"] }): JSX.Element | null {
  if (roles.length === 0) return null;
  const wordsOf = (head: string, label: string): string => roleName(label, parseHead(after, head)?.kind ?? "encoder");
  return (
    <div class="card">
      <h3>Heads with a different role</h3>
      <DataTable
        caption="Role of each head, before and after"
        columns={[{ name: "head" }, { name: "before" }, { name: "after" }]}
        rows={roles.map(({ head, head_after, before, after }) => ({
          key: head,
          cells: [renamed(head, head_after), wordsOf(head_after, before), wordsOf(head_after, after)],
          href: linkTo("head", head_after, { exam: 1 }),
        }))}
        limit={20}
      />
    </div>
  );
}

export function Changes({ after, changes }: { after: Exam; changes: Change[] }): JSX.Element | null {
  const sought = useSignal("");
  const judged = changes.some((change) => change.certain !== null);
  if (changes.length === 0) return null;
  const parts = sought.value.toLowerCase().split(/\s+/).filter(Boolean);
  const found = changes.filter((change) => {
    const text = `${change.reading} ${measureName(change.reading)} ${change.where} ${change.where_after}`.toLowerCase();
    return parts.every((part) => text.includes(part));
  });
  const link = (where: string): { href?: string } =>
    parseHead(after, where) === null ? {} : { href: linkTo("head", where, { exam: 1 }) };
  return (
    <div class="card">
      <h3>{judged ? "Most significant changes" : "Largest changes"}</h3>
      <div class="row compare-filter">
        <Labelled label="Filter">
          <input
            type="search"
            placeholder="entropy enc.3"
            value={sought.value}
            onInput={(event) => (sought.value = event.currentTarget.value)}
          />
        </Labelled>
        <span class="small muted" role="status">
          {whole(found.length)} of {whole(changes.length)}
        </span>
      </div>
      <DataTable
        caption={
          judged ? "Most significant first; the margin is half of the 95 % interval" : "Largest relative change first"
        }
        columns={[
          { name: "where" },
          { name: "measure" },
          { name: "before", numeric: true },
          { name: "after", numeric: true },
          { name: "difference", numeric: true },
          ...(judged
            ? [
                { name: "margin", numeric: true, words: "half of the 95 % interval of the difference" },
                { name: "significant", words: "at a false discovery rate of 5 % over all measurements compared" },
              ]
            : []),
        ]}
        rows={found.map((change) => ({
          key: `${change.reading} ${change.where}`,
          cells: [
            renamed(change.where, change.where_after),
            measureName(change.reading),
            change.before,
            change.after,
            change.difference,
            ...(judged ? [change.margin, change.certain === null ? "unknown" : change.certain ? "yes" : "no"] : []),
          ],
          ...link(change.where_after),
        }))}
        limit={25}
      />
    </div>
  );
}
