/** Changes to the model of the live page: heads cut or given a fixed form, layers given another mechanism. */
import type { Changes } from "./contract";

export const NO_CHANGES: Changes = { cut: [], project: {}, swap: {} };

/** One change, in words, and all changes but this one. */
export interface Undo {
  words: string;
  without: Changes;
}

export function changesAnything({ cut, project, swap }: Changes): boolean {
  return cut.length > 0 || Object.keys(project).length > 0 || Object.keys(swap).length > 0;
}

/** Cut a head, or restore it. */
export function cutOrRestore(changes: Changes, head: string): Changes {
  return changes.cut.includes(head)
    ? { ...changes, cut: changes.cut.filter((other) => other !== head) }
    : { ...changes, cut: [...changes.cut, head], project: without(changes.project, head) };
}

/** Give a head a form; null restores its own attention. */
export function project(changes: Changes, head: string, form: string | null): Changes {
  const others = without(changes.project, head);
  return {
    ...changes,
    cut: changes.cut.filter((other) => other !== head),
    project: form === null ? others : { ...others, [head]: form },
  };
}

/** Give a layer a mechanism; null restores its own. */
export function swap(changes: Changes, layer: string, mechanism: string | null): Changes {
  const others = without(changes.swap, layer);
  return { ...changes, swap: mechanism === null ? others : { ...others, [layer]: mechanism } };
}

export function undos(changes: Changes): Undo[] {
  return [
    ...changes.cut.map((head) => ({ words: `${head} cut`, without: cutOrRestore(changes, head) })),
    ...Object.entries(changes.project).map(([head, form]) => ({
      words: `${head} → ${form}`,
      without: project(changes, head, null),
    })),
    ...Object.entries(changes.swap).map(([layer, mechanism]) => ({
      words: `${layer} → ${mechanism}`,
      without: swap(changes, layer, null),
    })),
  ];
}

function without(map: Record<string, string>, key: string): Record<string, string> {
  return Object.fromEntries(Object.entries(map).filter(([other]) => other !== key));
}
