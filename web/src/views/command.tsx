/** A command line to copy. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { copy } from "../export";
import { exam } from "../store";
import "./command.css";

/** Names that stand in a shell without quotes. */
const PLAIN = /^[\w.:@/+-]+$/;

/** MODEL becomes the name of the model, where that is safe to paste into a shell. */
export function Command({ text }: { text: string }): JSX.Element {
  const [said, setSaid] = useState("");
  const { name } = exam.value.model;
  const command = PLAIN.test(name) ? text.replace(/\bMODEL\b/, () => name) : text;
  return (
    <span class="command">
      <code>{command}</code>
      <button
        type="button"
        class="quiet"
        aria-label={`Copy the command ${command}`}
        onClick={() => void copy(command).then((done) => setSaid(done ? "copied" : "select and copy it"))}
      >
        Copy
      </button>
      <span class="small muted" role="status">
        {said}
      </span>
    </span>
  );
}
