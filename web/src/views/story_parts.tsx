/** The parts of the story below the first screen: a sentence, a figure and a link to the evidence for each. */
import type { JSX } from "preact";
import type { Exam, Kind, StoryPart } from "../contract";
import { Figure } from "../figure";
import { Curves, type Series } from "../plot";
import { KIND_WORDS, at, digits, kindsOf, layersOf, numbers, reading, slotName } from "../readings";
import { exam, linkTo, page, type View } from "../store";
import { Command } from "./command";
import { LayerBars } from "./layer_bars";
import { StoryHeads } from "./story_heads";

const EVIDENCE: Record<string, [View, string]> = {
  reads: ["head", "Every head with its map"],
  rests: ["head", "Every head with its map"],
  work: ["reshape", "The work of every head"],
  depth: ["depth", "All curves along depth"],
  removal: ["reshape", "Heads, forms and receipts"],
};

const FIGURES: Record<string, (props: { part: StoryPart }) => JSX.Element | null> = {
  reads: ({ part }) => <StoryHeads names={part.heads} />,
  rests: Rests,
  work: Works,
  depth: Depth,
  removal: Removal,
};

export function StoryParts(): JSX.Element {
  return (
    <>
      {exam.value.story
        .filter(({ name }) => name !== "what")
        .map((part) => (
          <Part key={part.name} part={part} />
        ))}
    </>
  );
}

function Part({ part }: { part: StoryPart }): JSX.Element {
  const Drawn = FIGURES[part.name];
  const evidence = EVIDENCE[part.name];
  const remarks = part.name === "trust" ? [...exam.value.notes, ...page.value.remarks] : [];
  return (
    <section class="story-part" aria-labelledby={`story-${part.name}`}>
      <div class="story-words">
        <h3 id={`story-${part.name}`}>{part.title}</h3>
        <p class="story-text">{part.text}</p>
        {part.more.length + remarks.length > 0 && (
          <ul class="story-more small muted">
            {[...part.more, ...remarks].map((line) => (
              <li key={line}>{line}</li>
            ))}
          </ul>
        )}
        {part.command !== "" && (
          <p class="small">
            {part.name === "trust" ? "Repeat it: " : "Next: "}
            <Command text={part.command} />
          </p>
        )}
        {evidence !== undefined && (
          <p class="story-evidence small">
            <a href={linkTo(evidence[0], evidence[0] === "head" ? part.heads[0] : undefined)}>{evidence[1]}</a>
          </p>
        )}
      </div>
      {Drawn !== undefined && (
        <div class="story-drawn">
          <Drawn part={part} />
        </div>
      )}
    </section>
  );
}

// Where it rests ------------------------------------------------------------------------------------------------------

/** The mean over the heads of every layer. */
function byLayer(of: Exam, name: string, kind: Kind): (number | null)[] {
  const value = reading(of, name, kind)?.value;
  return layersOf(of, kind).map((layer) => {
    const known = numbers(value === undefined ? null : at(value, layer)).filter((one) => one !== null);
    return known.length === 0 ? null : known.reduce((sum, one) => sum + one, 0) / known.length;
  });
}

const SINKS = [
  { reading: "sinks.first", name: "first token", colour: "var(--ink-soft)" },
  { reading: "sinks.delimiter", name: "delimiters", colour: "var(--none)" },
];

function Rests({ part }: { part: StoryPart }): JSX.Element | null {
  const of = exam.value;
  const found = SINKS.filter(({ reading: name }) => kindsOf(of).some((kind) => reading(of, name, kind) !== null));
  const bars = kindsOf(of).flatMap((kind) => {
    const shares = found.map(({ reading: name }) => byLayer(of, name, kind));
    return layersOf(of, kind).map((layer, row) => ({
      name: kindsOf(of).length > 1 ? slotName(kind, layer) : `layer ${layer}`,
      shares: shares.map((of_sink) => of_sink[row] ?? 0),
    }));
  });
  if (bars.length === 0 || found.length === 0) return null;
  return (
    <Figure
      id="story-rests-figure"
      title="Attention on the first token and on delimiters, by layer"
      table={() => ({
        columns: ["layer", ...found.map(({ name }) => name)],
        rows: bars.map(({ name, shares }) => [name, ...shares]),
      })}
    >
      <LayerBars bars={bars} parts={found} label={part.title} whole />
    </Figure>
  );
}

// Where the work is done ----------------------------------------------------------------------------------------------

function Works({ part }: { part: StoryPart }): JSX.Element | null {
  const { work } = exam.value;
  if (work === null) return null;
  const several = kindsOf(exam.value).length > 1;
  const bars = Object.entries(work.layers).map(([slot, share]) => ({
    name: several ? slot : `layer ${slot.slice(slot.indexOf(".") + 1)}`,
    shares: [share],
  }));
  return (
    <Figure
      id="story-work-figure"
      title="Share of the work, by layer"
      table={() => ({ columns: ["layer", "share"], rows: bars.map(({ name, shares }) => [name, shares[0] ?? null]) })}
    >
      <LayerBars bars={bars} parts={[{ name: "work", colour: "var(--accent)" }]} label={part.title} />
    </Figure>
  );
}

// Whether tokens stay distinct ----------------------------------------------------------------------------------------

function seriesOf(of: Exam, lines: { reading: string; name: string; dashed?: boolean }[]): Series[] {
  return kindsOf(of).flatMap((kind) =>
    lines.flatMap(({ reading: name, name: words, dashed }) => {
      const found = reading(of, name, kind);
      const points = numbers(found?.value ?? null).map((y, x) => ({ x, y }));
      if (!points.some(({ y }) => y !== null)) return [];
      const stack = kindsOf(of).length > 1 ? `${KIND_WORDS[kind]}: ` : "";
      return [{ name: `${stack}${words}`, points, ...(dashed ? { dashed } : {}) }];
    }),
  );
}

function Depth(): JSX.Element {
  const of = exam.value;
  const residual = seriesOf(of, [{ reading: "rank.residual", name: "part of the stream in which tokens differ" }]);
  const bounds = seriesOf(of, [
    { reading: "bounds.measured", name: "measured diameter" },
    { reading: "bounds.diameter", name: "proved bound", dashed: true },
  ]);
  return (
    <div class="columns story-figures">
      <CurvesOf id="story-depth-figure" title="Tokens along depth" x="depth" y="relative residual" series={residual} />
      {bounds.length > 1 && (
        <CurvesOf
          id="story-bound-figure"
          title="Diameter of the attention output, and its bound"
          x="layer"
          y="largest distance"
          series={bounds}
          log
        />
      )}
    </div>
  );
}

function CurvesOf(props: {
  id: string;
  title: string;
  x: string;
  y: string;
  series: Series[];
  log?: boolean;
}): JSX.Element {
  const { series } = props;
  const places = [...new Set(series.flatMap(({ points }) => points.map(({ x }) => x)))].sort((a, b) => a - b);
  return (
    <Figure
      id={props.id}
      title={props.title}
      table={() => ({
        columns: [props.x, ...series.map(({ name }) => name)],
        rows: places.map((place) => [
          place,
          ...series.map(({ points }) => points.find(({ x }) => x === place)?.y ?? null),
        ]),
      })}
    >
      <Curves
        series={series}
        x={props.x}
        y={props.y}
        label={props.title}
        whole={places.length < 60}
        zero={!props.log}
        log={props.log ?? false}
        height={220}
      />
    </Figure>
  );
}

// What can go ---------------------------------------------------------------------------------------------------------

function Removal({ part }: { part: StoryPart }): JSX.Element | null {
  const points = part.curve.map(([x, y]) => ({ x, y })).reverse();
  const receipts = page.value.receipts;
  if (points.length === 0 && receipts.length === 0) return null;
  return (
    <div class="columns story-figures">
      {points.length > 1 && (
        <CurvesOf
          id="story-removal-figure"
          title="Predicted rise of the loss by heads kept"
          x="heads kept"
          y="rise of the loss"
          series={[{ name: "sum of what each head costs alone", points }]}
        />
      )}
      {receipts.length > 0 && (
        <div class="card">
          <h3>What was done to this model</h3>
          <ul class="small">
            {receipts.map(({ title, loss }, place) => (
              <li key={place}>
                {title}: loss {digits(loss.before)} before, {digits(loss.predicted)} predicted, {digits(loss.after)}{" "}
                measured{loss.healed === null ? "" : `, ${digits(loss.healed)} after healing`}
              </li>
            ))}
          </ul>
        </div>
      )}
    </div>
  );
}
