/** A picture as large as it says, with things in it among which arrow keys move. */
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
