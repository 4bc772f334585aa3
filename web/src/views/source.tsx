/** Where a formula is from; statements of the documents are links to their verdict. */
import type { JSX } from "preact";
import { Words } from "../formula";

export function Source({ text }: { text: string }): JSX.Element {
  return (
    <span class="source">
      <Words text={text} />
    </span>
  );
}
