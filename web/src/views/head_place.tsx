/** Where in the model a head is, and the way to its neighbours. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import { roleColour } from "../colour";
import type { Exam, Kind } from "../contract";
import type { HeadName } from "../readings";
import { headsOf, KIND_WORDS, kindsOf, layersOf, shown } from "../readings";
import { isTyping } from "../keys";
import { exam, goTo, linkTo } from "../store";
import { labelOf, roleName } from "./roles";
import { KeyedPlot } from "./keyed_plot";

type Way = "before" | "after" | "lower" | "upper";

const WAYS: Record<string, Way> = {
  ArrowLeft: "before",
  ArrowRight: "after",
  k: "before",
  j: "after",
  ArrowUp: "lower",
  ArrowDown: "upper",
};

/** Left and right: heads one after another through all layers. Up and down: the same head of the layer before, after. */
function neighbour(of: Exam, head: HeadName, way: Way): HeadName | null {
  const heads = headsOf(of);
  if (way === "before" || way === "after") {
    return heads[heads.findIndex(({ name }) => name === head.name) + (way === "after" ? 1 : -1)] ?? null;
  }
  const alike = heads.filter((other) => other.kind === head.kind);
  const layers = layersOf(of, head.kind).filter((layer) => alike.some((other) => other.layer === layer));
  const layer = layers[layers.indexOf(head.layer) + (way === "upper" ? 1 : -1)];
  const there = alike.filter((other) => other.layer === layer);
  return there[Math.min(head.head, there.length - 1)] ?? null;
}

export function useHeadKeys(head: HeadName): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent): void => {
      const way = WAYS[event.key];
      if (way === undefined || isTyping(event) || event.shiftKey) return;
      const next = neighbour(exam.value, head, way);
      if (next === null) return;
      event.preventDefault();
      goTo("head", next.name);
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, [head.name]);
}

export function Neighbours({ head }: { head: HeadName }): JSX.Element {
  const ways: [Way, string, string][] = [
    ["before", "←", "previous head"],
    ["after", "→", "next head"],
    ["lower", "↑", "same head, previous layer"],
    ["upper", "↓", "same head, next layer"],
  ];
  return (
    <div class="row neighbours" role="group" aria-label="Other heads">
      {ways.map(([way, arrow, words]) => {
        const next = neighbour(exam.value, head, way);
        const name = next === null ? "" : ` ${shown(exam.value, next)}`;
        return (
          <button
            key={way}
            type="button"
            disabled={next === null}
            aria-label={`${words}${name === "" ? "" : `:${name}`}`}
            title={`${words} (key ${arrow})`}
            onClick={() => next !== null && goTo("head", next.name)}
          >
            {arrow}
            {name}
          </button>
        );
      })}
    </div>
  );
}

const SIDE = 15;
/** A map of more layers would push the attention off the first screen; it is folded. */
const MOST_LAYERS = 8;

/** All heads as small squares in the colours of their roles, this one framed. */
export function Place({ head }: { head: HeadName }): JSX.Element {
  const of = exam.value;
  const kinds = kindsOf(of);
  const map = (
    <div class="row place">
      {kinds.map((kind) => (
        <KindPlace key={kind} kind={kind} head={head} />
      ))}
    </div>
  );
  const tall = Math.max(0, ...kinds.map((kind) => layersOf(of, kind).length)) > MOST_LAYERS;
  if (!tall) return map;
  return (
    <details class="small place-box">
      <summary>All heads</summary>
      {map}
    </details>
  );
}

/** A ring if the head has no role. */
function squareInk(label: string, here: boolean) {
  const colour = roleColour(label);
  return { fill: colour, stroke: colour, "fill-opacity": label === "none" ? 0.08 : here ? 1 : 0.6 };
}

function KindPlace({ kind, head }: { kind: Kind; head: HeadName }): JSX.Element {
  const of = exam.value;
  const heads = headsOf(of).filter((other) => other.kind === kind);
  const layers = layersOf(of, kind);
  const across = 1 + Math.max(0, ...heads.map((other) => other.head));
  const [width, height] = [across * SIDE + 2, layers.length * SIDE + 2];
  const reached = heads.find((other) => other.name === head.name) ?? heads[0];
  return (
    <div>
      {kindsOf(of).length > 1 && <div class="small muted">{KIND_WORDS[kind]}</div>}
      <KeyedPlot width={width} height={height} label={`Heads of the ${KIND_WORDS[kind]}`}>
        {heads.map((other) => {
          const [x, y] = [1 + other.head * SIDE, 1 + layers.indexOf(other.layer) * SIDE];
          const label = labelOf(of, other);
          const words = `head ${shown(of, other)}${label === "" ? "" : `, ${roleName(label, kind)}`}`;
          const here = other.name === head.name;
          return (
            <a
              key={other.name}
              href={linkTo("head", other.name)}
              aria-label={words}
              aria-current={here ? "true" : undefined}
              tabindex={other === reached ? 0 : -1}
              data-at={`${other.head},${layers.indexOf(other.layer)}`}
            >
              <rect x={x + 1.5} y={y + 1.5} width={SIDE - 3} height={SIDE - 3} rx={2} {...squareInk(label, here)} />
              {here && (
                <rect x={x} y={y} width={SIDE} height={SIDE} rx={3} fill="none" stroke="var(--ink)" stroke-width={2} />
              )}
              <title>{words}</title>
            </a>
          );
        })}
      </KeyedPlot>
    </div>
  );
}
