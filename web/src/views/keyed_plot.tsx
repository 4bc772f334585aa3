/** A picture of a given size. Arrow keys move among the elements in it. */
import type { ComponentChildren, JSX } from "preact";
import { onArrowKey } from "./arrow_keys";

export function KeyedPlot(props: {
  width: number;
  height: number;
  label: string;
  onMouseLeave?: () => void;
  children: ComponentChildren;
}): JSX.Element {
  const { width, height, label, onMouseLeave } = props;
  return (
    <svg
      class="plot"
      viewBox={`0 0 ${width} ${height}`}
      style={{ width: `${width}px` }}
      role="group"
      aria-label={label}
      onKeyDown={onArrowKey}
      onMouseLeave={onMouseLeave}
    >
      {props.children}
    </svg>
  );
}
