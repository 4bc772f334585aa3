/** Attention as arcs between tokens: the heavier the weight, the stronger the arc. */
import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { Choice, Labelled } from "../controls";
import { word } from "../heatmap";
import { digits } from "../readings";
import { type Arc, chosenArcs, type Focus, reachOf, type Window } from "./arcs_chosen";
import { shortened } from "./text_width";
import { KeyedPlot } from "./keyed_plot";
import { useWidth } from "./width";
import "./arcs.css";

const MOST_TOKENS = 64;
const PITCH = 24;
const LETTER = 6.6;
const LETTERS = 12;
const TALLEST = 210;
const ACROSS = 200;

const rule = signal<"least" | "top">("least");
const least = signal(0.1);
const top = signal(1);

interface Props {
  values: Float32Array;
  rows: string[];
  columns: string[];
  /** Rows and columns are the same tokens. */
  within: boolean;
  label: string;
}

export function Arcs(props: Props): JSX.Element {
  const { rows, columns, within } = props;
  const { box, width } = useWidth<HTMLDivElement>();
  const [focus, setFocus] = useState<Focus | null>(null);
  const [starts, setStarts] = useState({ row: 0, column: 0 });
  const seen = { row: windowOf(starts.row, rows.length), column: windowOf(starts.column, columns.length) };
  const keys = within ? seen.row : seen.column;
  const said = rule.value === "least" ? { least: least.value } : { top: top.value };
  const arcs = chosenArcs(props.values, columns.length, seen.row, keys, said, focus);
  const drawn = { ...props, arcs, focus, setFocus, width, rowsSeen: seen.row, columnsSeen: keys };
  return (
    <div class="arcs">
      <div class="row">
        <Choice
          label="Show"
          options={["least", "top"]}
          words={{ least: "weights of at least", top: "the largest per token" }}
          value={rule.value}
          onChange={(value) => (rule.value = value)}
        />
        {rule.value === "least" ? (
          <Slider
            label={digits(least.value)}
            name="Minimum weight"
            low={0.02}
            high={0.9}
            step={0.02}
            value={least.value}
            onInput={(value) => (least.value = value)}
          />
        ) : (
          <Slider
            label={String(top.value)}
            name="Weights per token"
            low={1}
            high={5}
            step={1}
            value={top.value}
            onInput={(value) => (top.value = value)}
          />
        )}
        <WindowSlider
          name={within ? "Tokens" : "Query tokens"}
          seen={seen.row}
          count={rows.length}
          onMove={(row) => setStarts({ ...starts, row })}
        />
        {!within && (
          <WindowSlider
            name="Key tokens"
            seen={seen.column}
            count={columns.length}
            onMove={(column) => setStarts({ ...starts, column })}
          />
        )}
      </div>
      <div class="arcs-box" ref={box}>
        {width > 0 && (within ? <ArcsWithin {...drawn} /> : <ArcsBetween {...drawn} />)}
      </div>
      <p class="small muted" role="status">
        {focus === null ? hint(within) : told(arcs, focus, rows, columns)}
      </p>
    </div>
  );
}

function hint(within: boolean): string {
  return within
    ? "Arcs above the words go to earlier tokens, arcs below to later tokens, small loops to the token itself. Point at a word, or move to it with the arrow keys, to see only what it attends to."
    : "Query tokens are above, key tokens below. Point at a token, or move to it with the arrow keys, to see only its arcs.";
}

/** "it attends to animal 0.42, street 0.11" */
function told(arcs: Arc[], { side, place }: Focus, rows: string[], columns: string[]): string {
  const ends = arcs.toReversed().slice(0, 5);
  if (side === "row") {
    const seen = ends.map(({ column, weight }) => `${word(columns[column])} ${digits(weight)}`).join(", ");
    return `${word(rows[place])} attends to ${seen || "hardly any token here"}`;
  }
  const from = ends.map(({ row, weight }) => `${word(rows[row])} ${digits(weight)}`).join(", ");
  return `${word(columns[place])} is attended to by ${from || "hardly any token here"}`;
}

// Pictures --------------------------------------------------------------------------------------------------------------

interface Drawn extends Props {
  arcs: Arc[];
  focus: Focus | null;
  setFocus: (focus: Focus | null) => void;
  width: number;
  rowsSeen: Window;
  columnsSeen: Window;
}

/** One line of tokens; arcs that look back go above it, those that look ahead below. */
function ArcsWithin(props: Drawn): JSX.Element {
  const { arcs, rowsSeen, rows, focus } = props;
  const count = rowsSeen.to - rowsSeen.from;
  const pitch = Math.max(PITCH, props.width / count);
  const labels = labelsOf(rows, rowsSeen, pitch);
  const longest = Math.min(TALLEST, 30 + 0.4 * pitch * count);
  const tall = (distance: number) => 16 + (longest - 16) * (distance / Math.max(1, count - 1)) ** 0.6;
  const reach = reachOf(props.values, rows.length, rowsSeen);
  const above = 16 + Math.max(14, tall(reach.back));
  const below = above + labels.room;
  const x = (place: number) => (place - rowsSeen.from + 0.5) * pitch;
  const path = ({ row, column }: Arc): string => {
    const [from, to] = [x(row), x(column)];
    if (row === column)
      return `M${from - 4} ${above}C${from - 12} ${above - 24} ${from + 12} ${above - 24} ${from + 4} ${above}`;
    const [line, control] =
      column < row ? [above, above - tall(row - column) / 0.75] : [below, below + tall(column - row) / 0.75];
    return `M${from} ${line}C${from} ${control} ${to} ${control} ${to} ${line}`;
  };
  return (
    <Picture
      {...props}
      width={pitch * count}
      height={below + (reach.ahead > 0 ? tall(reach.ahead) + 14 : 4)}
      path={path}
    >
      <Tokens
        {...props}
        side="row"
        texts={rows}
        seen={rowsSeen}
        x={x}
        y={(above + below) / 2}
        top={-labels.room / 2}
        pitch={pitch}
        labels={labels}
        anchor="middle"
        line={0}
      />
      {focus !== null &&
        arcs.map(({ column, weight, row }) => (
          <Value key={column} x={x(column)} y={column > row ? below + 10 : above - 3} weight={weight} />
        ))}
    </Picture>
  );
}

/** Two lines of tokens: the queries above, the keys below. */
function ArcsBetween(props: Drawn): JSX.Element {
  const { arcs, rowsSeen, columnsSeen, rows, columns, focus } = props;
  const most = Math.max(rowsSeen.to - rowsSeen.from, columnsSeen.to - columnsSeen.from);
  const width = Math.max(props.width, PITCH * most);
  const [upper, lower] = [rowsSeen, columnsSeen].map((seen) => width / (seen.to - seen.from)) as [number, number];
  const [upperLabels, lowerLabels] = [labelsOf(rows, rowsSeen, upper), labelsOf(columns, columnsSeen, lower)];
  const above = upperLabels.room + 2;
  const below = above + ACROSS;
  const from = (row: number) => (row - rowsSeen.from + 0.5) * upper;
  const to = (column: number) => (column - columnsSeen.from + 0.5) * lower;
  const middle = (above + below) / 2;
  const path = ({ row, column }: Arc): string =>
    `M${from(row)} ${above}C${from(row)} ${middle} ${to(column)} ${middle} ${to(column)} ${below}`;
  return (
    <Picture {...props} width={width} height={below + lowerLabels.room + 2} path={path}>
      <Tokens
        {...props}
        side="row"
        texts={rows}
        seen={rowsSeen}
        x={from}
        y={above - 8}
        top={8 - upperLabels.room}
        pitch={upper}
        labels={upperLabels}
        anchor="start"
        line={0}
      />
      <Tokens
        {...props}
        side="column"
        texts={columns}
        seen={columnsSeen}
        x={to}
        y={below + 8}
        top={-8}
        pitch={lower}
        labels={lowerLabels}
        anchor="end"
        line={1}
      />
      {focus !== null &&
        arcs.map(({ row, column, weight }) =>
          focus.side === "row" ? (
            <Value key={column} x={to(column)} y={below - 5} weight={weight} />
          ) : (
            <Value key={row} x={from(row)} y={above + 13} weight={weight} />
          ),
        )}
    </Picture>
  );
}

function Picture(props: {
  label: string;
  width: number;
  height: number;
  arcs: Arc[];
  path: (arc: Arc) => string;
  children: ComponentChildren;
}): JSX.Element {
  return (
    <KeyedPlot width={props.width} height={props.height} label={props.label}>
      {props.arcs.map((arc) => (
        <path
          key={`${arc.row} ${arc.column}`}
          d={props.path(arc)}
          fill="none"
          stroke={arc.weight < 0 ? "var(--c1)" : "var(--accent)"}
          stroke-width={0.6 + 4 * strength(arc)}
          stroke-opacity={0.2 + 0.75 * strength(arc)}
        />
      ))}
      {props.children}
    </KeyedPlot>
  );
}

/** At most 1, as weights are. */
function strength({ weight }: Arc): number {
  return Math.min(1, Math.abs(weight));
}

interface Labels {
  turned: boolean;
  /** Height of the line of tokens. */
  room: number;
}

/** Upright where words do not fit beside one another. */
function labelsOf(texts: string[], seen: Window, pitch: number): Labels {
  const letters = Math.max(1, ...texts.slice(seen.from, seen.to).map((text) => short(text).length));
  const turned = letters * LETTER > pitch - 6;
  return { turned, room: turned ? letters * LETTER + 14 : 26 };
}

function short(token: string | undefined): string {
  return shortened(word(token), LETTERS);
}

function Tokens(props: {
  side: Focus["side"];
  texts: string[];
  seen: Window;
  x: (place: number) => number;
  y: number;
  /** Upper edge of the line, as seen from y. */
  top: number;
  pitch: number;
  labels: Labels;
  anchor: "start" | "middle" | "end";
  line: number;
  focus: Focus | null;
  setFocus: (focus: Focus | null) => void;
}): JSX.Element {
  const { side, seen, labels } = props;
  return (
    <g class="arc-tokens">
      {Array.from({ length: seen.to - seen.from }, (_, step) => {
        const place = seen.from + step;
        const focused = props.focus?.side === side && props.focus.place === place;
        const on = () => props.setFocus({ side, place });
        const off = () => props.setFocus(null);
        return (
          <g
            key={place}
            class={focused ? "focused" : ""}
            transform={`translate(${props.x(place)} ${props.y})`}
            tabindex={step === 0 ? 0 : -1}
            role="img"
            aria-label={`${word(props.texts[place])}: show only its arcs`}
            data-at={`${step},${props.line}`}
            onMouseEnter={on}
            onMouseLeave={off}
            onFocus={on}
            onBlur={off}
          >
            <rect x={-props.pitch / 2} y={props.top} width={props.pitch} height={labels.room} fill-opacity={0} />
            <text
              transform={labels.turned ? "rotate(-90)" : undefined}
              text-anchor={labels.turned ? props.anchor : "middle"}
              dominant-baseline="middle"
            >
              {short(props.texts[place])}
            </text>
          </g>
        );
      })}
    </g>
  );
}

function Value({ x, y, weight }: { x: number; y: number; weight: number }): JSX.Element {
  return (
    <text class="arc-value" x={x} y={y} text-anchor="middle">
      {weight.toFixed(2)}
    </text>
  );
}

// Controls --------------------------------------------------------------------------------------------------------------

function windowOf(start: number, count: number): Window {
  const from = Math.max(0, Math.min(start, count - MOST_TOKENS));
  return { from, to: Math.min(count, from + MOST_TOKENS) };
}

function WindowSlider(props: {
  name: string;
  seen: Window;
  count: number;
  onMove: (start: number) => void;
}): JSX.Element | null {
  const { seen, count } = props;
  if (count <= MOST_TOKENS) return null;
  const words = `${seen.from + 1} to ${seen.to} of ${count}`;
  return (
    <Slider
      label={words}
      name={props.name}
      low={0}
      high={count - MOST_TOKENS}
      step={1}
      value={seen.from}
      onInput={props.onMove}
    />
  );
}

function Slider(props: {
  label: string;
  name: string;
  low: number;
  high: number;
  step: number;
  value: number;
  onInput: (value: number) => void;
}): JSX.Element {
  return (
    <Labelled label={props.name}>
      <input
        type="range"
        min={props.low}
        max={props.high}
        step={props.step}
        value={props.value}
        aria-valuetext={props.label}
        onInput={(event) => props.onInput(Number(event.currentTarget.value))}
      />
      <output class="small">{props.label}</output>
    </Labelled>
  );
}
