"""How near attention rows are to unit vectors, where softmax passes no gradient."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.measures.contract import MEASURES, Declared, Measure, Sample, Samples
from attnworks.traces.layer import LayerTrace
from attnworks.traces.rows import LayerRows

BY_HEAD = ("layer", "head")


@MEASURES.register("saturation")
class Saturation(Measure):
    """Mean over the rows of a sentence of entropy, largest weight, range of scores and ||diag(p) - p p^T||_F.

    Where a head has a learned sink logit, p is the whole softmax with the sink as one more entry. The largest weight
    and the range of scores are those of keys.

    Source: Conti 2024, section 1.2.3 (S4.46-S4.50); Xie 2021, lemma A.3 (S0.34).
    """

    name = "saturation"
    words = "entropy, largest weight, score range and Jacobian norm of attention rows"
    cost = "part of the one walk over the attention maps"
    default = True

    def declares(self) -> tuple[Declared, ...]:
        return (
            Declared("saturation.entropy", BY_HEAD, "nats; 0: one key gets everything", "S4.46"),
            Declared("saturation.max_weight", BY_HEAD, "mean largest weight of a row", "S4.48"),
            Declared(
                "saturation.jacobian", BY_HEAD, "mean Frobenius norm of the softmax Jacobian; 0: no gradient", "S4.47"
            ),
            Declared(
                "saturation.score_range", BY_HEAD, "largest minus smallest score of a row, before softmax", "S0.34"
            ),
            Declared("saturation.score_rms", BY_HEAD, "root mean square of the scores before any mask", "S4.50"),
            Declared(
                "saturation.score_expected",
                BY_HEAD,
                "scale sqrt(k) rms(q) rms(k): what score_rms would be if entries of q and k were independent",
                "S4.50",
            ),
        )

    def rows(self, rows: LayerRows) -> Samples:
        named = {
            "saturation.entropy": rows.entropy,
            "saturation.max_weight": rows.max_weight,
            "saturation.jacobian": rows.jacobian_norm,
            "saturation.score_range": rows.score_range,
        }
        samples = {name: Sample(*rows.mean(values)) for name, values in named.items()}
        if rows.score_norm.any():
            square, counted = rows.mean(rows.score_norm.square())
            samples["saturation.score_rms"] = Sample((square / rows.keys.lengths[:, None].clamp_min(1)).sqrt(), counted)
        return samples

    def layer(self, trace: LayerTrace) -> Samples:
        """scale sqrt(k) rms(q) rms(k), over the entries of the real queries and keys of a sentence."""
        if trace.scale is None:
            return {}
        q = _rms(trace.Q, trace.queries.real)
        key = trace.shared(_rms(trace.K, trace.keys.real)[..., None, None], slice(None))[..., 0, 0]
        padded, widths = trace.Q.shape[-1], None if trace.weights is None else trace.weights.key_widths
        k = q.new_tensor([padded] * trace.heads if widths is None else [max(width, 1) for width in widths])
        return {"saturation.score_expected": Sample(abs(trace.scale) * padded / k.sqrt() * q * key)}


def _rms(Q: Float[Tensor, "b h i k"], real: Bool[Tensor, "b i"]) -> Float[Tensor, "b h"]:
    wide = torch.promote_types(Q.dtype, torch.float32)
    square = torch.linalg.vector_norm(Q, dim=-1, dtype=wide).square() * real.unsqueeze(1)
    return (square.sum(-1) / (real.sum(-1, keepdim=True).clamp_min(1) * Q.shape[-1])).sqrt()
