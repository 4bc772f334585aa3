/** Whether tokens become the same, what can be proved of it, and how sharp attention is. */
import type { JSX } from "preact";
import type { Kind } from "../contract";
import { alongDepth, percent } from "../readings";
import { exam, linkTo } from "../store";
import { CurveFigure, DotFigure, Part, isThere } from "./depth_figures";

const NORMS: Record<string, string> = {
  composite: "composite",
  frobenius: "Frobenius",
  inf: "largest row sum",
  one: "largest column sum",
  max: "largest entry",
  spectral: "spectral",
};

export function Sameness({ kind }: { kind: Kind }): JSX.Element {
  const norms = Object.entries(NORMS).map(([norm, name]) => ({ reading: `residuals.${norm}`, name }));
  return (
    <Part title="Do tokens become identical?" there={isThere(kind, /^(rank|ranks|residuals)\.(?!.*_absolute)/)}>
      <CurveFigure
        id="depth-residual"
        title="How different tokens are"
        kind={kind}
        lines={[{ reading: "rank.residual", name: "residual" }]}
        x="depth"
        y="relative residual"
        zero
      >
        The distance of the tokens from their mean, relative to their size. At 0 all tokens are identical (rank
        collapse); at 1 they have no common part.
      </CurveFigure>
      <CurveFigure
        id="depth-cosine"
        title="Cosine similarity of tokens"
        kind={kind}
        lines={[{ reading: "rank.cosine", name: "cosine" }]}
        x="depth"
        y="mean cosine"
        zero
      >
        The mean cosine between two tokens of a sentence. At 1 all of them point in the same direction; at 0 they are
        orthogonal on average.
      </CurveFigure>
      <CurveFigure
        id="depth-norms"
        title="The residual in other norms"
        kind={kind}
        lines={norms}
        x="depth"
        y="relative residual"
        zero
      >
        The same distance to equal rows, measured in other norms. Where all curves fall together, tokens collapse in
        every norm; the composite norm is the one used in the published proofs.
      </CurveFigure>
      <CurveFigure
        id="depth-diameter"
        title="Distance between the two most distant tokens"
        kind={kind}
        lines={[{ reading: "rank.diameter", name: "diameter" }]}
        x="depth"
        y="largest distance"
        zero
      >
        The largest distance between two tokens of a sentence, in the residual stream. Layer norms change the scale, so
        compare depths with care.
      </CurveFigure>
      <CurveFigure
        id="depth-rank"
        title="How many directions tokens use"
        kind={kind}
        lines={[
          { reading: "rank.stable", name: "stable rank" },
          { reading: "ranks.effective", name: "effective rank" },
          { reading: "ranks.energy90", name: "directions with 90 % of the energy" },
          { reading: "ranks.numerical", name: "numerical rank" },
        ]}
        x="depth"
        y="directions"
        zero
      >
        The number of directions that carry the tokens of a sentence. At 1 a single direction carries everything; the
        number of tokens is the maximum.
      </CurveFigure>
      <CurveFigure
        id="depth-second"
        title="Second singular value relative to the first"
        kind={kind}
        lines={[{ reading: "ranks.second_ratio", name: "s2 / s1" }]}
        x="depth"
        y="s2 / s1"
        zero
      >
        The second singular value divided by the first. At 0 one direction carries everything; at 1 the first two
        directions carry the same.
      </CurveFigure>
    </Part>
  );
}

export function Bounds({ kind }: { kind: Kind }): JSX.Element {
  const holds = alongDepth(exam.value, "bounds.composite_holds", kind)?.filter((share) => share !== null) ?? [];
  return (
    <Part
      title="Proved bounds and measured values"
      there={isThere(kind, /^bounds\.(measured|diameter|residual|composite|published)@/)}
    >
      <CurveFigure
        id="depth-diameter-bound"
        title="Diameter of the attention output, and its bound"
        kind={kind}
        lines={[
          { reading: "bounds.measured", name: "measured" },
          { reading: "bounds.diameter", name: "bound", bound: true },
        ]}
        x="layer"
        y="largest distance"
        log
      >
        The distance between the two most distant rows of the attention output of a layer, and its upper bound. The
        closer the two lines, the tighter the bound. The scale is logarithmic.
      </CurveFigure>
      <CurveFigure
        id="depth-residual-bound"
        title="Composite residual of the attention output, and its bounds"
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
        How different the rows of the attention output of a layer are. The bound as printed does not hold for all
        inputs, see <a href={linkTo("claims", "S0.17")}>S0.17</a>.{" "}
        {holds.length > 0 && Math.max(...holds) === 0
          ? "The corrected bound is not drawn: the scores of every sentence vary too much for it."
          : holds.length > 0 &&
            `The corrected bound holds for at least ${percent(Math.min(...holds))} of the sentences.`}{" "}
        The scale is logarithmic.
      </CurveFigure>
    </Part>
  );
}

export function Sharpness({ kind }: { kind: Kind }): JSX.Element {
  return (
    <Part title="How sharp attention is" there={isThere(kind, /^saturation\.(?!score_range)/)}>
      <DotFigure
        id="depth-entropy"
        title="Entropy of the attention"
        kind={kind}
        lines={[{ reading: "saturation.entropy", name: "entropy" }]}
        y="entropy (nats)"
      >
        How evenly heads spread their attention. At 0 one key gets all of it; high values mean even attention.
      </DotFigure>
      <DotFigure
        id="depth-max"
        title="Largest weight"
        kind={kind}
        lines={[{ reading: "saturation.max_weight", name: "largest weight" }]}
        y="largest weight of a row"
      >
        The mean largest weight of a row. Near 1 a head attends to one token only; low values mean even attention.
      </DotFigure>
      <DotFigure
        id="depth-jacobian"
        title="Sensitivity of the softmax"
        kind={kind}
        lines={[{ reading: "saturation.jacobian", name: "Jacobian" }]}
        y="norm of the Jacobian"
      >
        How strongly the weights respond to a change in the scores. At 0 the softmax is saturated, and no gradient
        reaches queries and keys.
      </DotFigure>
      <DotFigure
        id="depth-scores"
        title="Size of the scores"
        kind={kind}
        lines={[
          { reading: "saturation.score_rms", name: "measured" },
          { reading: "saturation.score_expected", name: "if queries and keys were independent", bound: true },
        ]}
        y="root mean square"
      >
        Large scores make attention sharp. Above the dashed line, queries and keys are aligned; on it, they behave like
        independent random vectors of the same size.
      </DotFigure>
    </Part>
  );
}
