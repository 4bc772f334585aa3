/** The outputs of the model, without and with changes. */
import type { JSX } from "preact";
import type { Output, Outputs } from "./contract";
import { percent } from "./readings";
import "./outputs.css";

export function OutputsPanel({ outputs, changed }: { outputs: Outputs; changed: boolean }): JSX.Element {
  const { words, before, after, moved, cosine } = outputs;
  return (
    <div class="outputs">
      {before.length > 0 && (
        <>
          <p class="outputs-words">{words}</p>
          {changed ? (
            <div class="columns outputs-both">
              <Said title="original" items={before} others={before} />
              <Said title="changed" items={after} others={before} />
            </div>
          ) : (
            <Said items={before} others={before} />
          )}
        </>
      )}
      {changed && (
        <p class="outputs-moved">
          {cosine !== null && (
            <>
              The new sentence embedding has a cosine of <strong>{cosine.toFixed(cosine > 0.999 ? 5 : 3)}</strong> with
              the original (1: unchanged).{" "}
            </>
          )}
          The output of the last layer changed by <strong>{percent(moved)}</strong> of its norm
          {before.length > 0 && ` · ${sameTexts(before, after) ? "same output" : "different output"}`}
        </p>
      )}
    </div>
  );
}

function Said({ title, items, others }: { title?: string; items: Output[]; others: Output[] }): JSX.Element {
  return (
    <div class="outputs-said">
      {title !== undefined && <p class="small muted">{title}</p>}
      <ol>
        {items.map((item, place) => (
          <li key={place}>
            <span class="outputs-text">
              <Marked text={item.text} other={others[place]?.text ?? ""} />
            </span>
            {item.probability !== null && (
              <>
                <span class="outputs-bar" aria-hidden="true">
                  <span style={{ width: `${100 * Math.min(1, item.probability)}%` }} />
                </span>
                <span class="num small" title="probability">
                  {percent(item.probability)}
                </span>
              </>
            )}
          </li>
        ))}
      </ol>
    </div>
  );
}

/** Highlight the words that are not in the longest common subsequence of both texts. */
function Marked({ text, other }: { text: string; other: string }): JSX.Element {
  const words = text.split(" ");
  const common = commonPlaces(words, other.split(" "));
  return (
    <>
      {words.map((word, place) => (
        <>
          {place > 0 && " "}
          {common.has(place) ? word : <mark key={place}>{word}</mark>}
        </>
      ))}
    </>
  );
}

/** Places in `one` of a longest common subsequence. */
function commonPlaces(one: string[], other: string[]): Set<number> {
  const longest = Array.from({ length: one.length + 1 }, () => new Uint16Array(other.length + 1));
  for (let i = one.length - 1; i >= 0; i--) {
    for (let j = other.length - 1; j >= 0; j--) {
      const [down, right] = [longest[i + 1]![j]!, longest[i]![j + 1]!];
      longest[i]![j] = one[i] === other[j] ? longest[i + 1]![j + 1]! + 1 : Math.max(down, right);
    }
  }
  const places = new Set<number>();
  for (let i = 0, j = 0; i < one.length && j < other.length;) {
    if (one[i] === other[j]) (places.add(i++), j++);
    else if (longest[i + 1]![j]! >= longest[i]![j + 1]!) i++;
    else j++;
  }
  return places;
}

function sameTexts(one: Output[], other: Output[]): boolean {
  return one.length === other.length && one.every((item, place) => item.text === other[place]?.text);
}
