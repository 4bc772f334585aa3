/** What stands out in the model, in words, with links to the heads and reasons. */
import type { ComponentChildren, JSX } from "preact";
import { Fragment } from "preact";
import { useState } from "preact/hooks";
import type { Exam, Finding, Reading } from "../contract";
import type { HeadName } from "../readings";
import { KINDS, parseHead, reading, shown } from "../readings";
import { exam, linkTo } from "../store";
import { Says } from "./says";
import "./findings.css";

/** Findings of each group that are shown at first. */
const FIRST = 3;
const NAMED = 6;

export function Findings(): JSX.Element {
  const [all, setAll] = useState(false);
  const found = exam.value.findings;
  const groups = grouped(found);
  const hidden = groups.reduce((sum, [, findings]) => sum + Math.max(0, findings.length - FIRST), 0);
  return (
    <section class="card findings" aria-labelledby="findings-title">
      <h3 id="findings-title">What stands out</h3>
      {found.length === 0 && <p class="muted">Nothing stands out in what was measured.</p>}
      {groups.map(([group, findings]) => (
        <Fragment key={group}>
          {group !== "" && <h4>{group}</h4>}
          <ol>
            {(all ? findings : findings.slice(0, FIRST)).map((finding) => (
              <li key={finding.text}>
                <FindingLine finding={finding} />
              </li>
            ))}
          </ol>
        </Fragment>
      ))}
      {hidden > 0 && (
        <button type="button" class="quiet" onClick={() => setAll(!all)}>
          {all ? "Only the largest effects" : `All ${found.length} findings`}
        </button>
      )}
    </section>
  );
}

/** Groups with their findings, in the order in which they come. */
function grouped(findings: Finding[]): [string, Finding[]][] {
  const groups = new Map<string, Finding[]>();
  for (const finding of findings) groups.set(finding.group, [...(groups.get(finding.group) ?? []), finding]);
  return [...groups];
}

function FindingLine({ finding }: { finding: Finding }): JSX.Element {
  const of = exam.value;
  const heads = finding.heads.flatMap((name) => parseHead(of, name) ?? []);
  const named = new Set<string>();
  const text = linked(of, finding.text, heads, named);
  const others = heads.filter((head) => !named.has(head.name));
  return (
    <>
      {text}
      {others.length > 0 && (
        <span class="others small">
          {others.slice(0, NAMED).map((head) => (
            <a key={head.name} href={linkTo("head", head.name)}>
              {shown(of, head)}
            </a>
          ))}
          {others.length > NAMED && <span class="muted">and {others.length - NAMED} more</span>}
        </span>
      )}
      <Why readings={finding.readings.flatMap((name) => readingOf(of, name, heads))} />
    </>
  );
}

/** The text, with the first mention of every head a link; `named` learns which were mentioned. */
function linked(of: Exam, text: string, heads: HeadName[], named: Set<string>): ComponentChildren[] {
  const byName = new Map(heads.map((head) => [shown(of, head), head]));
  return text.split(/((?:[a-z]+\.)?\d+\.\d+(?![\d.e]))/).map((part) => {
    const head = byName.get(part);
    if (head === undefined || named.has(head.name)) return part;
    named.add(head.name);
    return <a href={linkTo("head", head.name)}>{part}</a>;
  });
}

function readingOf(of: Exam, name: string, heads: HeadName[]): [string, Reading][] {
  const kinds = heads.length > 0 ? heads.map((head) => head.kind) : KINDS;
  const found = kinds.map((kind) => reading(of, name, kind)).find((one) => one !== null);
  return found ? [[name, found]] : [];
}

function Why({ readings }: { readings: [string, Reading][] }): JSX.Element | null {
  if (readings.length === 0) return null;
  return (
    <details class="why small">
      <summary>why</summary>
      <ul>
        {readings.map(([name, found]) => (
          <li key={name}>
            <code>{name}</code>: <Says of={found} />
          </li>
        ))}
      </ul>
    </details>
  );
}
