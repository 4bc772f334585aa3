/** Figures and their numbers as files: CSV, SVG, PNG. */

export interface Table {
  columns: string[];
  rows: (string | number | null)[][];
}

export type Picture = SVGSVGElement | HTMLCanvasElement;

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

/** False where the browser refuses. A PNG is a promise, for a page may copy only just after the click. */
export async function copy(made: string | Promise<Blob>): Promise<boolean> {
  try {
    if (typeof made === "string") await navigator.clipboard.writeText(made);
    else await navigator.clipboard.write([new ClipboardItem({ "image/png": made })]);
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

/** Beside one another, as large as on the screen; a canvas that is not on the page has a size of its own. */
function placed(pictures: Picture[]): Placed<Picture>[] {
  if (pictures.length === 0) throw new Error("there is no image to save");
  let next = GAP;
  return pictures.map((picture) => {
    const shown = picture.getBoundingClientRect();
    const { width, height } = picture instanceof HTMLCanvasElement && shown.width === 0 ? picture : shown;
    const x = next;
    next += Math.round(width) + GAP;
    return { picture, x, y: GAP, width: Math.round(width), height: Math.round(height) };
  });
}

function sizeOf(all: Placed<Picture>[]): { width: number; height: number } {
  const ends = all.map(({ x, y, width, height }) => [x + width + GAP, y + height + GAP] as const);
  return { width: Math.max(...ends.map(([right]) => right)), height: Math.max(...ends.map(([, bottom]) => bottom)) };
}

function paper(): string {
  return getComputedStyle(document.body).backgroundColor;
}

/** One picture that stands alone: colours and fonts of the page are written into it. A canvas becomes an image in it. */
export function toSvg(pictures: Picture[]): string {
  const all = placed(pictures);
  const { width, height } = sizeOf(all);
  const parts = all.map(({ picture, ...at }) =>
    picture instanceof HTMLCanvasElement
      ? `<image x="${at.x}" y="${at.y}" width="${at.width}" height="${at.height}" href="${picture.toDataURL()}"/>`
      : standalone({ picture, ...at }),
  );
  return (
    `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">` +
    `<rect width="${width}" height="${height}" fill="${paper()}"/>${parts.join("")}</svg>`
  );
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
export async function toPng(pictures: Picture[]): Promise<Blob> {
  const all = placed(pictures);
  const { width, height } = sizeOf(all);
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
