"""How near attention rows are to unit vectors, where softmax passes no gradient."""

from __future__ import annotations

import torch

from attnworks.measures.contract import MEASURES, Declared, Measure, Sample, Samples
from attnworks.traces.layer import LayerTrace
from attnworks.traces.rows import LayerRows

BY_HEAD = ("layer", "head")


@MEASURES.register("saturation")
class Saturation(Measure):
    """Mean over the rows of a sentence of entropy, largest weight, range of scores and ||diag(p) - p p^T||_F.

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
                "saturation.score_growth",
                BY_HEAD,
                "that, over scale sqrt(k) rms(q) rms(k): 1 if entries of q and k are independent, sqrt(k) if aligned",
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
        return {name: Sample(*rows.mean(values)) for name, values in named.items()}

    def layer(self, trace: LayerTrace) -> Samples:
        """mean_ij (q_i . k_j)^2 = <Q^T Q, K^T K> / (i j), without forming the scores."""
        if trace.scale is None:
            return {}
        k = trace.Q.shape[-1]
        Q, K = trace.Q * trace.queries.real[:, None, :, None], trace.K * trace.keys.real[:, None, :, None]
        G_K = trace.shared(K.mT @ K, slice(None))
        G_Q = Q.mT @ Q
        pairs = (trace.queries.lengths * trace.keys.lengths)[:, None]
        product = (G_Q * G_K).sum((-2, -1)) / pairs
        independent = G_Q.diagonal(dim1=-2, dim2=-1).sum(-1) * G_K.diagonal(dim1=-2, dim2=-1).sum(-1) / (pairs * k)
        growth = (product / independent.clamp_min(torch.finfo(product.dtype).tiny)).sqrt()
        return {
            "saturation.score_rms": Sample(abs(trace.scale) * product.sqrt()),
            "saturation.score_growth": Sample(growth, independent > 0),
        }
