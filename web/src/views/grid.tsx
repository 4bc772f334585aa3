/** All heads of the model as small pictures on one canvas, with a link over every one of them. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Thumbnail } from "../blobs";
import { Figure, type Table } from "../figure";
import type { HeadName } from "../readings";
import { digits, headMeasures, headsOf, ofHead, shown } from "../readings";
import { exam, linkTo, pin, theme } from "../store";
import { onArrowKey } from "./arrow_keys";
import { GridControls, Legend } from "./grid_controls";
import { atlasOf, drawGrid, measureFill, type Look } from "./grid_draw";
import { inLayers, inOrder, kindsOfSide, type GridLayout } from "./grid_layout";
import { filled, filtered, measure, measured, order, shareOf, visible, weighting } from "./grid_state";
import { formOf, labelOf, roleLabel, roleName, sinkOf } from "./roles";
import { bySimilarity } from "./similarity";
import { lit, spot } from "./spotlight";
import { useThumbnails } from "./thumbnails";
import { useWidth } from "./width";
import { workOf, workPercent, workSizes } from "./work";
import "./grid.css";

/** What stands below the grid on the first screen, and the least height of the grid. */
const BELOW = 132;
const LOWEST = 250;
/** On narrower screens one scrolls anyway, and tiles are to be touched. */
const SMALL = 600;

export function HeadGrid(): JSX.Element {
  const pictures = useThumbnails();
  const over = useSignal("");
  const { box, width } = useWidth<HTMLDivElement>();
  const tall = useWindowHeight();
  const top = box.current === null ? 0 : box.current.getBoundingClientRect().top + scrollY;
  const heads = visible.value;
  const layout = useMemo(() => {
    const room = {
      width: Math.max(120, width),
      height: Math.max(LOWEST, tall - top - BELOW, width < SMALL ? 2 * width : 0),
    };
    if (order.value === "layers") return inLayers(exam.value, heads, room, filtered.value);
    const ordered = order.value === "similar" && pictures !== null ? bySimilarity(heads, pictures) : heads;
    return inOrder(ordered, room);
  }, [exam.value, heads, width, tall, top, order.value, filtered.value, pictures]);
  return (
    <Figure id="heads" title="All heads" class="grid-figure" table={headTable}>
      <GridControls />
      <div
        class="grid-box"
        ref={box}
        role="group"
        aria-label="All heads; move with the arrow keys"
        onKeyDown={onArrowKey}
      >
        {width > 0 && heads.length > 0 && (
          <div class="grid-stage" style={{ width: `${layout.width}px`, height: `${layout.height}px` }}>
            <Drawn layout={layout} pictures={pictures} />
            <Links layout={layout} onOver={(name) => (over.value = name)} />
          </div>
        )}
        {heads.length === 0 && (
          <p class="muted">{filtered.value ? "No head matches these filters." : "This examination has no heads."}</p>
        )}
      </div>
      <p class="grid-over small" aria-hidden="true">
        {over.value === "" ? <Hint /> : over.value}
      </p>
      <Legend />
    </Figure>
  );
}

function Hint(): JSX.Element {
  if (pin.value === null) {
    return (
      <span class="muted">
        No sentence was kept, so there are no pictures:{" "}
        <code>attnworks examine MODEL --pin "a sentence" --out exam/</code> keeps one.
      </span>
    );
  }
  return (
    <span class="muted">One picture per head: rows are queries, columns are keys. Click one to see it in full.</span>
  );
}

/** The canvas: drawn again when what it shows changes, or when the pointer is on a word or a finding. */
function Drawn({ layout, pictures }: { layout: GridLayout; pictures: Map<string, Thumbnail> | null }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const of = exam.value;
  const atlas = useMemo(
    () => (pictures === null ? null : atlasOf(of, pictures, headsOf(of))),
    [of, pictures, theme.value],
  );
  const sentence = pin.value;
  const { largest } = useMemo(() => workSizes(of), [of]);
  const word = lit.value;
  const look: Look = {
    exam: of,
    weight: (head) => (largest > 0 ? (workOf(of, head) ?? 0) / largest : null),
    by: weighting.value,
    fill: (head) => (filled.value ? measureFill(shareOf(head)) : null),
    caption: captionOf,
    row:
      word === null || sentence === null
        ? null
        : {
            kinds: kindsOfSide(word.side, sentence.target !== null),
            at: word.at,
            of: (word.side === "target" ? sentence.target : null)?.length ?? sentence.tokens.length,
          },
    spot: spot.value,
  };
  useLayoutEffect(() => {
    if (canvas.current !== null) drawGrid(canvas.current, layout, atlas, look);
  });
  return (
    <canvas
      ref={canvas}
      class="grid-canvas"
      style={{ width: `${layout.width}px`, height: `${layout.height}px` }}
      aria-hidden="true"
      data-theme={theme.value}
    />
  );
}

function captionOf(head: HeadName): string {
  const value =
    order.value === "work" || order.value === "layers" || order.value === "similar" ? null : measured(exam.value, head);
  return value === null ? shown(exam.value, head) : `${shown(exam.value, head)} ${digits(value)}`;
}

function Links({ layout, onOver }: { layout: GridLayout; onOver: (words: string) => void }): JSX.Element {
  const reached = useSignal("");
  const names = layout.tiles.map(({ head }) => head.name);
  const first = names.includes(reached.value) ? reached.value : (names[0] ?? "");
  const { total } = useMemo(() => workSizes(exam.value), [exam.value]);
  return (
    <div class="grid-links" onMouseLeave={() => onOver("")}>
      {layout.tiles.map(({ head, x, y }) => {
        const words = tileWords(head, total);
        return (
          <a
            key={head.name}
            class="tile"
            href={linkTo("head", head.name)}
            aria-label={words}
            tabIndex={head.name === first ? 0 : -1}
            onFocus={() => ((reached.value = head.name), onOver(words))}
            onMouseEnter={() => onOver(words)}
            data-head={head.name}
            data-at=""
            style={`left:${x}px;top:${y}px;width:${layout.side}px;height:${layout.side}px`}
          />
        );
      })}
    </div>
  );
}

/** "head 3.7, previous token, rests on the first token, 4 % of the work, entropy 1.2" */
function tileWords(head: HeadName, total: number): string {
  const of = exam.value;
  const [label, sink] = [roleLabel(of, head), sinkOf(of, head)];
  const [work, value] = [workOf(of, head), measured(of, head)];
  return [
    `head ${shown(of, head)}`,
    ...(label === "" ? [] : [roleName(label, head.kind)]),
    ...(sink === "" ? [] : [roleName(sink, head.kind)]),
    ...(work === null || total === 0 ? [] : [`${workPercent(work / total)} of the work`]),
    ...(value === null ? [] : [`${measure.value.split(".").at(-1)!.replaceAll("_", " ")} ${digits(value)}`]),
  ].join(", ");
}

function useWindowHeight(): number {
  const [height, setHeight] = useState(innerHeight);
  useEffect(() => {
    const resized = () => setHeight(innerHeight);
    addEventListener("resize", resized);
    return () => removeEventListener("resize", resized);
  }, []);
  return height;
}

/** Every head that is shown, with the chosen measure first and then all others. */
function headTable(): Table {
  const of = exam.value;
  const names = [...new Set([measure.value, ...headMeasures(of)])].filter((name) => name !== "");
  return {
    columns: ["head", "role", "form", ...names],
    rows: visible.value.map((head) => [
      shown(of, head),
      labelOf(of, head) || null,
      formOf(of, head) || null,
      ...names.map((name) => ofHead(of, name, head)),
    ]),
  };
}
