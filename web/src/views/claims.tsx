/** Which proved bounds hold on this model, and how tight they are. */
import { useSignal } from "@preact/signals";
import type { JSX } from "preact";
import { Choice } from "../controls";
import type { Exam, Kind } from "../contract";
import { alongDepth, capital, digits, KIND_WORDS, kindsOf, percent } from "../readings";
import { exam } from "../store";
import { DataTable } from "../table";
import { Words } from "../words";
import { CurveFigure } from "./depth_figures";
import "./depth.css";

interface Bound {
  id: string;
  name: string;
  /** "tokens differ by at most" */
  says: string;
  measured: string;
  bound: string;
  /** Share of sentences for which the bound is proved; where there is none it is proved for all. */
  applies?: string;
  /** A statement as printed, which does not hold for all inputs. */
  printed?: boolean;
}

const BOUNDS: Bound[] = [
  {
    id: "D6",
    name: "diameter",
    says: "two rows of the attention output are at most this far apart",
    measured: "bounds.measured",
    bound: "bounds.diameter",
  },
  {
    id: "D5",
    name: "composite residual",
    says: "all rows together differ from their mean by at most this much",
    measured: "bounds.residual",
    bound: "bounds.composite",
    applies: "bounds.composite_holds",
  },
  {
    id: "S0.17, S1.14",
    name: "composite residual as printed",
    says: "the same, as printed in the documents",
    measured: "bounds.residual",
    bound: "bounds.published",
    printed: true,
  },
];

interface Found {
  of: Bound;
  /** Layers with both numbers, and those of them in which the measured value is not above the bound. */
  layers: number;
  holds: number;
  /** Bound over measured value: the tightest and the loosest layer. */
  tight: number | null;
  loose: number | null;
  /** All layers, and the smallest share of sentences of any layer with a number for which it is proved. */
  all: number;
  applies: number;
}

function foundOn(of: Exam, kind: Kind): Found[] {
  return BOUNDS.flatMap((bound) => {
    const [measured, above] = [bound.measured, bound.bound].map((name) => alongDepth(of, name, kind) ?? []);
    const shares = alongDepth(of, bound.applies ?? "", kind)?.filter((share) => share !== null) ?? [];
    const both = measured!.flatMap((value, layer) => {
      const limit = above![layer];
      return typeof value === "number" && typeof limit === "number" ? [[value, limit] as const] : [];
    });
    if (both.length === 0 && shares.length === 0) return [];
    const ratios = both.filter(([value]) => value > 0).map(([value, limit]) => limit / value);
    return [
      {
        of: bound,
        layers: both.length,
        holds: both.filter(([value, limit]) => value <= limit).length,
        tight: ratios.length > 0 ? Math.min(...ratios) : null,
        loose: ratios.length > 0 ? Math.max(...ratios) : null,
        all: measured!.filter((value) => value !== null).length,
        applies: bound.applies === undefined ? 1 : Math.min(1, ...shares.filter((share) => share > 0)),
      },
    ];
  });
}

export function ClaimsView(): JSX.Element {
  const of = exam.value;
  const chosen = useSignal<Kind | null>(null);
  const kinds = kindsOf(of).filter((kind) => foundOn(of, kind).length > 0);
  const kind = kinds.find((one) => one === chosen.value) ?? kinds[0];
  return (
    <section class="stack">
      <h2>Claims</h2>
      {kind === undefined ? (
        <p>
          No bound was measured on this model. To measure them: <code>attnworks examine MODEL --measures bounds</code>
        </p>
      ) : (
        <>
          {kinds.length > 1 && (
            <Choice
              label="Attention"
              options={kinds}
              value={kind}
              words={KIND_WORDS}
              onChange={(one) => (chosen.value = one)}
            />
          )}
          <Results found={foundOn(of, kind)} />
          <div class="columns depth-figures">
            <BoundFigures kind={kind} />
          </div>
        </>
      )}
      <p class="small muted">
        <code>attnworks claims --on MODEL</code> checks all statements that apply to a model, sentence by sentence, in
        double precision. <code>attnworks claims</code> lists the statements with their verdicts.
      </p>
    </section>
  );
}

/** "The bound on the diameter holds in all 6 layers, and is loose: 36 to 1,200 times the measured value." */
function sentenceOf({ of, layers, holds, tight, loose, all, applies }: Found): string {
  const name = capital(`${of.printed ? "the" : "the proved"} bound on the ${of.name}`);
  if (layers === 0) return `${name} does not apply: the scores of every sentence vary too much for it.`;
  const times = tight === null ? "" : `: ${range(tight, loose ?? tight)} times the measured value`;
  if (layers < all || applies < 1) {
    const share = applies < 1 ? `, for at least ${percent(applies)} of the sentences there` : "";
    const there = holds === layers ? "holds there" : `is broken in ${layers - holds} of them`;
    return `${name} applies in ${layers} of ${all} layers${share}, and ${there}${times}.`;
  }
  const where =
    holds === layers ? `holds in all ${layers} layers` : `is broken in ${layers - holds} of ${layers} layers`;
  return `${name} ${where}, and is ${tight !== null && tight < 2 ? "tight somewhere" : "loose"}${times}.`;
}

function range(low: number, high: number): string {
  return digits(low) === digits(high) ? digits(low) : `${digits(low)} to ${digits(high)}`;
}

function Results({ found }: { found: Found[] }): JSX.Element {
  return (
    <div class="card">
      <h3>What holds on this model</h3>
      {found.map((one) => (
        <p key={one.of.id}>{sentenceOf(one)}</p>
      ))}
      <DataTable
        caption="Means over the sentences of each layer"
        columns={[
          { name: "statement" },
          { name: "says" },
          { name: "layers", numeric: true },
          { name: "holds in", numeric: true },
          { name: "tightest", numeric: true, words: "bound over measured value; 1 is attained" },
          { name: "loosest", numeric: true },
        ]}
        rows={found.map(({ of, layers, holds, tight, loose }) => ({
          key: of.id,
          cells: [<Words text={of.id} />, capital(of.says), layers, holds, tight, loose],
        }))}
      />
    </div>
  );
}

function BoundFigures({ kind }: { kind: Kind }): JSX.Element {
  return (
    <>
      <CurveFigure
        id="claims-diameter"
        title="How far apart two tokens are, and the bound"
        kind={kind}
        lines={[
          { reading: "bounds.measured", name: "measured" },
          { reading: "bounds.diameter", name: "bound", bound: true },
        ]}
        x="layer"
        y="largest distance"
        log
      >
        The two most distant rows of the attention output of each layer. The closer the lines, the tighter the bound.
      </CurveFigure>
      <CurveFigure
        id="claims-residual"
        title="How much all tokens differ, and the bounds"
        kind={kind}
        lines={[
          { reading: "bounds.residual", name: "measured" },
          { reading: "bounds.composite", name: "bound", bound: true },
          { reading: "bounds.published", name: "bound as printed", bound: true },
        ]}
        x="layer"
        y="composite residual"
        log
      >
        The composite residual of the attention output of each layer. The bound as printed does not hold for all inputs.
      </CurveFigure>
    </>
  );
}
