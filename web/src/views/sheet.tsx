/** All small pictures on one sheet, unseen: what is saved as the picture of the grid. */
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import type { Thumbnail } from "../blobs";
import { roleColour } from "../colour";
import type { HeadName } from "../readings";
import { shown } from "../readings";
import { exam, theme } from "../store";
import { labelOf, roleSign } from "./roles";

const SIDE = 72;
const CAPTION = 30;
const GAP = 8;
const STRIPE = 4;

export function Sheet(props: { rows: HeadName[][]; pictures: Map<string, Thumbnail> | null }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const across = Math.max(1, ...props.rows.map((row) => row.length));
  const [width, height] = [GAP + across * (SIDE + GAP), GAP + props.rows.length * (SIDE + CAPTION + GAP)];
  useEffect(() => {
    const pen = canvas.current?.getContext("2d");
    const tiles = canvas.current?.parentElement;
    if (!pen || !tiles) return;
    const ink = (variable: string) => getComputedStyle(tiles).getPropertyValue(variable) || "#888";
    pen.fillStyle = ink("--paper");
    pen.fillRect(0, 0, width, height);
    pen.imageSmoothingEnabled = false;
    pen.font = "11px sans-serif";
    props.rows.forEach((row, down) =>
      row.forEach((head, right) => {
        const [x, y] = [GAP + right * (SIDE + GAP), GAP + down * (SIDE + CAPTION + GAP)];
        const label = labelOf(exam.value, head);
        const picture = tiles.querySelector<HTMLCanvasElement>(`a[data-head="${head.name}"] canvas`);
        pen.fillStyle = ink(roleColour(label).slice(4, -1));
        pen.fillRect(x, y, SIDE, STRIPE);
        if (picture) pen.drawImage(picture, x, y + STRIPE, SIDE, SIDE - STRIPE);
        pen.fillStyle = ink("--ink");
        pen.fillText(shown(exam.value, head), x, y + SIDE + 12, SIDE);
        pen.fillText(roleSign(label, head.kind), x, y + SIDE + 25, SIDE);
      }),
    );
  }, [props.rows, props.pictures, theme.value]);
  return <canvas ref={canvas} width={width} height={height} hidden aria-hidden="true" />;
}
