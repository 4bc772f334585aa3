/** What is decoded only when it is needed. */
import { useEffect, useState } from "preact/hooks";

/** The latest result of `load`; that of the inputs before until it is there, so that pictures do not flicker. */
export function useLoaded<T>(load: () => Promise<T>, inputs: readonly unknown[]): T | null {
  const [result, setResult] = useState<T | null>(null);
  useEffect(() => {
    let current = true;
    void load().then((found) => {
      if (current) setResult(found);
    });
    return () => {
      current = false;
    };
  }, inputs);
  return result;
}
