/** How wide a text will be. */

const pen = document.createElement("canvas").getContext("2d");

export function textWidth(text: string, size: number): number {
  if (pen === null) return 0.6 * size * text.length;
  pen.font = `600 ${size}px system-ui, sans-serif`;
  return Math.ceil(pen.measureText(text).width);
}

export function shortened(text: string, letters: number): string {
  return text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
}
