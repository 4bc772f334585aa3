/** What stands out in the model: sentences with an effect size, the heads they are about, and what to run next. */
import type { ComponentChildren, JSX } from "preact";
import { Fragment } from "preact";
import type { Thumbnail } from "../blobs";
import type { Exam, Finding, Reading } from "../contract";
import type { HeadName } from "../readings";
import { KINDS, alongDepth, capital, kindsOf, parseHead, reading, shown } from "../readings";
import { exam, linkTo } from "../store";
import { Command } from "./command";
import { Says } from "./says";
import { Spark } from "./spark";
import { spot } from "./spotlight";
import { ThumbnailImage, useThumbnails } from "./thumbnails";
import "./findings.css";

/** Findings on the first screen. */
const FIRST = 3;
const NAMED = 8;

/** The largest effect of each group, and then the largest of all. */
export function chiefFindings(found: Finding[]): Finding[] {
  const groups = new Map<string, Finding>();
  for (const finding of found) {
    const best = groups.get(finding.group);
    if (best === undefined || finding.weight > best.weight) groups.set(finding.group, finding);
  }
  const others = found.filter((finding) => groups.get(finding.group) !== finding);
  const byWeight = (a: Finding, b: Finding) => b.weight - a.weight;
  const chief = [...groups.values()].sort(byWeight).slice(0, FIRST);
  return [...chief, ...others.sort(byWeight)].slice(0, FIRST);
}

export function ChiefFindings(): JSX.Element {
  const of = exam.value;
  const pictures = useThumbnails();
  const chief = chiefFindings(of.findings);
  const used = new Set<string>();
  const headFor = (finding: Finding): HeadName | undefined => {
    const heads = finding.heads.flatMap((name) => parseHead(of, name) ?? []);
    const head = heads.find(({ name }) => !used.has(name)) ?? heads[0];
    if (head !== undefined) used.add(head.name);
    return head;
  };
  return (
    <section class="chief" aria-labelledby="findings-title">
      <h3 id="findings-title">What stands out</h3>
      {chief.length === 0 && <p class="muted">Nothing stands out in what was measured.</p>}
      <ol>
        {chief.map((finding) => (
          <li key={finding.text} {...spotlit(finding)}>
            <Picture of={of} finding={finding} head={headFor(finding)} pictures={pictures} />
            <div>
              <FindingWords finding={finding} short />
            </div>
          </li>
        ))}
      </ol>
      {of.findings.length > chief.length && (
        <p class="small">
          <a
            href={linkTo("story")}
            onClick={(event) => (event.preventDefault(), document.getElementById("all-findings")?.scrollIntoView())}
          >
            All {of.findings.length} findings
          </a>
        </p>
      )}
    </section>
  );
}

/** All other heads are dimmed in the grid while the pointer or the focus is on the finding. */
function spotlit(finding: Finding) {
  const known = finding.heads.flatMap((name) => parseHead(exam.value, name)?.name ?? []);
  const show = () => (spot.value = known.length > 0 ? new Set(known) : null);
  const hide = () => (spot.value = null);
  return { onMouseEnter: show, onMouseLeave: hide, onFocusIn: show, onFocusOut: hide };
}

/** A head of the finding, or the curve along depth that it is about. */
function Picture(props: {
  of: Exam;
  finding: Finding;
  head: HeadName | undefined;
  pictures: Map<string, Thumbnail> | null;
}): JSX.Element {
  const { of, finding, head, pictures } = props;
  const picture = head === undefined ? undefined : pictures?.get(head.name);
  if (head !== undefined && picture !== undefined) {
    return (
      <a
        class="chief-picture"
        href={linkTo("head", head.name)}
        aria-label={`open head ${shown(of, head)}`}
        tabIndex={-1}
      >
        <ThumbnailImage picture={picture} />
      </a>
    );
  }
  const curves = finding.readings.flatMap((name) => kindsOf(of).flatMap((kind) => [alongDepth(of, name, kind) ?? []]));
  return (
    <span class="chief-picture">
      <Spark values={curves.find((curve) => curve.filter((value) => value !== null).length > 1) ?? []} />
    </span>
  );
}

export function AllFindings(): JSX.Element | null {
  const found = exam.value.findings;
  if (found.length === 0) return null;
  return (
    <section class="card findings" id="all-findings" aria-labelledby="all-findings-title">
      <h3 id="all-findings-title">All findings</h3>
      {grouped(found).map(([group, findings]) => (
        <Fragment key={group}>
          {group !== "" && <h4>{group}</h4>}
          <ol>
            {findings.map((finding) => (
              <li key={finding.text}>
                <FindingWords finding={finding} />
              </li>
            ))}
          </ol>
        </Fragment>
      ))}
    </section>
  );
}

/** Groups with their findings, in the order in which they come. */
function grouped(findings: Finding[]): [string, Finding[]][] {
  const groups = new Map<string, Finding[]>();
  for (const finding of findings) groups.set(finding.group, [...(groups.get(finding.group) ?? []), finding]);
  return [...groups];
}

/** "head 0.2 rests: so do this (0.71 there)": what it is about, what follows, and the number. */
function partsOf(text: string): { claim: string; advice: string; figures: string } {
  const [, told = text, figures = ""] = /^(.*?)(?: \(([^()]*)\))?$/s.exec(text) ?? [];
  const at = told.indexOf(": ");
  return at < 0
    ? { claim: told, advice: "", figures }
    : { claim: told.slice(0, at), advice: told.slice(at + 2), figures };
}

function FindingWords({ finding, short = false }: { finding: Finding; short?: boolean }): JSX.Element {
  const of = exam.value;
  const heads = finding.heads.flatMap((name) => parseHead(of, name) ?? []);
  const named = new Set<string>();
  const { claim, advice, figures } = partsOf(finding.text);
  const link = (text: string) => linked(of, text, heads, named);
  const told = (
    <>
      <b>{link(capital(claim))}</b>
      {advice !== "" && <span class="finding-advice">{link(capital(advice))}</span>}
      {figures !== "" && <span class="small muted finding-figures">{link(figures)}</span>}
    </>
  );
  if (short) return told;
  const others = heads.filter((head) => !named.has(head.name));
  return (
    <>
      {told}
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
      {finding.command !== "" && <Command text={finding.command} />}
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
