/** All about one head. */
import type { JSX } from "preact";
import { fitOf, mapOf } from "../blobs";
import type { Exam, Pin } from "../contract";
import type { HeadName } from "../readings";
import { doesNotApply, headsOf, KIND_WORDS, parseHead, shown } from "../readings";
import { exam, lastHead, pin, route } from "../store";
import { HeadFacts } from "./head_facts";
import { HeadFit, HeadForms } from "./head_fit";
import { HeadMap, SmallMap } from "./head_map";
import { HeadOffsets } from "./head_offsets";
import { Neighbours, Place, useHeadKeys } from "./head_place";
import { HeadEnergy, HeadRanks, HeadSpectrum } from "./head_spectrum";
import { HeadStanding } from "./head_standing";
import { useLoaded } from "./loaded";
import "./head.css";

export function HeadView(): JSX.Element {
  const asked = route.value.head ?? lastHead.value;
  const found = asked === null ? null : parseHead(exam.value, asked);
  const head = found ?? headsOf(exam.value)[0];
  if (head === undefined) {
    return (
      <>
        <h2>Head</h2>
        <p>This examination has no heads.</p>
      </>
    );
  }
  return (
    <div class="stack">
      {route.value.head !== null && found === null && (
        <p role="alert">
          There is no head <code>{asked}</code> in this examination; this is the first one.
        </p>
      )}
      <HeadPage head={head} />
    </div>
  );
}

interface Loaded {
  pin: Pin | null;
  head: HeadName;
  map: Float32Array | null;
  fit: Float32Array | null;
}

async function load(sentence: Pin | null, head: HeadName): Promise<Loaded> {
  const [map, fit] =
    sentence === null ? [null, null] : await Promise.all([mapOf(sentence, head), fitOf(sentence, head)]);
  return { pin: sentence, head, map, fit };
}

function HeadPage({ head }: { head: HeadName }): JSX.Element {
  const sentence = pin.value;
  const loaded = useLoaded(() => load(sentence, head), [sentence, head.name]);
  useHeadKeys(head);
  return (
    <>
      <section class="card head-top">
        <div>
          <div class="row head-title">
            <h2>Head {shown(exam.value, head)}</h2>
            <Neighbours head={head} />
          </div>
          <p class="muted small">
            Layer {head.layer}, head {head.head} of the {KIND_WORDS[head.kind]}, counted from 0. Use the arrow keys to
            go to its neighbours.
          </p>
          <HeadFacts head={head} />
        </div>
        <Place head={head} />
      </section>
      <div class="head-main">
        <div class="head-map">{loaded !== null && <Maps {...loaded} />}</div>
        <div class="stack">
          <HeadOffsets head={head} />
          <HeadForms head={head} />
        </div>
      </div>
      {loaded?.pin && loaded.map && loaded.fit && (
        <HeadFit pin={loaded.pin} head={loaded.head} map={loaded.map} fit={loaded.fit} />
      )}
      <div class="head-main">
        <HeadStanding head={head} />
        <div class="stack">
          {loaded?.pin && <HeadSpectrum pin={loaded.pin} head={loaded.head} />}
          <HeadEnergy head={head} />
        </div>
      </div>
      <HeadRanks head={head} />
      <More of={exam.value} />
    </>
  );
}

function Maps({ pin: sentence, head, map }: Loaded): JSX.Element {
  if (sentence !== null)
    return map === null ? <SmallMap head={head} /> : <HeadMap pin={sentence} head={head} map={map} />;
  return (
    <section class="card">
      <h3>Attention</h3>
      <p class="muted">
        No sentence was kept with this examination, so there is no map to show. To keep one:{" "}
        <code>attnworks examine MODEL --pin "a sentence" --out exam/</code>.
      </p>
    </section>
  );
}

const ADDING: Record<string, string> = {
  roles: "what it attends to",
  structure: "its closest structured form",
  saturation: "entropy and gradient",
  sinks: "attention to first tokens and delimiters",
  spectra: "ranks of maps and weights",
  importance: "how sensitive the loss is to it",
  ablation: "the loss without it",
  redundancy: "the most similar head",
  bottleneck: "whether it lacks keys or values",
};

/** Which measures would add more here. */
function More({ of }: { of: Exam }): JSX.Element | null {
  const there = new Set(Object.keys(of.readings).map((name) => name.slice(0, name.indexOf("."))));
  const missing = Object.entries(ADDING).filter(([name]) => !there.has(name) && !doesNotApply(of, name));
  if (missing.length === 0) return null;
  return (
    <p class="muted small">
      Not measured here: {missing.map(([, words]) => words).join("; ")}. To measure them:{" "}
      <code>attnworks examine MODEL --measures {missing.map(([name]) => name).join(",")}</code>
    </p>
  );
}
