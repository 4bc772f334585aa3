"""The measure `saturation`: how near attention rows are to unit vectors, where softmax passes no gradient."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.attention.heads import Scoring
from attnworks.core.places import Slot
from attnworks.exam.measure import BY_HEAD, MEASURES, Measure, ReadingSpec, Sample, Samples
from attnworks.exam.reading import Readings
from attnworks.traces.layer import LayerTrace
from attnworks.traces.rows import LayerRows


@MEASURES.register("saturation")
class Saturation(Measure):
    """Mean over the rows of a sentence of entropy, largest weight, range of scores and ||diag(p) - p p^T||_F.

    The range of scores is for heads whose weights are a softmax; the two other readings of scores are for heads that
    score by a factor of Q K^T. Other heads of the layer have no value.
    Where a head has a learned sink logit, p is the whole softmax with the sink as one more entry. The largest weight
    and the range of scores are those of keys.

    Source: Conti 2024, section 1.2.3 (S4.46-S4.50); Xie 2021, lemma A.3 (S0.34).
    """

    name = "saturation"
    description = "entropy, largest weight, score range and Jacobian norm of attention rows"
    cost = "part of the one pass over the attention maps"
    default = True

    def declares(self) -> tuple[ReadingSpec, ...]:
        expected = "scale sqrt(k) rms(q) rms(k): what score_rms would be if entries of q and k were independent"
        return (
            ReadingSpec("saturation.entropy", BY_HEAD, "nats; 0: one key gets everything", "S4.46"),
            ReadingSpec("saturation.max_weight", BY_HEAD, "mean largest weight of a row", "S4.48"),
            ReadingSpec("saturation.jacobian", BY_HEAD, "mean norm of the softmax Jacobian; 0: no gradient", "S4.47"),
            ReadingSpec("saturation.score_range", BY_HEAD, "largest minus smallest score of a row", "S0.34"),
            ReadingSpec("saturation.score_rms", BY_HEAD, "root mean square of the scores before any mask", "S4.50"),
            ReadingSpec("saturation.score_expected", BY_HEAD, expected, "S4.50"),
        )

    def rows(self, rows: LayerRows) -> Samples:
        named = {
            "saturation.entropy": rows.entropy,
            "saturation.max_weight": rows.max_weight,
            "saturation.jacobian": rows.jacobian_norm,
        }
        samples = {name: Sample(*rows.mean(values)) for name, values in named.items()}
        if any(rows.scoring.softmax):
            ranges, counted = rows.mean(rows.score_range)
            samples["saturation.score_range"] = Sample(ranges, counted & ranges.new_tensor(rows.scoring.softmax).bool())
        if any(by_product := _by_product(rows.scoring)):
            square, counted = rows.mean(rows.score_norm.square())
            rms = (square / rows.keys.lengths[:, None].clamp_min(1)).sqrt()
            samples["saturation.score_rms"] = Sample(rms, counted & rms.new_tensor(by_product).bool())
        return samples

    def why_missing(self, name: str, slots: Sequence[Slot], readings: Readings) -> str | None:
        if name == "saturation.score_range":
            return "its heads have no scores, because their weights are not a softmax"
        return "its heads do not score by a factor of Q K^T" if "score" in name else None

    def layer(self, trace: LayerTrace) -> Samples:
        """scale sqrt(k) rms(q) rms(k), over the entries of the real queries and keys of a sentence."""
        scoring = trace.head_scoring
        if not any(by_product := _by_product(scoring)):
            return {}
        q = _rms(trace.Q, trace.queries.real)
        key = trace.shared(_rms(trace.K, trace.keys.real)[..., None, None], slice(None))[..., 0, 0]
        padded, widths = trace.Q.shape[-1], None if trace.weights is None else trace.weights.key_widths
        k = q.new_tensor([padded] * trace.heads if widths is None else [max(width, 1) for width in widths])
        scale = q.new_tensor([abs(scale or 0.0) for scale in scoring.scales])
        expected = scale * padded / k.sqrt() * q * key
        return {"saturation.score_expected": Sample(expected, q.new_tensor(by_product).bool().expand_as(expected))}


def _by_product(scoring: Scoring) -> list[bool]:
    """Which heads score by a factor of Q K^T."""
    return [scale is not None for scale in scoring.scales]


def _rms(Q: Float[Tensor, "b h i k"], real: Bool[Tensor, "b i"]) -> Float[Tensor, "b h"]:
    wide = torch.promote_types(Q.dtype, torch.float32)
    square = torch.linalg.vector_norm(Q, dim=-1, dtype=wide).square() * real.unsqueeze(1)
    return (square.sum(-1) / (real.sum(-1, keepdim=True).clamp_min(1) * Q.shape[-1])).sqrt()
