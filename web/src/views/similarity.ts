/** Heads in an order in which those with similar attention stand beside one another. */
import type { Thumbnail } from "../blobs";
import type { HeadName } from "../readings";

const CELLS = 8;

/** From the first head on, always to the nearest one that is left. Heads without a picture come last. */
export function bySimilarity(heads: HeadName[], pictures: Map<string, Thumbnail>): HeadName[] {
  const drawn = heads.flatMap((head) => {
    const picture = pictures.get(head.name);
    return picture === undefined ? [] : [{ head, shape: shapeOf(picture) }];
  });
  const order: HeadName[] = [];
  let here = drawn.shift();
  while (here !== undefined) {
    order.push(here.head);
    let [nearest, least] = [-1, Infinity];
    for (let place = 0; place < drawn.length; place++) {
      const far = distance(here.shape, drawn[place]!.shape, least);
      if (far < least) [nearest, least] = [place, far];
    }
    here = nearest < 0 ? undefined : drawn.splice(nearest, 1)[0];
  }
  return [...order, ...heads.filter((head) => !pictures.has(head.name))];
}

/** The picture in CELLS x CELLS, without its first column, where sinks are, and with length one. */
function shapeOf({ rows, columns, levels }: Thumbnail): Float32Array {
  const shape = new Float32Array(CELLS * CELLS);
  for (let row = 0; row < rows; row++) {
    for (let column = 1; column < columns; column++) {
      const cell = Math.floor((row * CELLS) / rows) * CELLS + Math.floor((column * CELLS) / columns);
      shape[cell]! += levels[row * columns + column]!;
    }
  }
  const length = Math.hypot(...shape) || 1;
  return shape.map((value) => value / length);
}

function distance(a: Float32Array, b: Float32Array, most: number): number {
  let sum = 0;
  for (let i = 0; i < a.length && sum < most; i++) sum += (a[i]! - b[i]!) ** 2;
  return sum;
}
