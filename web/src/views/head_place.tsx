/** The way from a head to its neighbours, by button and by key. */
import type { JSX } from "preact";
import { useEffect } from "preact/hooks";
import type { Exam } from "../contract";
import type { HeadName } from "../readings";
import { headsOf, layersOf, shown } from "../readings";
import { isTyping } from "../keys";
import { exam, goTo } from "../store";

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
