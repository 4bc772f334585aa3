/** Figures and their numbers as files: CSV, SVG, PNG. */
import { textWidth } from "./views/text_width";

export interface Table {
  columns: string[];
  rows: (string | number | null)[][];
}

export type Picture = SVGSVGElement | HTMLCanvasElement;

/** What stands above and below a picture that stands alone. */
export interface Caption {
  title: string;
  lines: string[];
}

/** Fields with a comma, a quote or a line end are quoted; what a spreadsheet would run as a formula is not run. */
export function toCsv(table: Table): string {
  const field = (cell: string | number | null): string => {
    if (cell === null) return "";
    if (typeof cell === "number") return String(cell);
    const harmless = /^[=+\-@\t\r]/.test(cell) ? `'${cell}` : cell;
    return /[",\n\r]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
  };
  return [table.columns, ...table.rows].map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";
}

export function save(name: string, blob: Blob): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/**
 * False where the browser refuses. A PNG is a promise, for a page may copy only just after the click; words beside it are
 * for places that take text alone.
 */
export async function copy(made: string | Promise<Blob>, words?: string): Promise<boolean> {
  const beside = words === undefined ? {} : { "text/plain": new Blob([words], { type: "text/plain" }) };
  try {
    if (typeof made === "string") await navigator.clipboard.writeText(made);
    else await navigator.clipboard.write([new ClipboardItem({ "image/png": made, ...beside })]);
    return true;
  } catch {
    await made; // throws where it was the picture that failed
    return false;
  }
}

// Pictures ------------------------------------------------------------------------------------------------------------

interface Placed<P extends Picture> {
  picture: P;
  x: number;
  y: number;
  width: number;
  height: number;
}

/** Between pictures and around them. */
const GAP = 12;
/** Points of a PNG for one of the screen, each way. */
const FINE = 2;

const NARROWEST = 360;
const TITLE = 16;
const LINE = 12;

interface Written {
  text: string;
  x: number;
  y: number;
  size: number;
}

interface Sheet {
  all: Placed<Picture>[];
  texts: Written[];
  width: number;
  height: number;
}

/**
 * Pictures beside one another, as large as on the screen, between the title and the lines of the caption; a canvas that is
 * not on the page has a size of its own.
 */
function sheetOf(pictures: Picture[], caption: Caption | null): Sheet {
  if (pictures.length === 0) throw new Error("there is no image to save");
  let next = GAP;
  const sizes = pictures.map((picture) => {
    const shown = picture.getBoundingClientRect();
    const { width, height } = picture instanceof HTMLCanvasElement && shown.width === 0 ? picture : shown;
    const x = next;
    next += Math.round(width) + GAP;
    return { picture, x, width: Math.round(width), height: Math.round(height) };
  });
  const width = caption === null ? next : Math.max(next, NARROWEST);
  const room = width - 2 * GAP;
  let y = GAP;
  const write = (size: number) => (text: string) => {
    y += 1.4 * size;
    return { text, x: GAP, y: y - 0.3 * size, size };
  };
  const above = wrapped(caption?.title ?? "", TITLE, room).map(write(TITLE));
  if (above.length > 0) y += GAP / 2;
  const all = sizes.map((size) => ({ ...size, y }));
  y += Math.max(...sizes.map(({ height }) => height)) + (caption === null ? 0 : GAP / 2);
  const below = (caption?.lines ?? []).flatMap((line) => wrapped(line, LINE, room)).map(write(LINE));
  return { all, texts: [...above, ...below], width, height: Math.ceil(y + GAP) };
}

/** Words in lines of at most this width; a longer word is cut. */
function wrapped(text: string, size: number, room: number): string[] {
  const lines: string[] = [];
  for (const word of text.split(/\s+/).filter((one) => one !== "")) {
    const whole = lines.length > 0 ? `${lines.at(-1)} ${word}` : word;
    if (lines.length > 0 && textWidth(whole, size) <= room) lines[lines.length - 1] = whole;
    else lines.push(word.slice(0, Math.floor(room / (0.5 * size))));
  }
  return lines;
}

function ink(): string {
  return getComputedStyle(document.body).color;
}

const FONT = "system-ui, sans-serif";

function paper(): string {
  return getComputedStyle(document.body).backgroundColor;
}

/** One picture that stands alone: colours and fonts of the page are written into it. A canvas becomes an image in it. */
export function toSvg(pictures: Picture[], caption: Caption | null = null): string {
  const { all, texts, width, height } = sheetOf(pictures, caption);
  const words = texts.map(
    ({ text, x, y, size }) =>
      `<text x="${x}" y="${y}" font-family="${FONT}" font-size="${size}" ` +
      `font-weight="${size === TITLE ? 600 : 400}" fill="${ink()}">${escaped(text)}</text>`,
  );
  const parts = all.map(({ picture, ...at }) =>
    picture instanceof HTMLCanvasElement
      ? `<image x="${at.x}" y="${at.y}" width="${at.width}" height="${at.height}" href="${picture.toDataURL()}"/>`
      : standalone({ picture, ...at }),
  );
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">` +
    `<rect width="${width}" height="${height}" fill="${paper()}"/>${parts.join("")}${words.join("")}</svg>`
  );
}

function escaped(text: string): string {
  return text.replace(UNWRITABLE, "·").replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
}

const CARRIED = [
  "fill",
  "stroke",
  "stroke-width",
  "stroke-dasharray",
  "stroke-opacity",
  "fill-opacity",
  "opacity",
  "font-size",
  "font-family",
  "font-weight",
  "text-anchor",
  "dominant-baseline",
];
/** Characters that XML cannot contain. */
const UNWRITABLE = /[\u0000-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff]|\p{Surrogate}/gu;

function standalone({ picture, ...at }: Placed<SVGSVGElement>): string {
  const copy = picture.cloneNode(true) as SVGSVGElement;
  const [originals, copies] = [picture, copy].map((root) => [root, ...root.querySelectorAll<SVGElement>("*")]);
  copies!.forEach((element, place) => {
    const style = getComputedStyle(originals![place]!);
    for (const name of CARRIED) element.setAttribute(name, style.getPropertyValue(name));
  });
  copy.removeAttribute("style");
  for (const [name, value] of Object.entries(at)) copy.setAttribute(name, String(value));
  return new XMLSerializer().serializeToString(copy).replace(UNWRITABLE, "·");
}

/** An image of higher resolution than the screen, on the background of the page. */
export async function toPng(pictures: Picture[], caption: Caption | null = null): Promise<Blob> {
  const { all, texts, width, height } = sheetOf(pictures, caption);
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [FINE * width, FINE * height];
  const pen = canvas.getContext("2d")!;
  pen.scale(FINE, FINE);
  pen.fillStyle = paper();
  pen.fillRect(0, 0, width, height);
  for (const { picture, ...at } of all) {
    const image = picture instanceof HTMLCanvasElement ? picture : await decoded(standalone({ picture, ...at }));
    pen.drawImage(image, at.x, at.y, at.width, at.height);
  }
  pen.fillStyle = ink();
  for (const { text, x, y, size } of texts) {
    pen.font = `${size === TITLE ? 600 : 400} ${size}px ${FONT}`;
    pen.fillText(text, x, y);
  }
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("the image is too large"))), "image/png"),
  );
}

async function decoded(svg: string): Promise<HTMLImageElement> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
  await image.decode();
  return image;
}
