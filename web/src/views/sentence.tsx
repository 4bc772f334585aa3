/** The sentence in words. The word under the pointer, or with the focus, lights its row in every tile of the grid. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { word } from "../heatmap";
import { pin } from "../store";
import { onArrowKey } from "./arrow_keys";
import { lit, type Side } from "./spotlight";
import "./sentence.css";

export function Sentence(): JSX.Element | null {
  const sentence = pin.value;
  if (sentence === null) return null;
  const { tokens, target } = sentence;
  return (
    <div class="sentence" onMouseLeave={() => (lit.value = null)}>
      <Words side="tokens" words={tokens} label={target === null ? "Sentence" : "Source"} />
      {target !== null && <Words side="target" words={target} label="Target" />}
    </div>
  );
}

function Words({ side, words, label }: { side: Side; words: string[]; label: string }): JSX.Element {
  const reached = useSignal(0);
  const first = reached.value < words.length ? reached.value : 0;
  const light = (at: number) => (lit.value = { side, at });
  return (
    <p
      class="sentence-words"
      role="group"
      aria-label={`${label}: a word lights its row in all pictures; move with the arrow keys`}
      onKeyDown={onArrowKey}
    >
      {words.map((token, at) => (
        <button
          key={at}
          type="button"
          class={`sentence-word ${lit.value?.side === side && lit.value.at === at ? "sentence-lit" : ""}`}
          tabIndex={at === first ? 0 : -1}
          data-at=""
          onMouseEnter={() => light(at)}
          onFocus={() => ((reached.value = at), light(at))}
          onBlur={() => (lit.value = null)}
        >
          {word(token)}
        </button>
      ))}
    </p>
  );
}
