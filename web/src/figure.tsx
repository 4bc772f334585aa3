/** A frame for every plot: what it shows, the numbers behind it, and ways to take them along. */
import type { ComponentChildren, JSX } from "preact";
import { useRef, useState } from "preact/hooks";
import { copyText, pictureOf, save, svgText, toCsv, type Picture, type Table } from "./export";
import { DataTable } from "./table";

export type { Table } from "./export";

export function Figure(props: {
  id: string;
  title: string;
  words?: ComponentChildren;
  table: () => Table;
  children: ComponentChildren;
  class?: string;
}): JSX.Element {
  const drawn = useRef<HTMLDivElement>(null);
  const [tabled, setTabled] = useState(false);
  const [said, say] = useState("");
  const picture = (): Picture | null => drawn.current?.querySelector<Picture>("svg.plot, canvas") ?? null;

  async function take(what: "CSV" | "SVG" | "PNG"): Promise<void> {
    const found = picture();
    if (what === "CSV") save(`${props.id}.csv`, new Blob([toCsv(props.table())], { type: "text/csv" }));
    else if (what === "SVG" && found) save(`${props.id}.svg`, new Blob([svgText(found)], { type: "image/svg+xml" }));
    else if (what === "PNG" && found) save(`${props.id}.png`, await pictureOf(found));
    say(`${what} saved`);
    setTimeout(() => say(""), 2000);
  }

  async function copy(): Promise<void> {
    say((await copyText(toCsv(props.table()))) ? "copied" : "the browser does not let this page copy; take CSV");
    setTimeout(() => say(""), 3000);
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
        <button
          type="button"
          class="quiet"
          onClick={() => void copy()}
          aria-label={`Copy the numbers of ${props.title}`}
        >
          Copy
        </button>
        {(["CSV", "SVG", "PNG"] as const).map((what) => (
          <button
            key={what}
            type="button"
            class="quiet"
            onClick={() => void take(what)}
            aria-label={`Save ${props.title} as ${what}`}
          >
            {what}
          </button>
        ))}
      </div>
    </figure>
  );
}

function Tabled({ title, table }: { title: string; table: Table }): JSX.Element {
  const numeric = table.columns.map((_, place) => table.rows.some((row) => typeof row[place] === "number"));
  return (
    <DataTable
      caption={`The numbers of: ${title}`}
      columns={table.columns.map((name, place) => ({ name, numeric: numeric[place] ?? false }))}
      rows={table.rows.map((cells, place) => ({ key: String(place), cells }))}
      limit={50}
    />
  );
}
