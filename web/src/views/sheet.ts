/** All small pictures on one sheet: what is saved as the picture of the grid. */
import type { HeadName } from "../readings";
import { digits, shown } from "../readings";
import { exam } from "../store";
import { measured } from "./grid_state";
import { labelOf, roleSign } from "./roles";

const SIDE = 72;
const CAPTION = 30;
const GAP = 8;
const STRIPE = 4;

/** Row by row, with the pictures of these tiles. */
export function sheetOf(rows: HeadName[][], tiles: Element): HTMLCanvasElement {
  const across = Math.max(1, ...rows.map((row) => row.length));
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [GAP + across * (SIDE + GAP), GAP + rows.length * (SIDE + CAPTION + GAP)];
  const pen = canvas.getContext("2d")!;
  const style = getComputedStyle(tiles);
  const ink = (variable: string) => style.getPropertyValue(variable) || "#888";
  pen.fillStyle = ink("--paper");
  pen.fillRect(0, 0, canvas.width, canvas.height);
  pen.imageSmoothingEnabled = false;
  pen.font = "11px sans-serif";
  rows.forEach((row, down) =>
    row.forEach((head, right) => {
      const [x, y] = [GAP + right * (SIDE + GAP), GAP + down * (SIDE + CAPTION + GAP)];
      const tile = tiles.querySelector(`a[data-head="${head.name}"]`)!;
      const picture = tile.querySelector("canvas");
      const value = measured(exam.value, head);
      pen.fillStyle = getComputedStyle(tile).getPropertyValue("--tile");
      pen.fillRect(x, y, SIDE, STRIPE);
      if (picture) pen.drawImage(picture, x, y + STRIPE, SIDE, SIDE - STRIPE);
      pen.fillStyle = ink("--ink");
      pen.fillText(`${shown(exam.value, head)}  ${value === null ? "" : digits(value)}`, x, y + SIDE + 12, SIDE);
      pen.fillText(roleSign(labelOf(exam.value, head), head.kind), x, y + SIDE + 25, SIDE);
    }),
  );
  return canvas;
}
