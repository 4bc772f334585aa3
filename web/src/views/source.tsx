/** Where a formula is from; statements of the documents are links to their verdict. */
import type { JSX } from "preact";
import { linkTo } from "../store";

const STATEMENT = /(\bS\d+\.\d+\b|\bD\d+\b)/;

export function Source({ text }: { text: string }): JSX.Element {
  const parts = text.split(STATEMENT);
  return (
    <span class="source">
      {parts.map((part) => (STATEMENT.test(part) ? <a href={linkTo("claims", part)}>{part}</a> : part))}
    </span>
  );
}
