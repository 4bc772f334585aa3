/** What heads read: the map of each on the sentence that shows it best, and its strongest weights in words. */
import type { JSX } from "preact";
import { mapOf, thumbnailsOf, type Thumbnail } from "../blobs";
import type { Pin } from "../contract";
import { word } from "../heatmap";
import type { HeadName } from "../readings";
import { capital, digits, parseHead, shown, sides } from "../readings";
import { exam, linkTo } from "../store";
import { useLoaded } from "./loaded";
import { roleSentence } from "./roles";
import { ThumbnailImage } from "./thumbnails";

const STRONGEST = 3;

interface Example {
  place: number;
  picture: Thumbnail | undefined;
  pairs: { query: string; key: string; weight: number }[];
}

export function StoryHeads({ names }: { names: string[] }): JSX.Element {
  const of = exam.value;
  const heads = names.flatMap((name) => parseHead(of, name) ?? []);
  return (
    <div class="columns story-heads">
      {heads.map((head) => (
        <HeadExample key={head.name} head={head} />
      ))}
    </div>
  );
}

function HeadExample({ head }: { head: HeadName }): JSX.Element {
  const of = exam.value;
  const example = useLoaded(() => clearest(of.pins, head), [of, head.name]);
  const found = example === null ? undefined : of.pins[example.place];
  return (
    <div class="card">
      <p>
        <a href={linkTo("head", head.name, example === null ? {} : { sentence: example.place })}>
          <b>Head {shown(of, head)}</b>
        </a>{" "}
        {roleSentence(of, head)?.split(":")[0]}
      </p>
      {example?.picture !== undefined && <ThumbnailImage picture={example.picture} />}
      {example !== null && found !== undefined && (
        <ul class="small">
          {example.pairs.map(({ query, key, weight }) => (
            <li key={`${query} ${key} ${weight}`}>
              {word(query)} → <b>{word(key)}</b> {digits(weight)}
            </li>
          ))}
        </ul>
      )}
      {example === null && <p class="small muted">{capital("no sentence was kept")}</p>}
    </div>
  );
}

/** The sentence on which the head is sharpest behind the first token, and its largest weights there. */
async function clearest(pins: Pin[], head: HeadName): Promise<Example | null> {
  const examples = await Promise.all(
    pins.map(async (one, place) => {
      const map = await mapOf(one, head);
      const { rows, columns } = sides(one, head.kind);
      const best = rows.flatMap((query, row) => {
        if (map === null || row === 0) return [];
        let [at, weight] = [-1, 0];
        for (let column = 1; column < columns.length; column++) {
          const found = map[row * columns.length + column] ?? 0;
          if (found > weight) [at, weight] = [column, found];
        }
        return at < 0 ? [] : [{ query, key: columns[at]!, weight }];
      });
      const mean = best.reduce((sum, { weight }) => sum + weight, 0) / Math.max(1, best.length);
      const pairs = [...best].sort((a, b) => b.weight - a.weight).slice(0, STRONGEST);
      return { place, mean, pairs };
    }),
  );
  const chosen = examples.sort((a, b) => b.mean - a.mean)[0];
  const sentence = chosen === undefined ? undefined : pins[chosen.place];
  if (chosen === undefined || sentence === undefined) return null;
  const picture = (await thumbnailsOf(sentence)).get(head.name);
  return { place: chosen.place, picture, pairs: chosen.pairs };
}
