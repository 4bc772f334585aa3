/** One statement: what it says and its verdict; opened, all that was found. */
import type { ComponentChildren, JSX } from "preact";
import { useRef } from "preact/hooks";
import type { Claim, Rich, Sides } from "../contract";
import { latexText, RichText } from "../formula";
import { linkTo } from "../store";
import { SORTS } from "./claims_search";
import { useNear } from "./near";

export function ClaimRow(props: { claim: Claim; open: boolean; hidden: boolean; onToggle: () => void }): JSX.Element {
  const { claim, open } = props;
  const row = useRef<HTMLLIElement>(null);
  const drawn = useNear(row) || open;
  const body = `claim-${claim.id}-more`;
  const { mark, words } = SORTS[claim.verdict];
  const onClick = (event: MouseEvent): void => {
    const onLink = event.target instanceof Element && event.target.closest("a, button") !== null;
    if (!onLink && getSelection()?.isCollapsed !== false) props.onToggle();
  };
  return (
    <li ref={row} class="claim" id={`claim-${claim.id}`} data-verdict={claim.verdict} hidden={props.hidden}>
      <div class="claim-head" onClick={onClick}>
        <button type="button" class="claim-id" aria-expanded={open} aria-controls={body} onClick={props.onToggle}>
          {claim.id}
        </button>
        <span class="badge claim-verdict">
          <span aria-hidden="true">{mark}</span> {words}
        </span>
        <div class="claim-text">{drawn ? <RichText text={claim.statement} /> : latexText(claim.statement)}</div>
      </div>
      <div class="claim-more" id={body} hidden={!open}>
        {open && <More claim={claim} />}
      </div>
    </li>
  );
}

const REMARKS: Partial<Record<Claim["verdict"], string>> = {
  typo: "Correction",
  false: "Correction",
  condition: "Condition",
};

function More({ claim }: { claim: Claim }): JSX.Element {
  const figures = Object.entries(claim.figures);
  return (
    <dl>
      <Told name={REMARKS[claim.verdict] ?? "Remark"} text={claim.correction} />
      <Told name="Proof" text={claim.proof} />
      <Told name="Not computed" text={claim.not_computed} />
      <Told name="Compared" text={claim.compares} />
      <Compared name={claim.corrected === null ? "Computed" : "As printed"} sides={claim.stated} />
      <Compared name="Corrected" sides={claim.corrected} />
      <Compared name="Without the condition" sides={claim.without} />
      {figures.length > 0 && (
        <Item name="Figures">
          <table class="claim-figures">
            <tbody>
              {figures.map(([name, value]) => (
                <tr key={name}>
                  <th scope="row">{name}</th>
                  <td class="num">{written(value)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </Item>
      )}
      <Told name="Note" text={claim.note} />
      <Item name="Source">
        {claim.source} · <a href={linkTo("claims", claim.id)}>link to this statement</a>
      </Item>
      {claim.code !== null && (
        <Item name="Code">
          <code>src/{claim.code.replace(":", ": ")}</code>
          <br />
          <code>attnworks claims {claim.id} --explain</code> recomputes it
        </Item>
      )}
    </dl>
  );
}

function Item({ name, children }: { name: string; children: ComponentChildren }): JSX.Element {
  return (
    <div>
      <dt>{name}</dt>
      <dd>{children}</dd>
    </div>
  );
}

function Told({ name, text }: { name: string; text: Rich[] | null }): JSX.Element | null {
  if (text === null) return null;
  return (
    <Item name={name}>
      <RichText text={text} />
    </Item>
  );
}

const RELATIONS: Record<string, string> = { "<=": "≤", ">=": "≥" };

function Compared({ name, sides }: { name: string; sides: Sides | null }): JSX.Element | null {
  if (sides === null) return null;
  const { left, relation, right, within, holds } = sides;
  return (
    <Item name={name}>
      <span class="claim-sides">
        {written(left)} {RELATIONS[relation] ?? relation} {written(right)}
      </span>
      {within !== null && <span class="muted"> within {written(within)}</span>}{" "}
      <span class={holds ? "claim-true" : "claim-false"}>{holds ? "✓ is true" : "✗ is false"}</span>
    </Item>
  );
}

const RAISED = "⁰¹²³⁴⁵⁶⁷⁸⁹";

function written(value: number | string | null): string {
  const x = Number(value ?? NaN);
  if (Number.isNaN(x)) return "not a number";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  const size = Math.abs(x);
  if (x !== 0 && (size < 1e-4 || (size >= 1e6 && !Number.isInteger(x)) || size >= 1e15)) return scientific(x);
  return x.toLocaleString("en-US", { maximumSignificantDigits: 15 }).replace("-", "−");
}

function scientific(x: number): string {
  const [front = "", power = ""] = x.toExponential().split("e");
  const raised = power
    .replace("+", "")
    .replace("-", "⁻")
    .replace(/\d/g, (digit) => RAISED[Number(digit)] ?? "");
  return `${Number(front)} × 10${raised}`.replace("-", "−");
}
