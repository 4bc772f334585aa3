/** A button that opens a short list of things to do. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import "./menu.css";

export interface MenuEntry {
  text: string;
  onChoose: () => void;
}

export function Menu({ name, entries }: { name: string; entries: MenuEntry[] }): JSX.Element {
  const [open, setOpen] = useState(false);
  const box = useRef<HTMLSpanElement>(null);
  const button = useRef<HTMLButtonElement>(null);

  useEffect(() => {
    if (!open) return;
    items()[0]?.focus();
    const outside = (event: Event): void => {
      if (event.target instanceof Node && !box.current?.contains(event.target)) setOpen(false);
    };
    addEventListener("pointerdown", outside);
    addEventListener("focusin", outside);
    return () => {
      removeEventListener("pointerdown", outside);
      removeEventListener("focusin", outside);
    };
  }, [open]);

  function items(): HTMLElement[] {
    return [...(box.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
  }

  function close(): void {
    setOpen(false);
    button.current?.focus();
  }

  function onKey(event: KeyboardEvent): void {
    if (!open) return;
    const all = items();
    const at = all.indexOf(document.activeElement as HTMLElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (event.key === "Escape") close();
    else if (next !== undefined) all[(next + all.length) % all.length]?.focus();
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  return (
    <span class="menu" ref={box} onKeyDown={onKey}>
      <button
        ref={button}
        type="button"
        class="quiet"
        aria-label={name}
        title={name}
        aria-haspopup="menu"
        aria-expanded={open}
        onClick={() => setOpen(!open)}
      >
        ⋯
      </button>
      {open && (
        <div role="menu" aria-label={name} class="menu-entries">
          {entries.map(({ text, onChoose }) => (
            <button
              key={text}
              type="button"
              role="menuitem"
              tabIndex={-1}
              onClick={() => {
                close();
                onChoose();
              }}
            >
              {text}
            </button>
          ))}
        </div>
      )}
    </span>
  );
}
