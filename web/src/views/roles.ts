/** What heads do, in words: labels of roles.label and forms of structure.form. */
import type { Exam, Kind } from "../contract";
import type { HeadName } from "../readings";
import { digits, ofHead, reading } from "../readings";
import { exam } from "../store";

interface Role {
  name: string;
  does: string;
}

const ROLES: Record<string, Role> = {
  previous: { name: "previous token", does: "attends to the previous token" },
  next: { name: "next token", does: "attends to the next token" },
  self: { name: "the token itself", does: "attends to the token itself" },
  delimiter: { name: "rests on delimiters", does: "rests on delimiters, such as [SEP]" },
  syntactic: { name: "syntactic head", does: "attends to the syntactic head of each word" },
  rare: { name: "rarest token", does: "attends to the rarest token of the sentence" },
  duplicate: { name: "same token elsewhere", does: "attends to the same token at other positions" },
  induction: {
    name: "induction",

    does: "continues what was repeated: attends to the token that followed an earlier copy of this token (induction)",
  },
  retrieval: { name: "retrieval", does: "finds in a text what is to be copied (retrieval)" },
  aligns: { name: "aligns two texts", does: "joins the tokens of two texts that belong together" },
  none: { name: "no clear role", does: "no clear role" },
};

const UNKNOWN: Role = { name: "role not measured", does: "" };

function roleOf(label: string, kind: Kind): Role {
  const offset = /^offset (-?\d+)$/.exec(label);
  if (offset !== null) return atOffset(Number(offset[1]), kind);
  if (label === "first") return resting();
  return ROLES[label] ?? (label === "" ? UNKNOWN : { name: label, does: `has the role ${label}` });
}

/** The first token by its name, where all sentences begin with the same special one. */
function resting(): Role {
  const name = `rests on ${exam.value.model.first_token ?? "the first token"}`;
  return { name, does: name };
}

function atOffset(offset: number, kind: Kind): Role {
  const far = Math.abs(offset);
  if (offset === 0) return { name: "same position", does: "attends to the same position of the other text" };
  const where = `${far} ${kind === "cross" ? "positions" : "tokens"} ${offset > 0 ? "ahead" : "back"}`;
  return { name: where, does: `attends ${where}` };
}

/** The role of a head outside the sinks, or else where it rests; "" where roles were not measured. */
export function labelOf(exam: Exam, head: HeadName): string {
  const label = roleLabel(exam, head);
  const sink = sinkOf(exam, head);
  return label === "none" && sink !== "" ? sink : label;
}

/** What a head does outside the sinks; "none" without a role, "" where roles were not measured. */
export function roleLabel(exam: Exam, head: HeadName): string {
  return String(ofHead(exam, "roles.label", head) ?? "");
}

/** "first" or "delimiter" for a head that rests there; "" for others. */
export function sinkOf(exam: Exam, head: HeadName): string {
  const sink = String(ofHead(exam, "roles.sink", head) ?? "none");
  return sink === "none" ? "" : sink;
}

export function hasRoles(exam: Exam): boolean {
  return Object.keys(exam.readings).some((name) => name.startsWith("roles.label@"));
}

/** Notes of the examination on how far labels can be trusted, or why there are none. */
export function roleNotes(exam: Exam): string[] {
  return exam.notes.filter((note) => /^(no )?role labels\b/.test(note));
}

export function roleName(label: string, kind: Kind): string {
  return roleOf(label, kind).name;
}

/** "attends to the previous token" */
export function roleDoes(label: string, kind: Kind): string {
  return label === "none" ? "no clear role" : roleOf(label, kind).does;
}

/** "attends to the previous token: 0.93 of its attention; even attention would give 0.08; rests on the first token" */
export function roleSentence(exam: Exam, head: HeadName): string | null {
  const label = labelOf(exam, head);
  if (label === "") return null;
  const sink = sinkOf(exam, head);
  const second = String(ofHead(exam, "roles.second", head) ?? "none");
  return [
    ...(label === sink ? [] : [scoredRole(exam, head, label)]),
    ...(second === "none" ? [] : [`also ${roleOf(second, head.kind).does}`]),
    ...(sink === "" ? [] : [restSentence(exam, head, sink)]),
  ].join("; ");
}

/** "rests on the first token: 0.61 of its attention, 0.17 of its effect" */
function restSentence(exam: Exam, head: HeadName, sink: string): string {
  const parts = [
    [ofHead(exam, `sinks.${sink}`, head), "attention"],
    [ofHead(exam, `sinks.${sink}_effect`, head), "effect"],
  ] as const;
  const known = parts.flatMap(([share, of]) => (typeof share === "number" ? [`${digits(share)} of its ${of}`] : []));
  return `${roleOf(sink, head.kind).does}${known.length > 0 ? `: ${known.join(", ")}` : ""}`;
}

function scoredRole(exam: Exam, head: HeadName, label: string): string {
  const { does } = roleOf(label, head.kind);
  const score = ofHead(exam, "roles.score", head);
  const baseline = ofHead(exam, "roles.baseline", head);
  if (typeof score !== "number" || typeof baseline !== "number") return does;
  if (label === "syntactic") {
    return `${does}: right for ${digits(score)} of the tokens; one fixed offset would be right for ${digits(baseline)}`;
  }
  return `${does}: ${digits(score)} of its attention there; even attention would give ${digits(baseline)}`;
}

/** "" where structure was not measured. */
export function formOf(exam: Exam, head: HeadName): string {
  return String(ofHead(exam, "structure.form", head) ?? "");
}

const FORMS: Record<string, string> = {
  zero: "map of zeros",
  even: "even attention",
  identity: "diagonal",
  offset: "shifted diagonal",
  column: "one column",
  columns: "blocks of columns",
  band: "band",
  permutation: "permutation",
  map: "one key per query",
  none: "no structured form",
};

export function formName(form: string): string {
  return FORMS[form] ?? form;
}

/** The form that comes nearest over all sentences, also where it is not worth its length; "" where not measured. */
export function closestForm(exam: Exam, head: HeadName): string {
  return String(ofHead(exam, "structure.closest", head) ?? "");
}

/** "shifted diagonal, 2 tokens back": the offset is the one over all sentences. */
export function closestName(exam: Exam, head: HeadName, form: string): string {
  const offset = ofHead(exam, "structure.shift", head);
  if (form !== "offset" || typeof offset !== "number") return formName(form);
  const far = Math.abs(offset);
  const where = offset === 0 ? "" : `, ${far} token${far === 1 ? "" : "s"} ${offset > 0 ? "ahead" : "back"}`;
  return `${formName(form)}${where}`;
}

/** "67 %": the share of a head that its closest form explains; null where it is not known. */
export function explainedShare(exam: Exam, head: HeadName): string | null {
  const share = ofHead(exam, "structure.explained", head);
  return typeof share === "number" ? `${Math.round(100 * Math.max(share, 0))} %` : null;
}

/**
 * Why a head has no structured form, as a sentence; null where it has one.
 *
 * A form must be worth the length of its description and explain at least half; even attention is no structured form.
 */
export function noFormSentence(exam: Exam, head: HeadName): string | null {
  if (formOf(exam, head) !== "none") return null;
  const closest = closestForm(exam, head);
  const share = explainedShare(exam, head);
  if (closest === "" || closest === "none" || share === null) return "no structured form";
  const explained = Number(ofHead(exam, "structure.explained", head));
  if (explained <= 0) return "no structured form fits it: each has a larger error than a map of zeros";
  if (closest === "even") return `no structured form; even attention explains ${share}`;
  const name = closestName(exam, head, closest);
  const reason = explained < 0.5 ? "no pattern explains half of it" : "no pattern is worth its complexity";
  return `${reason}; the closest, ${name}, explains ${share}`;
}

/** "each token to the one at a fixed offset", from the description of the reading. */
export function formWords(exam: Exam, form: string, kind: Kind): string {
  return (reading(exam, `structure.${form}`, kind)?.description ?? "").replace(/^error of /, "");
}
