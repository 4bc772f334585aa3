/** A view as a small file of its own: the same script and style, and of the data only what the view shows. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { blobText } from "./blobs";
import { fileName, modelName } from "./caption";
import type { Exam, Page, Pin } from "./contract";
import { save } from "./export";
import { parseHead } from "./readings";
import { exam, page, pin, route } from "./store";

/** Views that draw whole maps. */
const WITH_MAPS = ["alignment", "compare"];

export function SaveView(): JSX.Element {
  const [said, setSaid] = useState("");
  const write = async (): Promise<void> => {
    const { view, head } = route.value;
    const found = head === null ? null : parseHead(exam.value, head);
    try {
      const about = found === null ? {} : { head: found };
      save(fileName(view, about, "html"), new Blob([await fileOf(view, found?.name ?? null)], { type: "text/html" }));
      setSaid("saved");
    } catch (problem) {
      setSaid(`not saved: ${String(problem)}`);
    }
    setTimeout(() => setSaid(""), 5000);
  };
  return (
    <>
      <span class="small muted" role="status">
        {said}
      </span>
      <button
        type="button"
        class="quiet"
        title="Save this view as a small file"
        aria-label="Save this view"
        onClick={() => void write()}
      >
        ⤓
      </button>
    </>
  );
}

/** The exam with the sentence that is shown alone, and with the maps that the view draws. */
function trimmed(of: Exam, shown: Pin | null, view: string, head: string | null): Exam {
  const keep = (pin: Pin): Pin => ({
    ...pin,
    slots: pin.slots.map((slot) => {
      const own = head !== null && head.startsWith(`${slot.name}.`);
      return WITH_MAPS.includes(view) || own ? slot : { ...slot, ...WITHOUT_MAPS };
    }),
  });
  const attended = of.attended?.heads[head ?? ""];
  return {
    ...of,
    pins: shown === null || !of.pins.includes(shown) ? (view === "compare" ? of.pins : []) : [keep(shown)],
    attended:
      attended === undefined || head === null
        ? null
        : { sentences: of.attended!.sentences, heads: { [head]: attended } },
  };
}

const WITHOUT_MAPS = { held: [], blob: null, fits: null, spectra: null, sizes: null };

async function fileOf(view: string, head: string | null): Promise<string> {
  const { exams, comparison } = page.value;
  const both = view === "compare" && exams.length > 1;
  const shown = (both ? exams : [exam.value]).map((one) => trimmed(one, pin.value, view, head));
  const content: Page = {
    ...page.value,
    host: "file",
    live: null,
    title: modelName(),
    exams: shown,
    comparison: both ? comparison : null,
    advice: view === "reshape" ? page.value.advice : null,
    receipts: view === "reshape" ? page.value.receipts : [],
    start: head === null ? view : `head=${head}`,
  };
  const names = new Set(
    shown.flatMap(({ pins }) =>
      pins.flatMap((one) => [
        one.thumbnails,
        ...one.slots.flatMap((slot) => [slot.blob ?? "", slot.fits?.blob ?? ""].filter((name) => name !== "")),
      ]),
    ),
  );
  const data = [
    dataElement("page", await packed(JSON.stringify(content))),
    ...[...names].map((name) => dataElement(`blob-${name}`, blobText(name))),
  ];
  return `${headOf()}\n${data.join("\n")}\n<script>${script()}${end("script")}\n</body>\n</html>\n`;
}

/** The same head as this file has; a file asks no server. */
function headOf(): string {
  const policy = (document.querySelector<HTMLMetaElement>("meta[http-equiv]")?.content ?? "").replace(
    "connect-src 'self'",
    "connect-src 'none'",
  );
  return [
    "<!DOCTYPE html>",
    '<html lang="en">',
    "<head>",
    '<meta charset="utf-8">',
    '<meta name="generator" content="attnworks">',
    `<meta http-equiv="Content-Security-Policy" content="${escaped(policy)}">`,
    '<meta name="viewport" content="width=device-width, initial-scale=1">',
    '<meta name="color-scheme" content="light dark">',
    `<title>${escaped(modelName())}</title>`,
    `<style>${document.querySelector("style")?.textContent ?? ""}${end("style")}`,
    end("head"),
    "<body>",
    `<div id="app">${end("div")}`,
  ].join("\n");
}

/** The end of an element; written out, it would end the script of the page that it is in. */
function end(name: string): string {
  return `</${name}>`;
}

function script(): string {
  return document.querySelector("script:not([type])")?.textContent ?? "";
}

function dataElement(id: string, text: string): string {
  return `<script type="text/plain" id="${escaped(id)}">${text}${end("script")}`;
}

function escaped(text: string): string {
  const signs: Record<string, string> = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };
  return text.replace(/[&<>"']/g, (sign) => signs[sign]!);
}

/** gzip, in base64. */
async function packed(text: string): Promise<string> {
  const stream = new Blob([text]).stream().pipeThrough(new CompressionStream("gzip"));
  const bytes = new Uint8Array(await new Response(stream).arrayBuffer());
  let letters = "";
  for (let at = 0; at < bytes.length; at += 0x8000) letters += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  return btoa(letters);
}
