/** A head in one line of plain words. */
import type { Exam } from "../contract";
import type { HeadName } from "../readings";
import { capital, digits, headsOf, intervalOf, ofHead, percent } from "../readings";
import { labelOf, roleDoes, sinkOf } from "./roles";
import { workOf, workPercent, workSizes } from "./work";

/** Below this share of the largest effect of all heads, nobody would miss a head. */
const FAINT = 0.02;
const NTH = ["most", "second most", "third most"];

export function headSays(of: Exam, head: HeadName): string {
  const parts = [roleClause(of, head), restClause(of, head), effectClause(of, head)].filter((part) => part !== null);
  return parts.length === 0 ? "" : `${capital(parts.join("; "))}.`;
}

function roleClause(of: Exam, head: HeadName): string | null {
  const label = labelOf(of, head);
  if (label === "" || label === sinkOf(of, head)) return null;
  const second = String(ofHead(of, "roles.second", head) ?? "none");
  return `${roleDoes(label, head.kind)}${second === "none" ? "" : `, and also ${roleDoes(second, head.kind)}`}`;
}

function restClause(of: Exam, head: HeadName): string | null {
  const sink = sinkOf(of, head);
  if (sink === "") return null;
  const [attention, effect] = [`sinks.${sink}`, `sinks.${sink}_effect`].map((name) => ofHead(of, name, head));
  const parts = [
    ...(typeof attention === "number" ? [`${percent(attention)} of its attention`] : []),
    ...(typeof effect === "number" ? [`${percent(effect)} of its effect`] : []),
  ];
  return `${roleDoes(sink, head.kind)}${parts.length > 0 ? ` (${parts.join(", ")})` : ""}`;
}

/** "without it sentence embeddings turn by 0.045 (1 - cosine), the most of 72 heads" */
function effectClause(of: Exam, head: HeadName): string | null {
  const change = ofHead(of, "ablation.change", head);
  if (typeof change !== "number") return workClause(of, head);
  const others = headsOf(of).flatMap((other) => {
    const value = ofHead(of, "ablation.change", other);
    return typeof value === "number" ? [Math.abs(value)] : [];
  });
  const size = Math.abs(change);
  if (size < FAINT * Math.max(...others)) return `the model hardly changes without it (${changeWords(of, change)})`;
  const place = 1 + others.filter((other) => other > size).length;
  const nth = NTH[place - 1] ?? null;
  const interval = intervalOf(of, "ablation.change", head);
  const unsure = interval !== null && interval[0] <= 0 && interval[1] >= 0 ? ", which may be chance" : "";
  return `without it ${changeWords(of, change)}${nth === null ? "" : `, the ${nth} of ${others.length} heads`}${unsure}`;
}

/** "it does 5 % of the work, the most of 72 heads", from the gradients. */
function workClause(of: Exam, head: HeadName): string | null {
  const [work, { total }] = [workOf(of, head), workSizes(of)];
  if (work === null || total === 0) return null;
  const nth = NTH[headsOf(of).filter((other) => (workOf(of, other) ?? 0) > work).length];
  return `it does ${workPercent(work / total)} of the work${nth ? `, the ${nth} of ${headsOf(of).length} heads` : ""}`;
}

/** "the loss rises by 0.01", or "sentence embeddings turn by 0.01 (1 - cosine)" by the objective of the examination. */
export function changeWords(of: Exam, change: number): string {
  const size = digits(Math.abs(change));
  if (objectiveOf(of) === "embedding") return `sentence embeddings turn by ${size} (1 - cosine)`;
  return `the loss ${change >= 0 ? "rises" : "falls"} by ${size}`;
}

function objectiveOf(of: Exam): string | null {
  for (const note of of.notes) {
    const found = /^the importance of heads is measured by the objective '(\w+)'/.exec(note);
    if (found !== null) return found[1] ?? null;
  }
  return null;
}
