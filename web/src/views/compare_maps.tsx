/** The map of one head on one sentence: before, after, and the difference. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { mapOf } from "../blobs";
import type { Comparison, Exam, Kind, Pin } from "../contract";
import { Picker } from "../controls";
import { Figure } from "../figure";
import { beginning, Heatmap, matrixTable } from "../heatmap";
import { digits, parseHead, renamed, sides, type HeadName } from "../readings";
import { page } from "../store";
import { useLoaded } from "./loaded";

export function MapsCompared({
  before,
  after,
  comparison: { changes, heads: compared },
}: {
  before: Exam;
  after: Exam;
  comparison: Comparison;
}): JSX.Element | null {
  const heads = compared.matches.flatMap((match): HeadOfBoth[] => {
    const one = match.state === "compared" ? parseHead(before, match.before ?? "") : null;
    const other = one === null ? null : parseHead(after, match.after ?? "");
    return one === null || other === null ? [] : [{ ...one, other }];
  });
  const chosen = useSignal<string | null>(null);
  const sentence = useSignal(0);
  const comparable = heads.filter(({ kind }) => pairsOf(before, after, kind).length > 0);
  const most = changes.find(({ certain, where }) => certain !== false && comparable.some(({ name }) => name === where));
  const head = heads.find(({ name }) => name === (chosen.value ?? most?.where)) ?? comparable[0] ?? heads[0];
  if (head === undefined) return null;
  const pairs = pairsOf(before, after, head.kind);
  const pair = pairs[sentence.value] ?? pairs[0];
  return (
    <>
      <div class="row compare-chooser">
        <h3>One head on one sentence</h3>
        <Picker
          label="Head"
          options={heads.map(({ name, other }) => ({ value: name, text: renamed(name, other.name) }))}
          value={head.name}
          onChange={(name) => (chosen.value = name)}
        />
        {pairs.length > 1 && (
          <Picker
            label="Sentence"
            options={pairs.map(([{ tokens }], place) => ({ value: String(place), text: beginning(tokens) }))}
            value={String(pair === undefined ? 0 : pairs.indexOf(pair))}
            onChange={(place) => (sentence.value = Number(place))}
          />
        )}
      </div>
      {pair === undefined ? <NoPair live={page.value.live !== null} /> : <MapPair pair={pair} head={head} />}
    </>
  );
}

/** A head of the first examination, and the same head in the second. */
interface HeadOfBoth extends HeadName {
  other: HeadName;
}

function NoPair({ live }: { live: boolean }): JSX.Element {
  return (
    <p class="small muted">
      {live ? (
        "The changed model writes a different translation, so these maps have different rows. Choose a head of the encoder."
      ) : (
        <>
          The two examinations have no sentence with the same tokens in common:{" "}
          <code>attnworks examine MODEL --pin "…"</code> keeps one; with the same sentence in both, the maps of a head
          before and after are shown here.
        </>
      )}
    </p>
  );
}

/** Sentences whose maps of this kind have the same rows and columns on both sides. */
function pairsOf(before: Exam, after: Exam, kind: Kind): [Pin, Pin][] {
  const key = (pin: Pin) => JSON.stringify(sides(pin, kind));
  return before.pins.flatMap((pin): [Pin, Pin][] => {
    const other = after.pins.find((one) => key(one) === key(pin));
    return other === undefined ? [] : [[pin, other]];
  });
}

function MapPair({ pair, head }: { pair: [Pin, Pin]; head: HeadOfBoth }): JSX.Element | null {
  const [before, after] = pair;
  const maps = useLoaded(
    async () => ({
      of: head,
      ...sides(before, head.kind),
      both: await Promise.all([mapOf(before, head), mapOf(after, head.other)]),
    }),
    [before, after, head.name, head.other.name],
  );
  if (maps === null) return null;
  const { rows, columns } = maps;
  const [one, other] = maps.both;
  if (!one || !other || one.length !== other.length) {
    return <p class="muted">Only a thumbnail of this head was kept in one examination; choose another head.</p>;
  }
  const shift = other.map((weight, place) => weight - (one[place] ?? 0));
  const moved = shift.reduce((sum, difference) => sum + Math.abs(difference), 0) / 2 / Math.max(1, rows.length);
  const drawn = [
    { id: "before", title: `Head ${maps.of.name}, before`, values: one, scaled: {} },
    { id: "after", title: `Head ${maps.of.other.name}, after`, values: other, scaled: {} },
    { id: "difference", title: "After minus before", values: shift, scaled: { scale: "diverging" } },
  ] as const;
  return (
    <div class="columns compare-maps">
      {drawn.map(({ id, title, values, scaled }) => (
        <Figure
          key={id}
          id={`compare-map-${id}`}
          title={title}
          words={
            values === shift
              ? `Violet: more weight after. Orange: less. ${digits(100 * moved)} % of the attention moved.`
              : "Rows are queries, columns are keys; a stronger colour is a larger weight."
          }
          table={() => matrixTable("query token", values, rows, columns)}
        >
          <Heatmap values={values} rows={rows} columns={columns} {...scaled} label={title} height={380} />
        </Figure>
      ))}
    </div>
  );
}
