/** All about one head. */
import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { addressed } from "../addressed";
import { fitOf, mapOf } from "../blobs";
import type { Exam, Pin } from "../contract";
import type { HeadName } from "../readings";
import { Picker, toggled } from "../controls";
import { beginning } from "../heatmap";
import { doesNotApply, headsOf, parseHead, shown } from "../readings";
import { exam, lastHead, pin, printing, route } from "../store";
import { HeadFacts } from "./head_facts";
import { HeadFit, HeadForms } from "./head_fit";
import { HeadMap, SmallMap } from "./head_map";
import { LooksHere, LooksOverall } from "./head_looks";
import { HeadOffsets } from "./head_offsets";
import { Neighbours, useHeadKeys } from "./head_place";
import { headSays } from "./head_says";
import { HeadSpectrum } from "./head_spectrum";
import { HeadStanding } from "./head_standing";
import { useLoaded } from "./loaded";
import "./head.css";

export function HeadView(): JSX.Element {
  const of = exam.value;
  const asked = route.value.head ?? lastHead.value;
  const found = asked === null ? null : parseHead(of, asked);
  const head = found ?? firstHead(of);
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
      {route.value.head !== null && found === null && route.value.head !== "" && (
        <p role="alert">
          There is no head <code>{asked}</code> in this examination; this is head {shown(of, head)}.
        </p>
      )}
      <HeadPage head={head} />
    </div>
  );
}

/** The head of the finding with the largest effect that is about one head, or about any; else the first of all. */
export function firstHead(of: Exam): HeadName | undefined {
  const found = of.findings
    .map(({ heads, weight }) => ({ weight, heads: heads.flatMap((name) => parseHead(of, name) ?? []) }))
    .filter(({ heads }) => heads.length > 0)
    .sort((a, b) => Number(b.heads.length === 1) - Number(a.heads.length === 1) || b.weight - a.weight);
  return found[0]?.heads[0] ?? headsOf(of)[0];
}

interface Loaded {
  pin: Pin | null;
  head: HeadName;
  map: Float32Array | null;
  fit: Float32Array | null;
  beside: { pin: Pin; map: Float32Array } | null;
}

async function load(sentence: Pin | null, head: HeadName, other: Pin | null): Promise<Loaded> {
  const [map, fit, second] = await Promise.all([
    sentence === null ? null : mapOf(sentence, head),
    sentence === null ? null : fitOf(sentence, head),
    other === null ? null : mapOf(other, head),
  ]);
  return {
    pin: sentence,
    head,
    map,
    fit,
    beside: other === null || second === null ? null : { pin: other, map: second },
  };
}

/** The number of the sentence beside the one that is shown; null for none. */
const beside = addressed<string>("head", "beside", "");

function HeadPage({ head }: { head: HeadName }): JSX.Element {
  const of = exam.value;
  const sentence = pin.value;
  const other = beside.value === "" ? null : (of.pins[Number(beside.value)] ?? null);
  const loaded = useLoaded(
    () => load(sentence, head, other === sentence ? null : other),
    [sentence, head.name, other === sentence ? null : other],
  );
  useHeadKeys(head);
  const says = headSays(of, head);
  return (
    <>
      <section class="card head-top">
        <div>
          <div class="row head-title">
            <h2>Head {shown(of, head)}</h2>
            <Neighbours head={head} />
          </div>
          {says !== "" && <p class="head-says">{says}</p>}
          <details class="small">
            <summary>Evidence</summary>
            <HeadFacts head={head} />
          </details>
        </div>
      </section>
      <div class="head-main">
        <div class="head-map">{loaded !== null && <Maps {...loaded} />}</div>
        <div class="stack">
          {loaded?.pin && loaded.map && <LooksHere pin={loaded.pin} head={loaded.head} map={loaded.map} />}
          <LooksOverall head={head} />
          <HeadOffsets head={head} />
        </div>
      </div>
      <More title="Compared with all heads">
        <HeadStanding head={head} />
      </More>
      <More title="Structured forms">
        <HeadForms head={head} />
        {loaded?.pin && loaded.map && loaded.fit && (
          <HeadFit pin={loaded.pin} head={loaded.head} map={loaded.map} fit={loaded.fit} />
        )}
      </More>
      {loaded?.pin && (
        <More title="Singular values">
          <HeadSpectrum pin={loaded.pin} head={loaded.head} />
        </More>
      )}
      <Unmeasured of={of} />
    </>
  );
}

const opened = signal<ReadonlySet<string>>(new Set());

/** Figures that few readers need, drawn when they are opened; what was opened stays open for the next head. */
function More({ title, children }: { title: string; children: ComponentChildren }): JSX.Element {
  const open = opened.value.has(title) || printing.value;
  return (
    <details
      class="head-more"
      open={open}
      onToggle={(event) => {
        if (event.currentTarget.open !== opened.peek().has(title)) opened.value = toggled(opened.peek(), title);
      }}
    >
      <summary>{title}</summary>
      {open && <div class="stack">{children}</div>}
    </details>
  );
}

function Maps({ pin: sentence, head, map, beside: other }: Loaded): JSX.Element {
  if (sentence !== null) {
    if (map === null) return <SmallMap head={head} />;
    return (
      <HeadMap pin={sentence} head={head} map={map} beside={other}>
        <Beside />
      </HeadMap>
    );
  }
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

/** Chooses a second sentence, where there are two or more. */
function Beside(): JSX.Element | null {
  const others = exam.value.pins.map((one, place) => ({ one, place })).filter(({ one }) => one !== pin.value);
  if (others.length === 0) return null;
  const value = others.some(({ place }) => String(place) === beside.value) ? beside.value : "";
  return (
    <Picker
      label="Beside"
      options={[
        { value: "", text: "no other sentence" },
        ...others.map(({ one, place }) => ({ value: String(place), text: beginning(one.tokens) })),
      ]}
      value={value}
      onChange={(chosen) => (beside.value = chosen)}
    />
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
function Unmeasured({ of }: { of: Exam }): JSX.Element | null {
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
