/** States of a view that are part of its address, so that a link shows the same: #head=3.7&map=arcs. */
import { effect, signal, type Signal } from "@preact/signals";
import { route, type View } from "./store";

interface Addressed {
  view: View;
  name: string;
  state: Signal<string>;
  usual: string;
}

const all = signal<Addressed[]>([]);

/** Its usual value is not in the address; a value in the address that is none of `options` is ignored. */
export function addressed<T extends string>(view: View, name: string, usual: T, options?: readonly T[]): Signal<T> {
  const state = signal<T>(usual);
  const read = (): void => {
    const said = new URLSearchParams(location.hash.slice(1)).get(name) as T | null;
    if (said !== null && (options?.includes(said) ?? true)) state.value = said;
  };
  read();
  addEventListener("hashchange", read);
  all.value = [...all.peek(), { view, name, state: state as unknown as Signal<string>, usual }];
  return state;
}

/** The address of the view with its states, in the place of the one without. A frame of a notebook has no address. */
effect(() => {
  const { view } = route.value;
  const wanted = all.value.map((one) => ({ ...one, value: one.state.value }));
  const names = new Set(wanted.map(({ name }) => name));
  const parts = location.hash
    .slice(1)
    .split("&")
    .filter((part) => part !== "" && !names.has(part.split("=")[0]!));
  const states = wanted
    .filter((one) => one.view === view && one.value !== one.usual)
    .map(({ name, value }) => `${name}=${encodeURIComponent(value)}`);
  const next = [...(parts.length === 0 && states.length > 0 ? [view] : parts), ...states].join("&");
  if (next !== location.hash.slice(1) && location.protocol !== "about:")
    history.replaceState(history.state, "", `#${next}`);
});
