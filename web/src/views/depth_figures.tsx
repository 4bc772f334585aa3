/** Readings along depth as figures: curves, and dots for heads. Where there are two examinations, both are drawn. */
import type { ComponentChildren, JSX } from "preact";
import { CATEGORIES } from "../colour";
import type { Exam, Kind, Reading } from "../contract";
import { Figure, type Table } from "../figure";
import { Words } from "../words";
import { Curves, type Point, type Series } from "../plot";
import { hasNumbers, headName, numbers, reading } from "../readings";
import { exam, linkTo, page } from "../store";
import { HeadDots, type DotGroup } from "./head_dots";

/** A heading above the figures that are there; nothing if there are none. */
export function Part(props: { title: string; there: boolean; children: ComponentChildren }): JSX.Element | null {
  if (!props.there) return null;
  return (
    <>
      <h3 class="depth-part">{props.title}</h3>
      <div class="columns depth-figures">{props.children}</div>
    </>
  );
}

/** Whether a reading of such a name has a number. */
export function isThere(kind: Kind, names: RegExp, exams: Exam[] = page.value.exams): boolean {
  return exams.some(({ readings }) =>
    Object.entries(readings).some(
      ([name, found]) => found.kind === kind && names.test(name) && hasNumbers(found.value),
    ),
  );
}

export function nameOf({ label, model }: Exam): string {
  const without = Array.isArray(model["without"]) ? model["without"].join(", ") : "";
  return without === "" ? label : `${label}, without ${without}`;
}

// Curves --------------------------------------------------------------------------------------------------------------

export interface Line {
  /** The name of the reading, and what it is called in the plot. */
  reading: string;
  name: string;
  bound?: boolean;
}

/** Colours tell readings apart and dashes the examinations; where bounds are dashed, colours tell all apart. */
function lookOf(lines: Line[], place: number, which: number): { colour: string; dashed: boolean } {
  const bounded = lines.some((line) => line.bound);
  const colour = bounded ? which * lines.length + place : lines.length > 1 ? place : which;
  return {
    colour: CATEGORIES[colour % CATEGORIES.length]!,
    dashed: bounded ? (lines[place]?.bound ?? false) : which > 0,
  };
}

function seriesOf(lines: Line[], kind: Kind): Series[] {
  const { exams } = page.value;
  return exams.flatMap((one, which) =>
    lines.flatMap((line, place) => {
      const points = pointsOf(reading(one, line.reading, kind));
      if (!points.some((point) => point.y !== null)) return [];
      const name = exams.length === 1 ? line.name : lines.length === 1 ? nameOf(one) : `${line.name} (${one.label})`;
      return [{ name, points, ...lookOf(lines, place, which) }];
    }),
  );
}

function pointsOf(found: Reading | null): Point[] {
  if (found === null) return [];
  const [low, high] = found.interval?.map(numbers) ?? [];
  return numbers(found.value).map((y, x) => ({ x, y, low: low?.[x] ?? null, high: high?.[x] ?? null }));
}

function tableOf(series: Series[], x: string): Table {
  const places = [...new Set(series.flatMap(({ points }) => points.map((point) => point.x)))].sort((a, b) => a - b);
  return {
    columns: [x, ...series.flatMap(({ name }) => [name, `${name}: from`, `${name}: to`])],
    rows: places.map((place) => [
      place,
      ...series.flatMap(({ points }) => {
        const point = points.find((one) => one.x === place);
        return [point?.y ?? null, point?.low ?? null, point?.high ?? null];
      }),
    ]),
  };
}

export function CurveFigure(props: {
  id: string;
  title: string;
  kind: Kind;
  lines: Line[];
  x: string;
  y: string;
  log?: boolean;
  zero?: boolean;
  children: ComponentChildren;
}): JSX.Element | null {
  const { lines, kind } = props;
  const series = seriesOf(lines, kind);
  if (series.length === 0) return null;
  return (
    <Figure
      id={props.id}
      title={props.title}
      words={
        <>
          {props.children} <Sources of={lines} kind={kind} />
        </>
      }
      table={() => tableOf(series, props.x)}
    >
      <Curves
        series={series.length > CLEAR ? series.map(withoutBand) : series}
        x={props.x}
        y={props.y}
        whole
        log={props.log ?? false}
        zero={props.zero ?? false}
        label={`${props.title}, ${props.y} by ${props.x}`}
      />
    </Figure>
  );
}

/** Bands of more curves than this hide one another; their numbers stay in the table. */
const CLEAR = 4;

function withoutBand(series: Series): Series {
  return { ...series, points: series.points.map(({ x, y }) => ({ x, y })) };
}

export function Sources({ of: lines, kind }: { of: { reading: string }[]; kind: Kind }): JSX.Element {
  const found = lines.flatMap((line) => reading(exam.value, line.reading, kind)?.source.split(", ") ?? []);
  return (
    <span class="small">
      <Words text={[...new Set(found)].join(", ")} />
    </span>
  );
}

// Heads ---------------------------------------------------------------------------------------------------------------

export function DotFigure(props: {
  id: string;
  title: string;
  kind: Kind;
  lines: Line[];
  y: string;
  children: ComponentChildren;
}): JSX.Element | null {
  const { kind, lines } = props;
  const { exams } = page.value;
  const groups = exams.flatMap((one, which) =>
    lines.flatMap((line, place): DotGroup[] => {
      const found = reading(one, line.reading, kind);
      if (found === null || !hasNumbers(found.value)) return [];
      const whose = exams.length === 1 ? "" : ` (${one.label})`;
      return [
        {
          name: `${line.name}${whose}${line.bound ? "" : ": heads, mean and range"}`,
          ...lookOf(lines, place, which),
          bare: line.bound ?? false,
          values: byHead(found),
          tell: (layer, head) => `head ${headName(kind, layer, head)}${whose}`,
          href: (layer, head) => linkTo("head", headName(kind, layer, head), { exam: which }),
        },
      ];
    }),
  );
  if (groups.length === 0) return null;
  return (
    <Figure
      id={props.id}
      title={props.title}
      words={
        <>
          {props.children} <Sources of={lines} kind={kind} />
        </>
      }
      table={() => headTable(groups, kind)}
    >
      <HeadDots groups={groups} y={props.y} label={`${props.title} by layer, one dot for each head`} />
    </Figure>
  );
}

/** A row for every head that either examination has. */
function headTable(groups: DotGroup[], kind: Kind): Table {
  const most = (counts: number[]) => [...Array(Math.max(0, ...counts)).keys()];
  const places = most(groups.map(({ values }) => values.length)).flatMap((layer) =>
    most(groups.map(({ values }) => values[layer]?.length ?? 0)).map((head) => ({ layer, head })),
  );
  return {
    columns: ["head", ...groups.map((group) => group.name)],
    rows: places.map(({ layer, head }) => [
      headName(kind, layer, head),
      ...groups.map((group) => group.values[layer]?.[head] ?? null),
    ]),
  };
}

export function byHead({ value }: Reading): (number | null)[][] {
  return Array.isArray(value) ? value.map((layer) => numbers(layer)) : [];
}
