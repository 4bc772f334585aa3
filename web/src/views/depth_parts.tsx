/** Whether tokens become the same, what can be proved of it, and how sharp attention is. */
import type { JSX } from "preact";
import type { Kind } from "../contract";
import { hasOutliers } from "../readings";
import { page } from "../store";
import { CurveFigure, DotFigure, type Line, Part, isThere } from "./depth_figures";

const NORMS: Record<string, string> = {
  composite: "composite",
  frobenius: "Frobenius",
  inf: "largest row sum",
  one: "largest column sum",
  max: "largest entry",
  spectral: "spectral",
};

/** The curve of all tokens and, where any examination has outlying tokens, the curve without them. */
function withAndWithout(kind: Kind, ...lines: Line[]): Line[] {
  if (!page.value.exams.some((one) => hasOutliers(one, kind))) return lines;
  return lines.flatMap((line) => [
    line,
    { reading: `${line.reading}_without_outliers`, name: `${line.name} without outlying tokens` },
  ]);
}

export function Sameness({ kind }: { kind: Kind }): JSX.Element {
  const norms = Object.entries(NORMS).map(([norm, name]) => ({ reading: `residuals.${norm}`, name }));
  return (
    <Part title="Do tokens become identical?" there={isThere(kind, /^(rank|ranks|residuals)\.(?!.*_absolute)/)}>
      <CurveFigure
        id="depth-residual"
        title="How different tokens are"
        kind={kind}
        lines={withAndWithout(kind, { reading: "rank.residual", name: "residual" })}
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
        lines={withAndWithout(kind, { reading: "rank.cosine", name: "cosine" })}
        x="depth"
        y="mean cosine"
        zero
      >
        The mean cosine between two tokens of a sentence. At 1 all of them point in the same direction; at 0 they are
        orthogonal on average.
      </CurveFigure>
      <CurveFigure
        id="depth-largest"
        title="Norm of the largest token"
        kind={kind}
        lines={[{ reading: "rank.largest_norm", name: "largest token" }]}
        x="depth"
        y="norm over the median"
        log
      >
        The largest norm of a token in a sentence, divided by the median norm. At 1 all norms are equal. A token is
        outlying if one of its activations alone is larger than 3 times the median norm; it then decides the residual,
        the diameter and the rank of all tokens. The scale is logarithmic.
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
        lines={withAndWithout(kind, { reading: "rank.diameter", name: "diameter" })}
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
        lines={withAndWithout(
          kind,
          { reading: "rank.stable", name: "stable rank" },
          { reading: "ranks.effective", name: "effective rank" },
          { reading: "ranks.energy90", name: "directions with 90 % of the energy" },
          { reading: "ranks.numerical", name: "numerical rank" },
        )}
        x="depth"
        y="directions"
        zero
      >
        The number of directions that carry the tokens of a sentence. At 1 a single direction carries everything; the
        number of tokens is the maximum.
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
