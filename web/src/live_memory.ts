/** The sentence and the changes, kept by the browser for this tab, so that they are there after a reload. */
import type { Question } from "./contract";

/** The address has the server's token in it: another server has a memory of its own. */
const KEY = `attnworks ${location.pathname}`;

export function remember(question: Question): void {
  try {
    sessionStorage.setItem(KEY, JSON.stringify(question));
  } catch {
    // A browser that keeps nothing: a reload then begins anew.
  }
}

export function remembered(): Question | null {
  try {
    return JSON.parse(sessionStorage.getItem(KEY) ?? "null") as Question | null;
  } catch {
    return null;
  }
}
