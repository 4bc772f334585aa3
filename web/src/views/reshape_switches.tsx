/** All heads as buttons with their maps, layer by layer, and a list of mechanisms for every layer. */
import type { JSX } from "preact";
import type { Thumbnail } from "../blobs";
import type { Changes } from "../contract";
import { live } from "../live";
import { swap } from "../live_changes";
import { headsOf, KIND_WORDS, kindsOf, layersOf, shown, slotName, type HeadName } from "../readings";
import { page } from "../store";
import { onArrowKey } from "./arrow_keys";
import { ThumbnailImage, useThumbnails } from "./thumbnails";

const AS_IT_IS = "";

interface Props {
  /** By layer. */
  mechanisms: Record<string, string[]>;
  /** Whether a head can be picked. */
  possible: (head: HeadName) => boolean;
  onPick: (head: string) => void;
  onKey: (key: string, head: HeadName) => void;
}

export function HeadSwitches({ mechanisms, possible, onPick, onKey }: Props): JSX.Element {
  const examined = live.base.value?.exam ?? page.value.exams[0];
  const pictures = useThumbnails();
  if (examined === undefined) return <p class="muted">Waiting for the first sentence.</p>;
  const heads = headsOf(examined);
  const changes = live.changes.value;
  const several = kindsOf(examined).length > 1;
  let row = 0;
  return (
    <div
      class="switches"
      onKeyDown={(event) => {
        const name = event.target instanceof HTMLElement ? event.target.dataset["head"] : undefined;
        const head = heads.find((one) => one.name === name);
        if (head !== undefined && !event.ctrlKey && !event.metaKey && !event.altKey) onKey(event.key, head);
        onArrowKey(event);
      }}
    >
      {kindsOf(examined).map((kind) => (
        <fieldset key={kind} class="switches-kind">
          {several && <legend class="small muted">{KIND_WORDS[kind]}</legend>}
          {layersOf(examined, kind).map((layer) => {
            const place = row++;
            const slot = slotName(kind, layer);
            return (
              <div key={layer} class="switches-layer" role="group" aria-label={`layer ${slot}`}>
                <LayerPicker slot={slot} mechanisms={mechanisms[slot] ?? []} changes={changes} />
                <div class="switches-heads">
                  {heads
                    .filter((head) => head.kind === kind && head.layer === layer)
                    .map((head) => (
                      <HeadSwitch
                        key={head.name}
                        head={head}
                        text={shown(examined, head)}
                        state={stateOf(changes, head)}
                        picture={pictures?.get(head.name) ?? null}
                        at={`${head.head},${place}`}
                        first={head === heads[0]}
                        onPick={possible(head) ? onPick : null}
                      />
                    ))}
                </div>
              </div>
            );
          })}
        </fieldset>
      ))}
    </div>
  );
}

function HeadSwitch(props: {
  head: HeadName;
  text: string;
  state: string | null;
  picture: Thumbnail | null;
  at: string;
  first: boolean;
  onPick: ((head: string) => void) | null;
}): JSX.Element {
  const { head, text, state, picture, at, first, onPick } = props;
  const called = `head ${text}${state === null ? "" : `, ${state}`}`;
  return (
    <button
      type="button"
      class={`switch ${state === null ? "" : state === "cut" ? "switch-cut" : "switch-formed"}`}
      aria-pressed={state !== null}
      aria-label={called}
      aria-disabled={onPick === null}
      title={onPick === null ? "it cannot be projected onto this form" : called}
      data-head={head.name}
      data-at={at}
      tabIndex={first ? 0 : -1}
      onClick={() => onPick?.(head.name)}
    >
      {picture === null ? <span class="switch-empty" /> : <ThumbnailImage picture={picture} />}
      <span class="switch-name">{state ?? head.head}</span>
    </button>
  );
}

function LayerPicker(props: { slot: string; mechanisms: string[]; changes: Changes }): JSX.Element {
  const { slot } = props;
  const now = props.changes.swap[slot] ?? AS_IT_IS;
  return (
    <label class="switches-picker">
      <span class="reshape-where">{slot}</span>
      {props.mechanisms.length > 0 && (
        <select
          class={now === AS_IT_IS ? "" : "switches-swapped"}
          title={now === AS_IT_IS ? "unchanged" : now}
          aria-label={`mechanism of layer ${slot}`}
          value={now}
          onChange={({ currentTarget: { value } }) =>
            live.change(swap(live.changes.value, slot, value === AS_IT_IS ? null : value))
          }
        >
          <option value={AS_IT_IS}>unchanged</option>
          {props.mechanisms.map((mechanism) => (
            <option key={mechanism} value={mechanism}>
              {short(mechanism)}
            </option>
          ))}
        </select>
      )}
    </label>
  );
}

/** window:window=4 as "window 4". */
function short(mechanism: string): string {
  const [name = "", options = ""] = mechanism.split(":");
  return `${name} ${options.replaceAll(/\w+=/g, "").replaceAll(",", ", ")}`.trim();
}

/** "cut", or the form that the head was given. */
function stateOf(changes: Changes, { name }: HeadName): string | null {
  return changes.cut.includes(name) ? "cut" : (changes.project[name] ?? null);
}
