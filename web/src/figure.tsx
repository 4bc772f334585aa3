/** A frame for every plot: what it shows, the numbers behind it, and ways to take them along. */
import type { ComponentChildren, JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { captionOf, fileName, type About } from "./caption";
import { copy, save, toCsv, toPng, toSvg, type Picture, type Table } from "./export";
import "./figure.css";
import { Menu, type MenuEntry } from "./menu";
import { DataTable, MOST_ROWS } from "./table";

export type { Table } from "./export";

const TYPES = { CSV: "text/csv", SVG: "image/svg+xml", PNG: "image/png" };
const TO = { SVG: toSvg, PNG: toPng };
type Format = keyof typeof TYPES;

export function Figure(props: {
  id: string;
  title: string;
  /** The head and the sentence that it shows, which its files name. */
  about?: About;
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
  const about = props.about ?? {};

  function say(words: string): void {
    setSaid(words);
    setTimeout(() => setSaid((now) => (now === words ? "" : now)), 5000);
  }

  async function take(format: Format, way: "copy" | "save", named = true): Promise<void> {
    try {
      const scale = drawn.current!.querySelector<HTMLElement>("[data-scale]")?.dataset["scale"];
      const caption = named ? captionOf(props.title, about, scale) : null;
      const pictures = () => (props.pictures ?? picturesIn)(drawn.current!);
      const made = format === "CSV" ? toCsv(props.table()) : TO[format](pictures(), caption);
      const words = caption === null ? undefined : [caption.title, ...caption.lines].join("\n");
      if (way === "save") {
        save(fileName(props.id, about, format.toLowerCase()), new Blob([await made], { type: TYPES[format] }));
      } else if (!(await copy(made, words))) return say("The browser does not allow copying. Save the file instead.");
      say(`${format === "PNG" && way === "copy" ? "Image" : format} ${way === "save" ? "saved" : "copied"}`);
    } catch (problem) {
      say(`no ${format}: ${problem instanceof Error ? problem.message : String(problem)}`);
    }
  }

  const entries: MenuEntry[] = [
    { text: "Copy image", onChoose: () => void take("PNG", "copy", false) },
    { text: "Copy image with caption", onChoose: () => void take("PNG", "copy") },
    { text: "Save as PNG", onChoose: () => void take("PNG", "save") },
    { text: "Save as SVG", onChoose: () => void take("SVG", "save") },
    { text: "Save data as CSV", onChoose: () => void take("CSV", "save") },
    { text: "Copy data as CSV", onChoose: () => void take("CSV", "copy") },
    { text: tabled ? "Hide the table" : "Show as a table", onChoose: () => setTabled(!tabled) },
  ];
  return (
    <figure id={props.id} class={`card figure ${props.class ?? ""}`}>
      <figcaption>
        <div class="figure-title">
          <h3>{props.title}</h3>
          <span class="figure-tools">
            <span class="small muted" role="status">
              {said}
            </span>
            <Menu name={`Menu of the figure ${props.title}`} entries={entries} />
          </span>
        </div>
        {props.words !== undefined && <p class="muted">{props.words}</p>}
      </figcaption>
      <div ref={drawn}>{props.children}</div>
      {tabled && <Tabled title={props.title} table={props.table()} />}
    </figure>
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
