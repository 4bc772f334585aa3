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
    <Part title="Do tokens become the same?" there={isThere(kind, /^(rank|ranks|residuals)\.(?!.*_absolute)/)}>
      <CurveFigure
        id="depth-residual"
        title="How different tokens are"
        kind={kind}
        lines={[{ reading: "rank.residual", name: "residual" }]}
        x="depth"
        y="residual, of the size"
        zero
      >
        The distance of the tokens from their common mean, as a share of their size. At 0 all tokens have become the
        same (rank collapse); at 1 they share nothing.
      </CurveFigure>
      <CurveFigure
        id="depth-cosine"
        title="How much tokens point the same way"
        kind={kind}
        lines={[{ reading: "rank.cosine", name: "cosine" }]}
        x="depth"
        y="mean cosine"
        zero
      >
        The mean cosine between two tokens of a sentence. At 1 all of them point the same way; at 0 they have nothing to
        do with each other.
      </CurveFigure>
      <CurveFigure
        id="depth-norms"
        title="The residual in other norms"
        kind={kind}
        lines={norms}
        x="depth"
        y="residual, of the size"
        zero
      >
        The same distance to equal rows, measured in other ways. Where all curves fall together, tokens collapse
        whichever way one looks; the composite norm is the one of the published proofs.
      </CurveFigure>
      <CurveFigure
        id="depth-diameter"
        title="The two most distant tokens"
        kind={kind}
        lines={[{ reading: "rank.diameter", name: "diameter" }]}
        x="depth"
        y="largest distance"
        zero
      >
        The largest distance between two tokens of a sentence, in the stream that runs through the layers. A norm sets
        the scale anew, so compare it between depths with care.
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
        How many directions carry the tokens of a sentence. At 1 a single direction carries everything; it cannot be
        more than the sentence has tokens.
      </CurveFigure>
      <CurveFigure
        id="depth-second"
        title="The second direction against the first"
        kind={kind}
        lines={[{ reading: "ranks.second_ratio", name: "s2 / s1" }]}
        x="depth"
        y="s2 / s1"
        zero
      >
        The second singular value over the first. At 0 one direction carries everything; at 1 the first two carry the
        same.
      </CurveFigure>
    </Part>
  );
}

export function Bounds({ kind }: { kind: Kind }): JSX.Element {
  const holds = alongDepth(exam.value, "bounds.composite_holds", kind)?.filter((share) => share !== null) ?? [];
  return (
    <Part
      title="What can be proved, and what is measured"
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
        How far apart the two most distant rows are that the attention of a layer writes, and how far apart they can be
        at most. The nearer the dashed line, the more the bound says. The scale is logarithmic.
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
        How different the rows are that the attention of a layer writes. The bound as printed is not true of all input,
        see <a href={linkTo("claims", "S0.17")}>S0.17</a>.{" "}
        {holds.length > 0 && Math.max(...holds) === 0
          ? "The corrected bound is not drawn: the scores of every sentence vary too much for it."
          : holds.length > 0 &&
            `The corrected bound holds for ${percent(Math.min(...holds))} of the sentences or more.`}{" "}
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
        y="entropy, nats"
      >
        How evenly heads spread their attention. At 0 one key gets everything; high is even.
      </DotFigure>
      <DotFigure
        id="depth-max"
        title="The largest weight"
        kind={kind}
        lines={[{ reading: "saturation.max_weight", name: "largest weight" }]}
        y="largest weight of a row"
      >
        The mean largest weight of a row. Near 1 a head looks at one token only; low is even attention.
      </DotFigure>
      <DotFigure
        id="depth-jacobian"
        title="What softmax lets through"
        kind={kind}
        lines={[{ reading: "saturation.jacobian", name: "Jacobian" }]}
        y="norm of the Jacobian"
      >
        How strongly the weights answer to a change of the scores. At 0 the softmax is saturated, and no gradient
        reaches queries and keys.
      </DotFigure>
      <DotFigure
        id="depth-scores"
        title="The size of the scores"
        kind={kind}
        lines={[
          { reading: "saturation.score_rms", name: "measured" },
          { reading: "saturation.score_expected", name: "if queries and keys were independent", bound: true },
        ]}
        y="root mean square"
      >
        Large scores make sharp attention. Above the dashed line queries and keys have learned to agree; on it, they are
        as random ones of their size.
      </DotFigure>
    </Part>
  );
}
