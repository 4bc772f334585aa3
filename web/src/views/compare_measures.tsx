/** What changed, measure by measure: how many heads, layers or depths, and their means. */
import type { JSX } from "preact";
import type { Change, Comparison } from "../contract";
import { DataTable } from "../table";
import { measureName, measureOrder } from "./measure_names";

interface Row {
  reading: string;
  changes: Change[];
  certain: number;
  before: number;
  after: number;
}

/** The measures with the most significant changes first. */
export function MeasuresCompared({ comparison }: { comparison: Comparison }): JSX.Element | null {
  const { changes } = comparison;
  if (changes.length === 0) return null;
  const judged = changes.some((change) => change.certain !== null);
  const groups = new Map<string, Change[]>();
  for (const change of changes) groups.set(change.reading, [...(groups.get(change.reading) ?? []), change]);
  const mean = (numbers: number[]) => numbers.reduce((sum, number) => sum + number, 0) / numbers.length;
  const rows = [...groups]
    .map(([reading, own]): Row => {
      return {
        reading,
        changes: own,
        certain: own.filter((change) => change.certain).length,
        before: mean(own.map((change) => change.before)),
        after: mean(own.map((change) => change.after)),
      };
    })
    .sort((a, b) => b.certain - a.certain || measureOrder(a.reading) - measureOrder(b.reading));
  return (
    <div class="card">
      <h3>By measure</h3>
      <DataTable
        caption={`Means over the heads, layers or depths that differ${judged ? "; significant at a false discovery rate of 5 %" : ""}`}
        columns={[
          { name: "measure" },
          { name: "before", numeric: true },
          { name: "after", numeric: true },
          { name: "differ", numeric: true },
          ...(judged ? [{ name: "significant", numeric: true }] : []),
        ]}
        rows={rows.map((row) => ({
          key: row.reading,
          cells: [
            measureName(row.reading),
            row.before,
            row.after,
            row.changes.length,
            ...(judged ? [row.certain] : []),
          ],
        }))}
        limit={12}
      />
    </div>
  );
}
