/** Small pictures of attention maps: one little canvas each, a pixel for a weight, made larger by the browser. */
import type { JSX } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import type { Thumbnail } from "../blobs";
import { thumbnailsOf } from "../blobs";
import { sequential } from "../colour";
import { pin, theme } from "../store";
import { useLoaded } from "./loaded";
import "./thumbnails.css";

/** The pictures of the sentence shown, by head; null while they are decoded, or without a sentence. */
export function useThumbnails(): Map<string, Thumbnail> | null {
  const sentence = pin.value;
  return useLoaded(async () => (sentence === null ? null : thumbnailsOf(sentence)), [sentence]);
}

export function ThumbnailImage({ picture }: { picture: Thumbnail }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const shades = palette();
  useLayoutEffect(() => {
    if (canvas.current !== null) draw(canvas.current, picture, shades);
  }, [picture, shades]);
  return <canvas ref={canvas} class="thumbnail" width={picture.columns} height={picture.rows} aria-hidden="true" />;
}

function draw(canvas: HTMLCanvasElement, { rows, columns, levels }: Thumbnail, shades: Uint8ClampedArray): void {
  const brush = canvas.getContext("2d");
  if (brush === null || rows * columns === 0) return;
  const image = brush.createImageData(columns, rows);
  levels.forEach((level, i) => image.data.set(shades.subarray(4 * level, 4 * level + 4), 4 * i));
  brush.putImageData(image, 0, 0);
}

const palettes = new Map<string, Uint8ClampedArray>();

/** The colours of the 256 levels, by theme. Levels are square roots of weights: faint attention is seen, too. */
function palette(): Uint8ClampedArray {
  let shades = palettes.get(theme.value);
  if (shades === undefined) {
    shades = Uint8ClampedArray.from(
      Array.from({ length: 256 }, (_, level) => [...sequential(level / 255), 255]).flat(),
    );
    palettes.set(theme.value, shades);
  }
  return shades;
}
