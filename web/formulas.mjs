/**
 * The statements of the claims tab: `python -m attnworks.theory --data | node formulas.mjs`.
 *
 * Every $LaTeX$ becomes a tree of MathML Core, made by KaTeX and then tidied: browsers know fewer attributes than KaTeX
 * writes, and space operators by the element's place. `--out FILE` for elsewhere.
 */
import katex from "katex";
import { readFileSync, writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

const here = fileURLToPath(new URL(".", import.meta.url));
const { values } = parseArgs({
  options: { out: { type: "string", default: `${here}../src/attnworks/page/claims.json` } },
});

const TEXTS = ["statement", "correction", "compares", "note", "not_computed", "proof"];

const ELEMENTS = new Set(
  "math mrow mi mn mo mtext mspace mfrac msqrt mroot msub msup msubsup munder mover munderover mpadded".split(" "),
);
const ATTRIBUTES = new Set("mathvariant stretchy accent linethickness width lspace rspace".split(" "));
/** Said by KaTeX, and without effect in a browser. */
const NEEDLESS = new Set("xmlns fence separator".split(" "));

// KaTeX's text to trees -----------------------------------------------------------------------------------------------

const TOKEN = /<(\/?)(\w+)((?:\s[^>]*?)?)(\/?)>|([^<]+)/g;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', "#x27": "'" };

function parse(markup) {
  const root = { name: "root", attributes: {}, children: [] };
  const open = [root];
  for (const [, closing, name, attributes, empty, words] of markup.matchAll(TOKEN)) {
    if (words !== undefined) {
      open.at(-1).children.push(words.replace(/&([#\w]+);/g, (_, entity) => ENTITIES[entity] ?? fail(`&${entity};`)));
    } else if (closing) {
      open.pop();
    } else {
      const pairs = [...attributes.matchAll(/([\w-]+)="([^"]*)"/g)].map(([, key, value]) => [key, value]);
      const node = { name, attributes: Object.fromEntries(pairs), children: [] };
      open.at(-1).children.push(node);
      if (!empty) open.push(node);
    }
  }
  return root.children[0];
}

function fail(what) {
  throw new Error(`not known in a formula: ${what}`);
}

// Tidying -------------------------------------------------------------------------------------------------------------

const APPLIED = "\u2061";
const THIN = "0.1667em";
const text = (node) => (typeof node === "string" ? node : node.children.map(text).join(""));
const is = (node, name) => node !== undefined && node.name === name;
const closes = (node) => is(node, "mo") && ")]}⟩⌋!".includes(text(node));
const applied = (node) => is(node, "mo") && text(node) === APPLIED;
const space = () => ({ name: "mspace", attributes: { width: THIN }, children: [] });

/** Letters of other alphabets: where they begin in Unicode, and those that were there before. */
const ALPHABETS = {
  "double-struck": { A: 0x1d538, a: 0x1d552, 1: 0x1d7d9, but: "CℂHℍNℕPℙQℚRℝZℤ" },
  script: { A: 0x1d49c, a: 0x1d4b6, but: "BℬEℰFℱHℋIℐLℒMℳRℛeℯgℊoℴ" },
  bold: { A: 0x1d400, a: 0x1d41a, 1: 0x1d7cf, but: "" },
};

function inAlphabet(letter, { but, ...starts }) {
  const older = [...but];
  if (older.includes(letter)) return older[older.indexOf(letter) + 1];
  const start = /[A-Z]/.test(letter) ? "A" : /[a-z]/.test(letter) ? "a" : /[1-9]/.test(letter) ? "1" : fail(letter);
  return String.fromCodePoint(starts[start] + letter.codePointAt(0) - start.codePointAt(0));
}

/** A name of several letters is upright by itself; so is all that has no slanted form. */
function spelled(node) {
  const { mathvariant, ...others } = node.attributes;
  const written = text(node);
  if (mathvariant === undefined) return node;
  if (mathvariant === "normal") {
    const slants = node.name === "mi" && /^[\p{L}∂∇]$/u.test(written);
    return { ...node, attributes: slants ? node.attributes : others };
  }
  const alphabet = ALPHABETS[mathvariant] ?? fail(mathvariant);
  return { ...node, attributes: others, children: [[...written].map((one) => inAlphabet(one, alphabet)).join("")] };
}

/** KaTeX draws bars of norms and sizes as relations, with space on both sides. */
function bars(node) {
  const bar = { "∥": "‖", "∣": "|" }[text(node)];
  if (!is(node, "mo") || bar === undefined || node.attributes.stretchy !== "false") return node;
  return { ...node, attributes: { lspace: "0", rspace: "0", stretchy: "false" }, children: [bar] };
}

/** \mathrm{diam} comes letter by letter. */
function joined(nodes) {
  const upright = (node) => is(node, "mi") && node.attributes.mathvariant === "normal" && /^\p{L}+$/u.test(text(node));
  return nodes.length > 1 && nodes.every(upright)
    ? [{ name: "mi", attributes: {}, children: [nodes.map(text).join("")] }]
    : nodes;
}

/** max with a limit below: the sign of application goes behind the limit. */
function withApplicationBehind(node) {
  const base = node.children?.[0];
  const sign = base?.children?.at(-1);
  if (!/^m(sub|sup|subsup|under)$/.test(node.name) || !is(base, "mrow") || !applied(sign)) return [node];
  return [{ ...node, children: [...base.children.slice(0, -1), ...node.children.slice(1)] }, sign];
}

/** A thin space around functions, in place of the sign of application. */
function spacedFunctions(nodes) {
  return nodes.flatMap((node, at) => {
    const before = nodes[at - 1];
    const after = nodes[at + 1];
    if (applied(node) && after !== undefined) return is(after, "mo") ? [] : [space()];
    const crowded = before !== undefined && !applied(before) && (!is(before, "mo") || closes(before));
    return applied(after) && crowded ? [space(), node] : [node];
  });
}

/** A prime is drawn raised and small already: in an exponent it would be too small to be seen. */
function primes(node) {
  const [base, ...indices] = node.children;
  const prime = indices.at(-1);
  if (!/^msu(p|bsup)$/.test(node.name) || !/^′+$/.test(text(prime))) return node;
  const primed = { name: "mrow", attributes: {}, children: [base, prime] };
  return node.name === "msup" ? primed : { name: "msub", attributes: {}, children: [primed, indices[0]] };
}

/** := is one sign. */
function definitions(nodes) {
  return nodes.flatMap((node, at) => {
    const colon = is(node, "mo") && text(node) === ":" && is(nodes[at + 1], "mo") && text(nodes[at + 1]) === "=";
    const behind = at > 0 && is(nodes[at - 1], "mo") && text(nodes[at - 1]) === ":" && text(node) === "=";
    return colon ? [] : behind ? [{ ...node, children: [":="] }] : [node];
  });
}

/** A sign after another operator, as in = -1, belongs to what follows. */
function signs(node, before) {
  const sign = is(node, "mo") && "+−±".includes(text(node));
  const after = is(before, "mo") && !closes(before) && !"|‖".includes(text(before));
  return sign && after ? { ...node, attributes: { ...node.attributes, form: "prefix" } } : node;
}

function tidy(node) {
  if (typeof node === "string") return [node];
  if (node.name === "semantics") return tidy(node.children[0]);
  let children = node.children.flatMap(tidy);
  if (node.name === "mrow" || node.name === "math") {
    children = definitions(joined(children)).flatMap(withApplicationBehind);
    children = spacedFunctions(children).map((child, at, all) => signs(child, all[at - 1]));
  }
  if (node.name === "mrow" && children.length === 1) return children;
  const kept = Object.entries(node.attributes).filter(([key]) => !NEEDLESS.has(key));
  for (const [key] of kept) ATTRIBUTES.has(key) || fail(`${node.name} ${key}`);
  ELEMENTS.has(node.name) || fail(node.name);
  return [primes(spelled(bars({ ...node, attributes: Object.fromEntries(kept), children })))];
}

// Lists ---------------------------------------------------------------------------------------------------------------

function list({ name, attributes, children }) {
  const sorted = Object.fromEntries(Object.entries(attributes).sort());
  const inside = name === "math" && is(children[0], "mrow") && children.length === 1 ? children[0].children : children;
  return [
    name,
    ...(Object.keys(sorted).length ? [sorted] : []),
    ...inside.map((child) => (typeof child === "string" ? child : list(child))),
  ];
}

const known = new Map();

function formula(latex) {
  if (!known.has(latex)) {
    const markup = katex.renderToString(latex, { output: "mathml", strict: "error", throwOnError: true });
    const [math] = tidy(parse(markup).children[0]);
    known.set(latex, list({ ...math, attributes: { alttext: latex } }));
  }
  return known.get(latex);
}

function rich(words) {
  return words
    .split("$")
    .map((part, at) => (at % 2 ? formula(part) : part))
    .filter((part) => part !== "");
}

const claims = JSON.parse(readFileSync(0, "utf8")).map((claim) => {
  const texts = TEXTS.map((name) => [name, claim[name] === null ? null : rich(claim[name])]);
  return Object.fromEntries(Object.entries({ ...claim, ...Object.fromEntries(texts) }).sort());
});
writeFileSync(values.out, `[\n${claims.map((claim) => JSON.stringify(claim)).join(",\n")}\n]\n`);
