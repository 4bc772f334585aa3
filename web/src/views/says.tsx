/** What a reading says, and where its formula is from; statements of the documents are links to their verdict. */
import type { JSX } from "preact";
import type { Reading } from "../contract";
import { Words } from "../words";

export function Says({ of: { description, source } }: { of: Reading }): JSX.Element {
  return (
    <>
      {description} (<Words text={source} />)
    </>
  );
}
