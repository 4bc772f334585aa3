/** What a head looks at: in this sentence, and over the examined text, with sentences that show it. */
import type { JSX } from "preact";
import { slotOf } from "../blobs";
import type { Pin } from "../contract";
import { Figure } from "../figure";
import { word } from "../heatmap";
import type { HeadName } from "../readings";
import { digits, percent, shown, sides } from "../readings";
import { exam } from "../store";
import { Bars } from "../plot";
import { received } from "./weighing";

const MOST_BARS = 8;

interface Share {
  token: string;
  place: number;
  share: number;
}

/** Tokens of the keys by the attention that they get, the largest first. */
export function lookedAt(pin: Pin, head: HeadName, map: Float32Array): Share[] {
  const { rows, columns } = sides(pin, head.kind);
  const shares = received(map, rows.length, columns.length);
  return columns
    .map((token, place) => ({ token: word(token), place, share: shares[place] ?? 0 }))
    .sort((a, b) => b.share - a.share);
}

/** Bars of the tokens of this sentence; a token where attention rests is grey. */
export function LooksHere({ pin, head, map }: { pin: Pin; head: HeadName; map: Float32Array }): JSX.Element {
  const all = lookedAt(pin, head, map);
  const sinks = new Set(slotOf(pin, head)?.sinks ?? []);
  return (
    <Figure
      id="looks"
      title="What it looks at in this sentence"
      about={{ head, sentence: pin.tokens }}
      words="Tokens by the share of all attention that they get. Grey: the first token and special tokens, where attention rests."
      table={() => ({
        columns: ["position", "token", "share", "rests"],
        rows: all.map(({ token, place, share }) => [place, token, share, sinks.has(place) ? "yes" : "no"]),
      })}
    >
      <Bars
        bars={all.slice(0, MOST_BARS).map(({ token, place, share }) => ({
          name: token,
          value: share,
          colour: sinks.has(place) ? "var(--none)" : "var(--c0)",
        }))}
        x="share of the attention"
        label={`Tokens that head ${shown(exam.value, head)} attends to in this sentence`}
      />
    </Figure>
  );
}

/** Over the whole text; null where this was not measured. */
export function LooksOverall({ head }: { head: HeadName }): JSX.Element | null {
  const of = exam.value;
  const found = of.attended?.heads[head.name];
  if (found === undefined || of.attended === null || of.corpus.sentences === 1) return null;
  const { sentences } = of.attended;
  const tokens = found.tokens.toSorted((a, b) => b[1] - a[1]);
  return (
    <Figure
      id="looks-overall"
      title={`What it looks at in all ${of.corpus.sentences ?? ""} sentences`.replace("  ", " ")}
      about={{ head }}
      words={
        found.tokens.length === 0
          ? "No token gets more of its attention than even attention would give it."
          : "Without the first token and special tokens: tokens that get more of its attention than even attention would give them, and how many times as much."
      }
      table={() => ({
        columns: ["token", "share", "share of even attention", "occurrences"],
        rows: tokens.map(([token, share, even, count]) => [word(token), share, even, count]),
      })}
    >
      {found.tokens.length > 0 && (
        <Bars
          bars={tokens.map(([token, share, even]) => ({
            name: `${word(token)} (${times(share, even)})`,
            value: share,
          }))}
          x="share of the attention"
          label={`Tokens that head ${shown(of, head)} attends to: ${tokens
            .map(([token, share, even]) => `${word(token)} ${digits(share)}, even ${digits(even)}`)
            .join("; ")}`}
        />
      )}
      {found.examples.length > 0 && <h4>Sentences that show it</h4>}
      <ol class="examples">
        {found.examples.map(([number, shares]) => (
          <li key={number}>
            <Shaded tokens={sentences[number] ?? []} shares={shares.map((share) => share / 100)} />
          </li>
        ))}
      </ol>
    </Figure>
  );
}

/** "2.3 ×": as much as even attention. */
function times(share: number, even: number): string {
  return even > 0 ? `${digits(share / even)} ×` : "new";
}

/** A sentence whose tokens are shaded by their share of the attention. */
export function Shaded({ tokens, shares }: { tokens: string[]; shares: ArrayLike<number> }): JSX.Element {
  const most = Math.max(0.05, ...Array.from(shares));
  return (
    <span class="shaded">
      {tokens.map((token, place) => {
        const share = shares[place] ?? 0;
        return (
          <span key={place} title={percent(share)}>
            {share >= 0.005 && <i style={{ transform: `scaleY(${(share / most).toFixed(3)})` }} />}
            {word(token)}
          </span>
        );
      })}
    </span>
  );
}
