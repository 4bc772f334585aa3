/** A translation: the words that the decoder attended to while it wrote each word, and the beam search. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { mapOf } from "../blobs";
import type { Pin } from "../contract";
import { Picker } from "../controls";
import { Figure } from "../figure";
import { Heatmap, matrixTable, word } from "../heatmap";
import { type HeadName } from "../readings";
import { choose, exam, linkTo, page, pin } from "../store";
import "./alignment.css";
import { BeamTree } from "./beam";
import { useLoaded } from "./loaded";
import { WordLines, type Alignment } from "./word_lines";

export function AlignmentView(): JSX.Element {
  const { pins } = exam.value;
  const shown = pin.value !== null && tells(pin.value) ? pin.value : (pins.find(tells) ?? null);
  const found = pins.findIndex((one) => one.beam !== null);
  return (
    <section class="whole-words stack">
      <h2>Alignment</h2>
      {shown === null ? (
        <Nothing />
      ) : (
        <>
          <Sentences of={shown} />
          {isTranslated(shown) && <Words pin={shown} />}
          {shown.beam !== null ? (
            <BeamTree key={shown.thumbnails} pin={shown} />
          ) : found >= 0 ? (
            <p class="small muted">
              No beam search was kept for this sentence.{" "}
              <button type="button" class="quiet" onClick={() => choose({ sentence: found })}>
                Show the beam search of sentence {found + 1}
              </button>
            </p>
          ) : (
            <p class="small muted">
              To see the beam search that found it: <code>attnworks translate RUN --trace trace.json "…"</code>, then{" "}
              <code>attnworks report EXAM --trace trace.json</code>.
            </p>
          )}
        </>
      )}
    </section>
  );
}

function isTranslated({ slots }: Pin): boolean {
  return slots.some(({ kind }) => kind === "cross");
}

function tells(one: Pin): boolean {
  return isTranslated(one) || one.beam !== null;
}

function Nothing(): JSX.Element {
  return page.value.live !== null ? (
    <p>
      This model has no cross-attention, so there is no translation to show. Serve one that translates:{" "}
      <code>attnworks serve RUN</code>.
    </p>
  ) : (
    <p>
      No translation in this report. <code>attnworks translate RUN --trace trace.json "…"</code> keeps one with its
      attention and its beam search; <code>attnworks report EXAM --trace trace.json</code> then shows it here.
    </p>
  );
}

/** What was read and what was written. */
function Sentences({ of: { tokens, target, translation } }: { of: Pin }): JSX.Element {
  const text = (words: string[]) => words.map(word).join(" ");
  const written = translation ?? target?.slice(1) ?? [];
  return (
    <dl class="alignment-texts card">
      <dt class="muted">source</dt>
      <dd>{text(tokens)}</dd>
      <dt class="muted">{translation === null ? "target (given to the decoder)" : "translation"}</dt>
      <dd>{text(written)}</dd>
    </dl>
  );
}

// Words ---------------------------------------------------------------------------------------------------------------

function Words({ pin: shown }: { pin: Pin }): JSX.Element | null {
  const which = useSignal("");
  const heads = crossHeads(shown);
  const layers = [...new Set(heads.map(({ layer }) => layer))];
  const options = [
    { value: "", text: "mean of all heads" },
    ...(layers.length > 1 ? layers.map((layer) => ({ value: `cross.${layer}.`, text: `mean of layer ${layer}` })) : []),
    ...heads.map(({ name }) => ({ value: name, text: `head ${name}` })),
  ];
  const chosen = options.find(({ value }) => value === which.value) ?? options[0]!;
  const taken = heads.filter(
    ({ name }) =>
      name === chosen.value || chosen.value === "" || (chosen.value.endsWith(".") && name.startsWith(chosen.value)),
  );
  const alignment = useLoaded(() => meanOf(shown, taken), [shown, chosen.value]);
  if (alignment === null) return null;
  const { read, written, weights, maps } = alignment;
  const single = heads.find(({ name }) => name === chosen.value);
  const table = () => matrixTable("target word", weights, written, read);
  return (
    <>
      <div class="row alignment-controls">
        <Picker label="Attention" options={options} value={chosen.value} onChange={(value) => (which.value = value)} />
        {maps > 0 && maps < taken.length && (
          <p class="small muted">
            of the {maps} of {taken.length} heads whose full maps were kept
          </p>
        )}
        {single !== undefined && <a href={linkTo("head", single.name)}>More about head {single.name}</a>}
      </div>
      {weights.length === 0 ? (
        <p class="muted">Only thumbnails of these heads were kept.</p>
      ) : (
        <div class="columns alignment-figures">
          <Figure
            id="alignment-words"
            title="Attention from target words to source words"
            words="Source words are above or on the left, target words below or on the right. The thicker a line, the larger the attention weight."
            table={table}
          >
            <WordLines {...alignment} label="Source words and target words" />
          </Figure>
          <Figure
            id="alignment-matrix"
            title="The same attention as a matrix"
            words="Each row is the step at which a target word is written, when the decoder knows only the words before it; each column is a source word."
            table={table}
          >
            <Heatmap
              values={weights}
              rows={written}
              columns={read}
              label="Attention by target word and source word"
              height={460}
            />
          </Figure>
        </div>
      )}
    </>
  );
}

function crossHeads({ slots }: Pin): HeadName[] {
  return slots
    .filter(({ kind }) => kind === "cross")
    .flatMap(({ name, heads }) =>
      Array.from({ length: heads }, (_, head) => ({
        kind: "cross" as const,
        layer: Number(name.split(".")[1]),
        head,
        name: `${name}.${head}`,
      })),
    );
}

/** A mean of maps; `maps` is their number. */
interface Mean extends Alignment {
  maps: number;
}

/** The mean of the maps of these heads. The decoder reads <bos> w1 w2 …: its row i stands where word i + 1 is written. */
async function meanOf(shown: Pin, heads: HeadName[]): Promise<Mean> {
  const maps = (await Promise.all(heads.map((head) => mapOf(shown, head)))).filter((map) => map !== null);
  const sum = maps.reduce(
    (total, map) => total.map((weight, place) => weight + (map[place] ?? 0)),
    new Float32Array(maps[0]?.length ?? 0),
  );
  const target = shown.target ?? [];
  return {
    read: shown.tokens,
    written: [...target.slice(1), "(end)"],
    weights: sum.map((weight) => weight / maps.length),
    maps: maps.length,
  };
}
