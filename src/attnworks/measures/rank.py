"""How alike the tokens have become, at every depth."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.linalg.krylov import leading_singular_value
from attnworks.linalg.residual import residual
from attnworks.measures.contract import MEASURES, Declared, Measure, Sample, Samples
from attnworks.traces.layer import StreamTrace

BY_DEPTH = ("depth",)


@MEASURES.register("rank")
class Rank(Measure):
    """Residual to equal rows, stable rank, mean cosine and diameter of the residual stream, from X X^T alone.

    Source: Xie 2021, section 2 (S0.14, S0.15); the rank post (S1.10: a residual is no rank, so both are given); D4, D7.
    Sentences of one token say nothing. Equal rows read as residual 0, stable rank 1, cosine 1, diameter 0.
    """

    name = "rank"
    words = "how alike tokens are after every layer: residual, stable rank, cosine, diameter"
    cost = "one small matrix product per layer"
    default = True

    def declares(self) -> tuple[Declared, ...]:
        return (
            Declared(
                "rank.residual", BY_DEPTH, "distance to equal rows over size; 0: all tokens the same", "S0.14, S0.15"
            ),
            Declared("rank.residual_absolute", BY_DEPTH, "Frobenius distance to equal rows", "S0.14"),
            Declared("rank.stable", BY_DEPTH, "||X||_F^2 / s1^2; 1: one direction carries everything", "S1.10"),
            Declared("rank.cosine", BY_DEPTH, "mean cosine between tokens; 1: all point the same way", "S0.15"),
            Declared("rank.diameter", BY_DEPTH, "largest distance between two tokens", "D6"),
        )

    def stream(self, stream: StreamTrace) -> Samples:
        real = stream.tokens.real
        n = real.sum(-1)
        X = stream.X.float() if stream.X.dtype.itemsize < 4 else stream.X
        X = X * real.unsqueeze(-1)
        R = residual(X, real)
        C, G = R @ R.mT, X @ X.mT
        spread, size = _trace(C), _trace(G)
        top = leading_singular_value(G)
        tiny = torch.finfo(X.dtype).tiny
        several = n > 1
        samples = {
            "rank.residual": (spread / size.clamp_min(tiny)).sqrt(),
            "rank.residual_absolute": spread.sqrt(),
            "rank.stable": torch.where(size > 0, size / top.clamp_min(tiny), 0.0),
            "rank.cosine": _mean_cosine(X, real),
            "rank.diameter": _diameter(C, real),
        }
        return {name: Sample(values, several) for name, values in samples.items()}


def _trace(G: Float[Tensor, "b i i"]) -> Float[Tensor, " b"]:
    return G.diagonal(dim1=-2, dim2=-1).sum(-1)


def _mean_cosine(X: Float[Tensor, "b i e"], real: Bool[Tensor, "b i"]) -> Float[Tensor, " b"]:
    """sum_{i != j} u_i . u_j / (n (n - 1)) = (||sum_i u_i||^2 - n) / (n (n - 1)) for unit rows u_i, 0 for zero rows."""
    U = X / X.norm(dim=-1, keepdim=True).clamp_min(torch.finfo(X.dtype).tiny)
    n = real.sum(-1)
    itself = U.square().sum((-2, -1))
    return (U.sum(-2).square().sum(-1) - itself) / (n * (n - 1)).clamp_min(1)


def _diameter(C: Float[Tensor, "b i i"], real: Bool[Tensor, "b i"]) -> Float[Tensor, " b"]:
    """sqrt(max_ij C_ii + C_jj - 2 C_ij) over real rows, from the Gram matrix of centred rows."""
    square = C.diagonal(dim1=-2, dim2=-1)
    distances = square.unsqueeze(-1) + square.unsqueeze(-2) - 2 * C
    return distances.masked_fill(~(real.unsqueeze(-1) & real.unsqueeze(-2)), 0.0).amax((-2, -1)).clamp_min(0.0).sqrt()
