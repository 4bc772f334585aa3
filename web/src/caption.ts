/** What a figure says of itself where it stands alone: in its files, and in the names of these files. */
import type { Caption } from "./export";
import type { HeadName } from "./readings";
import { shown } from "./readings";
import { exam, page, pin } from "./store";

/** What a figure shows a part of. */
export interface About {
  head?: HeadName;
  /** Whether it is about the sentence that is shown now, or about these tokens. */
  sentence?: boolean | string[];
}

const MOST_WORDS = 240;
const LONGEST_PART = 32;

/** The last part of a path: names of folders above it belong to the machine of the author. */
export function baseName(path: string): string {
  return path.split(/[/\\]/).findLast((part) => part !== "") ?? path;
}

/** The name of the model that is shown; where its folder is called "model", that of the examination. */
export function modelName(): string {
  const name = baseName(exam.value.model.name);
  return (name === "model" || name === "" ? exam.value.label : name) || "a model";
}

export function captionOf(title: string, about: About, scale: string | undefined): Caption {
  const of = exam.value;
  const words = sentenceOf(about);
  const said = words === null ? null : words.join(" ");
  const head = about.head === undefined ? "" : `head ${shown(of, about.head)}`;
  const sentences = typeof of.corpus.sentences === "number" ? `, examined on ${of.corpus.sentences} sentences` : "";
  return {
    title: title.toLowerCase().includes(head) ? title : `${title}, ${head}`,
    lines: [
      ...(said === null ? [] : [`Sentence: ${said.length > MOST_WORDS ? `${said.slice(0, MOST_WORDS)}…` : said}`]),
      ...(scale === undefined ? [] : [`Colour: ${scale}`]),
      `Model: ${modelName()}${sentences}`,
      `Source: attnworks ${page.value.version}`,
    ],
  };
}

/** all-minilm_head-5.10_attention_the-trophy-did-not.png */
export function fileName(id: string, about: About, type: string): string {
  const parts = [
    modelName(),
    ...(about.head === undefined ? [] : [`head ${shown(exam.value, about.head)}`]),
    id,
    (sentenceOf(about) ?? []).slice(0, 6).join(" "),
  ];
  const plain = parts.map(plainWord).filter((part) => part !== "");
  return `${plain.join("_")}.${type}`;
}

function plainWord(text: string): string {
  const letters = text
    .normalize("NFKD")
    .toLowerCase()
    .replace(/[^a-z0-9.]+/g, "-");
  return letters
    .replace(/\.{2,}/g, ".")
    .slice(0, LONGEST_PART)
    .replace(/^[-.]+|[-.]+$/g, "");
}

function sentenceOf({ sentence }: About): string[] | null {
  if (sentence === undefined || sentence === false) return null;
  return sentence === true ? (pin.value?.tokens ?? null) : sentence;
}
