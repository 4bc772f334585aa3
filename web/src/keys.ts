/** Which keys belong to what has the focus, and not to the page. */

const ARROWS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"];
const WRITTEN_IN = "select, textarea, dialog, input:not([type=radio]):not([type=range])";

/** In fields and dialogs all keys; on choices, sliders and what scrolls or moves a cursor, the arrows. */
export function isTyping(event: KeyboardEvent): boolean {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") !== null) return true;
  if (!(event.target instanceof Element)) return false;
  const arrows = ARROWS.includes(event.key) && event.target.closest("input, canvas, .table-box") !== null;
  return arrows || event.target.closest(WRITTEN_IN) !== null;
}
