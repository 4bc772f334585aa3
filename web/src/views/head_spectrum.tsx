/** How many directions a head uses: singular values of its map. */
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { slotOf } from "../blobs";
import type { Pin } from "../contract";
import { Choice } from "../controls";
import { Figure } from "../figure";
import { Curves } from "../plot";
import type { HeadName } from "../readings";
import { digits, shown } from "../readings";
import { exam } from "../store";

const scale = signal<"even" | "log">("even");

export function HeadSpectrum({ pin, head }: { pin: Pin; head: HeadName }): JSX.Element | null {
  const values = slotOf(pin, head)?.spectra?.[head.head];
  if (values === undefined || values.length === 0) return null;
  const name = shown(exam.value, head);
  return (
    <Figure
      id="spectrum"
      about={{ head, sentence: pin.tokens }}
      title="Singular values of the map"
      words="On this sentence. A steep fall means that few directions carry the map; a single non-zero value means that all tokens attend to the same places."
      table={() => ({ columns: ["index", "singular value"], rows: values.map((value, i) => [i + 1, value]) })}
    >
      <Choice
        label="Scale"
        options={["even", "log"]}
        words={{ even: "linear", log: "logarithmic" }}
        value={scale.value}
        onChange={(value) => (scale.value = value)}
      />
      <Curves
        series={[{ name: `head ${name}`, points: values.map((y, i) => ({ x: i + 1, y })) }]}
        x="index"
        y="singular value"
        log={scale.value === "log"}
        zero={scale.value === "even"}
        whole
        label={`Singular values of the map of head ${name}; the largest is ${digits(values[0])}`}
      />
    </Figure>
  );
}
