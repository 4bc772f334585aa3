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

export async function copyText(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
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

/** A picture that stands alone: colours and fonts of the page are written into it. A canvas becomes an image in it. */
export function svgText(picture: Picture): string {
  if (picture instanceof HTMLCanvasElement) {
    const { width, height } = picture;
    const size = `width="${width}" height="${height}"`;
    return `<svg xmlns="http://www.w3.org/2000/svg" ${size}><image ${size} href="${picture.toDataURL()}"/></svg>`;
  }
  const copy = picture.cloneNode(true) as SVGSVGElement;
  const [originals, copies] = [picture, copy].map((root) => [root, ...root.querySelectorAll<SVGElement>("*")]);
  copies!.forEach((element, place) => {
    const style = getComputedStyle(originals![place]!);
    for (const name of CARRIED) element.setAttribute(name, style.getPropertyValue(name));
  });
  const { width, height } = picture.getBoundingClientRect();
  copy.setAttribute("width", String(Math.round(width)));
  copy.setAttribute("height", String(Math.round(height)));
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  return new XMLSerializer().serializeToString(copy);
}

/** PNG, twice as fine as on the screen, on the page's paper. */
export async function pictureOf(picture: Picture): Promise<Blob> {
  const canvas = picture instanceof HTMLCanvasElement ? picture : await drawn(picture);
  return new Promise((resolve, reject) =>
    canvas.toBlob((blob) => (blob ? resolve(blob) : reject(new Error("no picture"))), "image/png"),
  );
}

async function drawn(picture: SVGSVGElement): Promise<HTMLCanvasElement> {
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svgText(picture))}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [2 * image.width, 2 * image.height];
  const pen = canvas.getContext("2d")!;
  pen.fillStyle = getComputedStyle(document.body).backgroundColor;
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.drawImage(image, 0, 0, canvas.width, canvas.height);
  return canvas;
}
