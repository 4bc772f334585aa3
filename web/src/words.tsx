/** Words with commands between backticks, and ids of statements, which `attnworks claims` explains. */
import type { JSX } from "preact";

const MARKED = /(`[^`]+`|\b(?:S\d\.\d+|D\d+)\b)/;

export function Words({ text }: { text: string }): JSX.Element {
  const parts = text.split(MARKED).map((part, at) => {
    if (at % 2 === 0) return part;
    if (part.startsWith("`")) return <code key={at}>{part.slice(1, -1)}</code>;
    return (
      <span key={at} title={`attnworks claims ${part} shows this statement`}>
        {part}
      </span>
    );
  });
  return <>{parts}</>;
}
