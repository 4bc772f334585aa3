/** A frame for every plot: what it shows, the numbers behind it, and ways to take them along. */
import type { ComponentChildren, JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { copy, save, toCsv, toPng, toSvg, type Picture, type Table } from "./export";
import { DataTable, MOST_ROWS } from "./table";

export type { Table } from "./export";

const TYPES = { CSV: "text/csv", SVG: "image/svg+xml", PNG: "image/png" };
const TO = { SVG: toSvg, PNG: toPng };
type Format = keyof typeof TYPES;

export function Figure(props: {
  id: string;
  title: string;
  words?: ComponentChildren;
  table: () => Table;
  /** What is saved, where that is not all that is drawn. */
  pictures?: (drawn: Element) => Picture[];
  children: ComponentChildren;
  class?: string;
}): JSX.Element {
  const drawn = useRef<HTMLDivElement>(null);
  const [tabled, setTabled] = useState(false);
  const [said, setSaid] = useState("");

  function say(words: string): void {
    setSaid(words);
    setTimeout(() => setSaid((now) => (now === words ? "" : now)), 5000);
  }

  async function take(format: Format, way: "copy" | "save"): Promise<void> {
    try {
      const made = format === "CSV" ? toCsv(props.table()) : TO[format]((props.pictures ?? picturesIn)(drawn.current!));
      if (way === "save") save(`${props.id}.${format.toLowerCase()}`, new Blob([await made], { type: TYPES[format] }));
      else if (!(await copy(made))) return say("the browser does not allow copying; save the file instead");
      say(`${format} ${way === "save" ? "saved" : "copied"}`);
    } catch (problem) {
      say(`no ${format}: ${problem instanceof Error ? problem.message : String(problem)}`);
    }
  }

  return (
    <figure id={props.id} class={`card figure ${props.class ?? ""}`}>
      <figcaption>
        <h3>{props.title}</h3>
        {props.words !== undefined && <p class="muted">{props.words}</p>}
      </figcaption>
      <div ref={drawn}>{props.children}</div>
      {tabled && <Tabled title={props.title} table={props.table()} />}
      <div class="figure-tools">
        <span class="small muted" role="status">
          {said}
        </span>
        <button type="button" class="quiet" aria-pressed={tabled} onClick={() => setTabled(!tabled)}>
          Table
        </button>
        <Formats
          word="Copy"
          nameOf={(format) => `Copy ${format === "CSV" ? "the data of " : ""}${props.title} as ${format}`}
          onTake={(format) => void take(format, "copy")}
        />
        <Formats
          word="Save"
          nameOf={(format) => `Save ${props.title} as ${format}`}
          onTake={(format) => void take(format, "save")}
        />
      </div>
    </figure>
  );
}

function Formats(props: {
  word: string;
  nameOf: (format: Format) => string;
  onTake: (format: Format) => void;
}): JSX.Element {
  return (
    <span class="figure-formats small muted">
      <span aria-hidden="true">{props.word}</span>
      {(Object.keys(TYPES) as Format[]).map((format) => (
        <button
          key={format}
          type="button"
          class="quiet"
          onClick={() => props.onTake(format)}
          aria-label={props.nameOf(format)}
        >
          {format}
        </button>
      ))}
    </span>
  );
}

function picturesIn(drawn: Element): Picture[] {
  return [...drawn.querySelectorAll<Picture>("svg.plot, canvas")];
}

function Tabled({ title, table }: { title: string; table: Table }): JSX.Element {
  const numeric = table.columns.map((_, place) => table.rows.some((row) => typeof row[place] === "number"));
  return (
    <DataTable
      caption={`Data of: ${title}${table.rows.length > MOST_ROWS ? ". The CSV file has all rows." : ""}`}
      columns={table.columns.map((name, place) => ({ name, numeric: numeric[place] ?? false }))}
      rows={table.rows.map((cells, place) => ({ key: String(place), cells }))}
      limit={50}
    />
  );
}
