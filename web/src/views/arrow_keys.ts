/** Many elements share one stop of the tab key: arrow keys move among them. */

type Place = [number, number];

/** Key -> steps to the right and down. */
export const STEPS: Record<string, Place> = {
  ArrowLeft: [-1, 0],
  ArrowRight: [1, 0],
  ArrowUp: [0, -1],
  ArrowDown: [0, 1],
};

/** For a box with elements that have data-at: to the nearest one in the direction of the arrow. */
export function onArrowKey(event: KeyboardEvent): void {
  const step = STEPS[event.key];
  const from = placeOf(event.target);
  if (step === undefined || from === null || event.altKey || event.ctrlKey || event.metaKey) return;
  const box = event.currentTarget as Element;
  const swerve = (event.target as Element).getAttribute("data-at") === "" ? 3 : 100;
  const ahead = [...box.querySelectorAll<SVGElement | HTMLElement>("[data-at]")]
    .map((element) => ({ element, cost: cost(from, placeOf(element)!, step, swerve) }))
    .filter((next) => next.cost < Infinity)
    .sort((a, b) => a.cost - b.cost)[0];
  event.preventDefault();
  event.stopPropagation();
  ahead?.element.focus();
  ahead?.element.scrollIntoView({ block: "nearest", inline: "nearest" });
}

/** data-at="column,row"; of data-at="", which wraps as the window changes, the middle on the screen. */
function placeOf(target: EventTarget | null): Place | null {
  const said = target instanceof Element ? target.getAttribute("data-at") : null;
  if (said === null) return null;
  const { x, y, width, height } = (target as Element).getBoundingClientRect();
  const [column = 0, row = 0] = said === "" ? [x + width / 2, y + height / 2] : said.split(",").map(Number);
  return [column, row];
}

/** Elements straight ahead come first. A step to the side counts like `swerve` steps ahead. */
function cost(from: Place, to: Place, [right, down]: Place, swerve: number): number {
  const [across, along] = [to[0] - from[0], to[1] - from[1]];
  const ahead = across * right + along * down;
  const aside = Math.abs(right === 0 ? across : along);
  return ahead > 0.5 ? ahead + swerve * aside : Infinity;
}
