"""Every notion of rank of the residual stream that needs its whole spectrum."""

from __future__ import annotations

import torch

from attnworks.core.tensors import widened
from attnworks.exam.linalg.spectrum import effective_rank, rank_for_energy, second_ratio, singular_values
from attnworks.exam.measure import MEASURES, Declared, Measure, Sample, Samples
from attnworks.traces.layer import StreamTrace

BY_DEPTH = ("depth",)


@MEASURES.register("ranks")
class Ranks(Measure):
    """Effective and numerical rank, rank for 90 % of the energy, and s2 / s1 of X, from exact singular values.

    Source: the rank post (S1.2, S1.10); Roy and Vetterli 2007 for the effective rank.
    Equal rows read as effective and numerical rank 1 and s2 / s1 = 0.
    """

    name = "ranks"
    words = "effective and numerical rank, rank for 90 % of the energy, and s2 / s1 at every depth"
    cost = "the singular values of every sentence at every depth, about a quarter of a forward pass"

    def declares(self) -> tuple[Declared, ...]:
        return (
            Declared(
                "ranks.effective", BY_DEPTH, "exp of the entropy of the singular values; 1: one direction", "S1.10"
            ),
            Declared("ranks.numerical", BY_DEPTH, "singular values above rounding", "S1.2"),
            Declared("ranks.energy90", BY_DEPTH, "fewest directions with 90 % of the energy", "S1.10"),
            Declared("ranks.second_ratio", BY_DEPTH, "s2 / s1; 0: one direction carries everything", "S1.10"),
        )

    def stream(self, stream: StreamTrace) -> Samples:
        real = stream.tokens.real
        X = widened(stream.X) * real.unsqueeze(-1)
        s = singular_values(X)
        n = real.sum(-1)
        tol = torch.maximum(n, torch.full_like(n, X.shape[-1])).unsqueeze(-1) * torch.finfo(X.dtype).eps
        named = {
            "ranks.effective": effective_rank(s),
            "ranks.numerical": (s > tol * s[..., :1]).sum(-1).to(s.dtype),
            "ranks.energy90": rank_for_energy(s).to(s.dtype),
            "ranks.second_ratio": second_ratio(s),
        }
        return {name: Sample(values, n > 1) for name, values in named.items()}
