/** Words with formulas. Formulas are MathML elements made one by one, never markup. */
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Formula, Rich } from "./contract";
import "./formula.css";
import { linkTo } from "./store";

const MATHML = "http://www.w3.org/1998/Math/MathML";

type Child = Formula | string;

export function RichText({ text }: { text: Rich[] }): JSX.Element {
  const parts = text.map((part, at) => {
    const before = text[at - 1];
    const after = text[at + 1];
    if (typeof part !== "string") {
      return <Maths key={at} formula={part} tail={typeof after === "string" ? punctuation(after) : ""} />;
    }
    const words = typeof before === "object" ? part.slice(punctuation(part).length) : part;
    return <Words key={at} text={words} />;
  });
  return <>{parts}</>;
}

/** Characters that must not begin a line. */
function punctuation(text: string): string {
  return /^[,.;:)?!’]*/.exec(text)?.[0] ?? "";
}

const MARKED = /(`[^`]+`|\b(?:S\d\.\d+|D\d+)\b)/;

/** Commands stand between backticks; ids of other statements lead to them. */
export function Words({ text }: { text: string }): JSX.Element {
  const parts = text.split(MARKED).map((part, at) => {
    if (at % 2 === 0) return part;
    if (part.startsWith("`")) return <code key={at}>{part.slice(1, -1)}</code>;
    return (
      <a key={at} href={linkTo("claims", part)}>
        {part}
      </a>
    );
  });
  return <>{parts}</>;
}

function Maths({ formula, tail }: { formula: Formula; tail: string }): JSX.Element {
  const place = useRef<HTMLSpanElement>(null);
  useLayoutEffect(() => {
    const pieces = breakable(formula).map((children) => {
      const math = document.createElementNS(MATHML, "math");
      math.append(...children.map(node));
      return math;
    });
    const last = document.createElement("span");
    last.className = "formula-end";
    last.append(pieces.pop() ?? "", tail);
    place.current?.replaceChildren(...pieces.flatMap((piece) => [piece, document.createElement("wbr")]), last);
  }, [formula, tail]);
  return <span ref={place} />;
}

function node(child: Child): Node {
  if (typeof child === "string") return document.createTextNode(child);
  const element = document.createElementNS(MATHML, child[0]);
  for (const [name, value] of Object.entries(attributesOf(child))) element.setAttribute(name, value);
  element.append(...childrenOf(child).map(node));
  return element;
}

function attributesOf([, first]: Formula): Record<string, string> {
  return typeof first === "object" && !Array.isArray(first) ? first : {};
}

function childrenOf([, ...inside]: Formula): Child[] {
  return inside.filter((child): child is Child => typeof child === "string" || Array.isArray(child));
}

function latexOf(formula: Formula): string {
  return attributesOf(formula)["alttext"] ?? "";
}

/** The LaTeX source: it can be searched, and it stands in for formulas that are not on the screen yet. */
export function latexText(text: Rich[] | null): string {
  return (text ?? []).map((part) => (typeof part === "string" ? part : latexOf(part))).join("");
}

// Line breaks ---------------------------------------------------------------------------------------------------------

const LONG = 24;
const OPENING = "([{⟨⌊";
const CLOSING = ")]}⟩⌋";
const ENDS_A_LINE = new Set([..."=≤≥<>∈≈→⇒⇔∼≠≫≪∝+−,;×", ":="]);

/** Browsers do not break formulas. Long ones come in pieces, which end after commas or operators outside brackets. */
function breakable(formula: Formula): Child[][] {
  const children = childrenOf(formula);
  if (latexOf(formula).length < LONG) return [children];
  const pieces: Child[][] = [[]];
  let depth = 0;
  let inBars = false;
  for (const child of children) {
    pieces.at(-1)?.push(child);
    const sign = operator(child);
    if (sign !== "" && OPENING.includes(sign)) depth += 1;
    if (sign !== "" && CLOSING.includes(sign)) depth -= 1;
    if (sign === "|" || sign === "‖") inBars = !inBars;
    if (!inBars && depth <= (sign === "," ? 1 : 0) && isBreak(child)) pieces.push([]);
  }
  return pieces.filter((piece) => piece.length > 0);
}

/** The sign of an operator, with or without indices. */
function operator(child: Child): string {
  if (typeof child === "string") return "";
  const [first] = childrenOf(child);
  if (child[0] === "mo") return String(first);
  return /^m(sub|sup|subsup)$/.test(child[0]) && first !== undefined ? operator(first) : "";
}

function isBreak(child: Child): boolean {
  if (typeof child === "string" || child[0] !== "mo" || attributesOf(child)["form"] === "prefix") return false;
  return ENDS_A_LINE.has(operator(child));
}
