/** Small controls: plain HTML elements that work with the keyboard. */
import type { ComponentChildren, JSX } from "preact";
import { useId } from "preact/hooks";

/** Choose one of a few options: radio buttons in a row. */
export function Choice<T extends string>(props: {
  label: string;
  options: readonly T[];
  value: T;
  words?: Partial<Record<T, string>>;
  onChange: (value: T) => void;
}): JSX.Element {
  const name = useId();
  return (
    <fieldset class="choice">
      <legend>{props.label}</legend>
      {props.options.map((option) => (
        <label key={option}>
          <input
            type="radio"
            name={name}
            value={option}
            checked={option === props.value}
            onChange={() => props.onChange(option)}
          />
          <span>{props.words?.[option] ?? option}</span>
        </label>
      ))}
    </fieldset>
  );
}

/** Choose one of many options. */
export function Picker(props: {
  label: string;
  options: { value: string; text: string }[];
  value: string;
  onChange: (value: string) => void;
}): JSX.Element {
  return (
    <Labelled label={props.label}>
      <select value={props.value} onChange={(event) => props.onChange(event.currentTarget.value)}>
        {props.options.map(({ value, text }) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </Labelled>
  );
}

/** A control with its name before it. */
export function Labelled({ label, children }: { label: string; children: ComponentChildren }): JSX.Element {
  return (
    <label class="picker">
      <span>{label}</span>
      {children}
    </label>
  );
}

/** The set without this element if it was there, else with it. */
export function toggled<T>(chosen: ReadonlySet<T>, one: T): Set<T> {
  const next = new Set(chosen);
  if (!next.delete(one)) next.add(one);
  return next;
}
