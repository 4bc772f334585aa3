"""The measure `bounds`: bounds of the rank-collapse theorems for a layer, next to the measured values."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnworks.attention.heads import HeadWeights
from attnworks.attention.mask import as_four_axes
from attnworks.core.display import format_number
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.core.tensors import widened
from attnworks.exam.linalg.bounds import (
    LARGEST_ROW_RANGE,
    HeadSizes,
    bound_converges,
    composite_bound,
    diameter_bound,
    head_sizes,
    logit_row_range,
    mean_factor,
    published_bound,
    published_factor,
    row_diameter,
)
from attnworks.exam.linalg.residual import composite, residual
from attnworks.exam.measure import BY_LAYER, MEASURES, Measure, MeasureContext, ReadingSpec, Sample, Samples
from attnworks.exam.reading import Readings
from attnworks.traces.layer import LayerTrace

ALLOWED_ROUNDINGS = 16
"""A measured value may exceed its bound by this many roundings of the largest summand of the output."""


@MEASURES.register("bounds")
class Bounds(Measure):
    """diam_2(SA(X)) against sum_h ||W_h||_2 tanh(||W_QK,h||_2 scale diam_2(X)^2 / 4) diam_2(X), and composite bounds.

    Source: D5, D6; the published forms S0.17 and S1.14.
    Holds when: `bounds_refusal` returns None; other layers have no value. X is the input of the projections of queries
    and keys, after a norm that comes first. The composite bound also needs row_range <= 4.229 (D5).
    """

    name = "bounds"
    description = "how near attention comes to the bounds of the rank-collapse theorems"
    cost = "for each layer about two products of its maps' size per head; norms of weights once"

    def __init__(self, context: MeasureContext) -> None:
        super().__init__(context)
        self._sizes: dict[Slot, HeadSizes] = {}

    def declares(self) -> tuple[ReadingSpec, ...]:
        def of_layer(name: str, words: str, source: str) -> ReadingSpec:
            return ReadingSpec(f"bounds.{name}", BY_LAYER, words, source)

        return (
            of_layer("diameter", "how far apart two rows of the attention output can be at most", "D6"),
            of_layer("measured", "how far apart the two most distant rows of the attention output are", "D6"),
            of_layer("ratio", "bound over measured diameter: 1 is attained, a large bound predicts little", "D6"),
            of_layer("composite", "bound on the composite residual of the attention output, where it holds", "D5"),
            of_layer("row_range", "largest range of scores in a row, without what all rows share", "S0.31, D5"),
            of_layer("composite_holds", "share of sentences whose scores vary little enough for that bound", "D5"),
            of_layer("residual", "composite residual of the attention output from its mean row", "S0.13, S0.14"),
            of_layer("published", "bound on that residual as printed, which does not always hold", "S0.17, S1.14"),
            of_layer("published_converges", "share of sentences whose printed bound falls with depth", "S0.18, S0.36"),
        )

    def layer(self, trace: LayerTrace) -> Samples:
        if (reason := bounds_refusal(trace)) is not None:
            self.reasons.setdefault(trace.slot, reason)
            nothing = trace.Q.new_zeros(len(trace.Q), dtype=torch.float64)
            return {declared.name: Sample(nothing, nothing > 0) for declared in self.declares()}
        assert trace.X is not None and trace.weights is not None and trace.scale is not None
        W, real, scale = trace.weights, trace.queries.real, trace.scale
        if trace.slot not in self._sizes:
            self._sizes[trace.slot] = head_sizes(W.W_Q, W.W_K, W.W_V, W.W_O)
        sizes = self._sizes[trace.slot]
        X, Y, W_Q, W_K, W_O = (widened(T.detach()) for T in (trace.X, trace.Y, W.W_Q, W.W_K, W.W_O))
        output = Y.transpose(1, 2).flatten(2) @ W_O.flatten(0, 1)  # [b i h v] -> [b i hv], times [hv e]
        slack = rounding(trace, W)

        bound, measured = diameter_bound(row_diameter(X, real), sizes, scale), row_diameter(output, real).double()
        _refuse_violation(trace.slot, "diameter (D6)", measured, bound, slack)

        R = residual(X, real)
        rho, left = composite(R), composite(residual(output, real)).double()
        row_range = logit_row_range(R, W_Q, W_K, scale, real)
        holds = row_range <= LARGEST_ROW_RANGE
        repaired = composite_bound(rho, sizes, scale, mean_factor(real.sum(-1).double()))
        across = (output.shape[1] * output.shape[2]) ** 0.5
        _refuse_violation(trace.slot, "composite (D5)", left.where(holds, 0.0), repaired, across * slack)

        c = published_factor(sizes, scale)
        several = real.sum(-1) > 1
        found = {
            "diameter": bound,
            "measured": measured,
            "ratio": bound / measured,
            "composite": repaired,
            "row_range": row_range.double(),
            "composite_holds": holds.double(),
            "residual": left,
            "published": published_bound(rho, c),
            "published_converges": bound_converges(rho, c).double(),
        }
        apart = {"ratio": measured > 0, "composite": several & holds}
        return {f"bounds.{name}": Sample(value, apart.get(name, several)) for name, value in found.items()}

    def why_missing(self, name: str, slots: Sequence[Slot], readings: Readings) -> str | None:
        ranges = [readings[f"bounds.row_range@{slot.kind}"].value[slot.layer] for slot in slots]
        means = [float(value) for value in ranges if isinstance(value, Tensor) and not bool(value.isnan())]
        if len(means) < len(slots):
            return "every text has a single token, and a bound compares two rows or more"
        if name == "bounds.composite":
            shown = " to ".join(dict.fromkeys(format_number(end) for end in (min(means), max(means))))
            text = f"in every sentence the range of scores in a row is above {LARGEST_ROW_RANGE:.3f}, up to which the "
            return f"{text}bound holds (mean of the largest range in a sentence: {shown})"
        return "all rows of the attention output are the same" if name == "bounds.ratio" else None


def bounds_refusal(trace: LayerTrace) -> str | None:
    """Why the bounds do not apply to this layer; None where they do."""
    if trace.weights is None:
        return "the weights of its heads are not known"
    if trace.X is None or trace.Z is None:
        return "the inputs of its queries and keys are not known"
    if trace.scale is None:
        return _other_scores(trace)
    if trace.sink is not None:
        return "it has learned sink logits, so that the weights of the keys sum to less than one"
    if trace.softcap is not None:
        return f"its scores are capped at {trace.softcap:g}, and so are not bilinear in X"
    same_input = trace.X is trace.Z or (trace.X.shape == trace.Z.shape and torch.equal(trace.X, trace.Z))
    if trace.slot.kind == "cross" or not same_input:
        return "its queries and keys come from different sequences"
    if not trace.bilinear and trace.mask.additive() is not None:
        return "a bias for positions is added to its scores, which then depend on more than X"
    if not trace.bilinear:
        return "its queries are not linear in X, as with rotary positions or a norm of queries"
    if (trace.mask.causal and trace.Q.shape[2] > 1) or (trace.mask.dense is not None and not _rows_agree(trace)):
        return "its mask is not the same for all queries, as with causal attention"
    return None


def _other_scores(trace: LayerTrace) -> str:
    scales = trace.head_scoring.scales
    others = sum(scale is None for scale in scales)
    if not others:
        return "its heads score by different factors of Q K^T"
    which = "its weights are" if others == len(scales) else f"the weights of {others} of its {len(scales)} heads are"
    return f"{which} no softmax of scaled dot products"


def _rows_agree(trace: LayerTrace) -> bool:
    """Whether all real queries have the same row of the dense mask, at real keys.

    A bias that depends on the key alone is then the same for all queries, and cancels.
    """
    assert trace.mask.dense is not None
    dense = as_four_axes(trace.mask.dense)
    real = trace.queries.real[:, None, :, None] & trace.keys.real[:, None, None, :]  # [b 1 i j]
    first = trace.queries.real.int().argmax(-1)[:, None, None, None]
    rows = dense.expand(len(first), *dense.shape[1:])  # [b h i j], h = 1 if heads share the mask
    first_row = rows.gather(-2, first.expand(-1, rows.shape[1], 1, rows.shape[-1]))
    return not ((rows != first_row) & real).any()


def rounding(trace: LayerTrace, W: HeadWeights) -> Tensor:
    """The largest error of an output row by rounding: in the scores, in the weights, and in the sum over heads."""
    read = ((trace.Q, trace.queries), (trace.K, trace.keys), (trace.V, trace.keys))
    lengths = ((torch.linalg.vector_norm(T.double(), dim=-1), tokens.real.unsqueeze(1)) for T, tokens in read)
    Q, K, V = (length.masked_fill(~real, 0.0).amax(-1) for length, real in lengths)
    shares = trace.heads // K.shape[1]
    K, V = (T.repeat_interleave(shares, 1) for T in (K, V))
    scores = 1 + abs(trace.scale or 0.0) * Q * K
    size = (scores * V * torch.linalg.matrix_norm(W.W_O.detach().double())).sum(-1)
    return ALLOWED_ROUNDINGS * torch.finfo(trace.Y.dtype).eps * size


def _refuse_violation(slot: Slot, name: str, measured: Tensor, bound: Tensor, slack: Tensor) -> None:
    """The bound is a theorem, so a violation means that the trace or its computation is wrong. NaN is no violation."""
    over = measured > bound + slack
    if over.any():
        at = int(over.int().argmax())
        expected = f"at most {bound[at].item():.6g}, which is a theorem"
        got = f"{measured[at].item():.6g} in sentence {at} of a batch"
        remedy = "report this model: its queries, keys or values are not those of its weights"
        raise UsageError(f"the bound on the {name} of {slot}", expected, got, remedy)
