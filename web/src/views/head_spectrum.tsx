/** How many directions a head uses: singular values of its map. */
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { slotOf } from "../blobs";
import type { Pin } from "../contract";
import { Choice } from "../controls";
import { Figure } from "../figure";
import { Curves } from "../plot";
import type { HeadName } from "../readings";
import { at, digits, numbers, reading, shown } from "../readings";
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

/** Energy over shares of the singular values, mean of all sentences; null without the measure spectra. */
export function HeadEnergy({ head }: { head: HeadName }): JSX.Element | null {
  const found = reading(exam.value, "spectra.curve", head.kind);
  if (found === null) return null;
  const shares = found.ticks["share"] ?? [];
  const energy = numbers(at(found.value, head.layer, head.head));
  const points = energy.map((y, i) => ({ x: shares[i] ?? i, y }));
  return (
    <Figure
      id="energy"
      about={{ head }}
      title="Energy of the singular values"
      words="Mean over all sentences: how much of the energy of the map is in this share of its singular values. An early rise means low rank; dashed: full rank, all values equal."
      table={() => ({ columns: ["share of the values", "energy"], rows: points.map(({ x, y }) => [x, y]) })}
    >
      <Curves
        series={[
          { name: `head ${shown(exam.value, head)}`, points },
          {
            name: "all values equal",
            points: shares.map((share) => ({ x: share, y: share })),
            dashed: true,
            colour: "var(--none)",
          },
        ]}
        x="share of the values"
        y="energy"
        zero
        label={`Energy of the singular values of head ${shown(exam.value, head)}`}
      />
    </Figure>
  );
}
