/** What is decoded only when it is needed. */
import { useEffect, useState } from "preact/hooks";

/**
 * The latest result of `load`; that of the inputs before until it is there, so that pictures do not flicker. What goes
 * wrong is thrown where it is used, for the frame of the view to tell.
 */
export function useLoaded<T>(load: () => Promise<T>, inputs: readonly unknown[]): T | null {
  const [result, setResult] = useState<{ found: T } | { problem: unknown } | null>(null);
  useEffect(() => {
    let current = true;
    load().then(
      (found) => current && setResult({ found }),
      (problem: unknown) => current && setResult({ problem }),
    );
    return () => {
      current = false;
    };
  }, inputs);
  if (result !== null && "problem" in result) throw result.problem;
  return result?.found ?? null;
}
