/** Whether an element is, or was, near what is seen: what is far need not be drawn yet. */
import type { RefObject } from "preact";
import { useEffect, useState } from "preact/hooks";

const waiting = new WeakMap<Element, () => void>();

const observer = new IntersectionObserver(
  (entries) => {
    for (const { target, isIntersecting } of entries) if (isIntersecting) waiting.get(target)?.();
  },
  { rootMargin: "800px" },
);

export function useNear(place: RefObject<Element | null>): boolean {
  const [near, setNear] = useState(false);
  useEffect(() => {
    const element = place.current;
    if (element === null || near) return;
    waiting.set(element, () => setNear(true));
    observer.observe(element);
    return () => observer.unobserve(element);
  }, [near]);
  return near;
}
