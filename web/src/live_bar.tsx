/** The bar above every view of the live page: the sentence, the changes, and the outputs of the model. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { Changes } from "./contract";
import { live } from "./live";
import { changesAnything, NO_CHANGES, undos } from "./live_changes";
import { OutputsPanel } from "./outputs";
import { page } from "./store";
import "./live_bar.css";

/** Letters; the server counts tokens. */
const LONGEST = 10_000;

export function LiveBar(): JSX.Element | null {
  useEffect(live.start, []);
  const host = page.value.live;
  if (host === null) return null;
  const wrong = live.error.value !== null;
  return (
    <section class="live-bar" aria-label="Live">
      <form
        onSubmit={(event) => {
          event.preventDefault();
          live.ask(0);
        }}
      >
        <label for="live-text">{host.kind === "encoder-decoder" ? "Sentence to translate" : "Sentence"}</label>
        <input
          id="live-text"
          type="text"
          maxLength={LONGEST}
          autocomplete="off"
          spellcheck={false}
          placeholder="Type a sentence"
          value={live.text.value}
          aria-describedby="live-state live-error"
          aria-invalid={wrong}
          onInput={(event) => {
            live.text.value = event.currentTarget.value;
            live.ask();
          }}
        />
        <State />
      </form>
      <p id="live-error" class="live-error" aria-live="polite">
        {live.error.value ?? unknownWords()}
      </p>
      <div class="live-outcome">
        <Chips />
        <Says />
      </div>
    </section>
  );
}

/** "2 of 4 words are not in the vocabulary of this model: Quantum, flibbertigibbet." */
function unknownWords(): string {
  const unknown = live.now.value?.outputs?.unknown ?? [];
  if (unknown.length === 0) return "";
  const all = live.text.value.trim().split(/\s+/).length;
  const which = unknown.length === 1 ? "1 word is" : `${unknown.length} of ${all} words are`;
  return `${which} not in the vocabulary of this model: ${unknown.join(", ")}.`;
}

function State(): JSX.Element {
  const tokens = live.now.value?.exam.pins[0]?.tokens.length;
  const most = page.value.live?.tokens;
  const took = live.milliseconds.value;
  const wrong = live.error.value !== null;
  const told = {
    idle: took === null ? "" : `answered in ${took} ms`,
    looking: "running the model …",
    measuring: took === null ? "measuring …" : `answered in ${took} ms, measuring …`,
    waiting: "the server is busy, waiting …",
  }[live.state.value];
  return (
    <p id="live-state" class={`live-state small muted ${live.busy.value ? "live-busy" : wrong ? "live-wrong" : ""}`}>
      <span class="live-dot" aria-hidden="true" />
      <span>
        {live.text.value.trim() === ""
          ? "Empty: still showing the previous sentence."
          : wrong
            ? ""
            : `${tokens ?? "-"} of ${most} tokens`}
      </span>
      <span role="status">{wrong && !live.busy.value ? "" : told}</span>
    </p>
  );
}

function Chips(): JSX.Element | null {
  const changes = live.changes.value;
  if (!changesAnything(changes)) return null;
  return (
    <div class="live-chips">
      <ul aria-label="Changes to the model">
        {undos(changes).map(({ words, without }) => (
          <li key={words}>
            {words}
            <button type="button" aria-label={`Undo: ${words}`} onClick={() => undo(without)}>
              ×
            </button>
          </li>
        ))}
      </ul>
      <button type="button" class="quiet" onClick={() => undo(NO_CHANGES)}>
        Undo all
      </button>
    </div>
  );
}

/** The pressed button disappears together with its change, so the focus moves to the sentence. */
function undo(without: Changes): void {
  live.change(without);
  document.getElementById("live-text")?.focus();
}

function Says(): JSX.Element | null {
  const outputs = live.now.value?.outputs ?? null;
  const changed = live.changed.value;
  const none = live.error.value !== null || live.text.value.trim() === "";
  if (none || outputs === null || (outputs.before.length === 0 && !changed)) return null;
  return (
    <div class={live.state.value === "looking" ? "live-old" : ""} aria-busy={live.state.value === "looking"}>
      <OutputsPanel outputs={outputs} changed={changed} />
    </div>
  );
}
