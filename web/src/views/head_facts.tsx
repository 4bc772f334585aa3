/** What is known about a head, in sentences. */
import type { JSX } from "preact";
import type { HeadName } from "../readings";
import { digits, intervalOf, ofHead, parseHead, shown } from "../readings";
import { exam, linkTo } from "../store";
import { changeWords } from "./head_says";
import { RoleDot } from "./role_dot";
import { closestName, explainedShare, formOf, formWords, labelOf, noFormSentence, roleSentence } from "./roles";

export function HeadFacts({ head }: { head: HeadName }): JSX.Element {
  const all: [string, JSX.Element | string | null][] = [
    ["Role", roleFact(head)],
    ["Pattern", formSentence(head)],
    ["Importance", importanceSentence(head)],
    ["Most similar head", twinFact(head)],
  ];
  const facts = all.filter(([, fact]) => fact !== null);
  return (
    <dl class="terms facts">
      {facts.map(([name, fact]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{fact}</dd>
        </div>
      ))}
    </dl>
  );
}

function roleFact(head: HeadName): JSX.Element | null {
  const sentence = roleSentence(exam.value, head);
  if (sentence === null) return null;
  return (
    <>
      <RoleDot label={labelOf(exam.value, head)} /> {sentence}
    </>
  );
}

/** "band (any weights up to two tokens away): explains 70 % (error 0.251 per query; an empty map 0.832)" */
function formSentence(head: HeadName): string | null {
  const of = exam.value;
  const form = formOf(of, head);
  if (form === "") return null;
  const words = formWords(of, form, head.kind);
  const [error, nothing] = [ofHead(of, "structure.distance", head), ofHead(of, "structure.zero", head)];
  const share = explainedShare(of, head);
  const explains = share === null ? "" : `: explains ${share}`;
  const named = `${closestName(of, head, form)}${words ? ` (${words})` : ""}${explains}`;
  const empty = typeof nothing === "number" ? `; an empty map ${digits(nothing)}` : "";
  const numbers = typeof error === "number" ? ` (error ${digits(error)} per query${empty})` : "";
  return `${noFormSentence(of, head) ?? named}${numbers}`;
}

function importanceSentence(head: HeadName): string | null {
  const of = exam.value;
  const [change, gradient] = [ofHead(of, "ablation.change", head), ofHead(of, "importance.gradient", head)];
  const parts: string[] = [];
  if (typeof change === "number") {
    const interval = intervalOf(of, "ablation.change", head);
    const ends = interval === null ? "" : ` (95 % interval ${digits(interval[0])} to ${digits(interval[1])})`;
    parts.push(`without it ${changeWords(of, change)}${ends}`);
  }
  if (typeof gradient === "number") parts.push(`sensitivity ${digits(gradient)} (mean |dL/d gate|)`);
  return parts.length > 0 ? parts.join("; ") : null;
}

function twinFact(head: HeadName): JSX.Element | null {
  const of = exam.value;
  const twin = parseHead(of, String(ofHead(of, "redundancy.twin", head) ?? ""));
  const distance = ofHead(of, "redundancy.nearest", head);
  if (twin === null) return null;
  return (
    <>
      <a href={linkTo("head", twin.name)}>head {shown(of, twin)}</a>
      {typeof distance === "number" && `, distance ${digits(distance)} (0: identical attention, 1: nothing in common)`}
    </>
  );
}
