"""How alike the tokens have become, at every depth."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.core.tensors import widened
from attnworks.exam.linalg.krylov import SMALL, leading_singular_value
from attnworks.exam.linalg.spectrum import over_threads
from attnworks.exam.measure import MEASURES, Declared, Measure, Sample, Samples
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
        """With Y = X - 1 x_0^T, which is zero for equal rows (D7), all follows from Y Y^T and Y x_0."""
        real = stream.tokens.real
        X = widened(stream.X)
        first = X[:, :1]
        Y = (X - first).masked_fill_(~real.unsqueeze(-1), 0.0)
        G_Y, along = Y @ Y.mT, (Y @ first.mT).squeeze(-1)
        G = _gram(G_Y, along, first.square().sum((-2, -1)), real)
        n, tiny = real.sum(-1), torch.finfo(X.dtype).tiny
        spread = (_trace(G_Y) - G_Y.sum((-2, -1)) / n.clamp_min(1)).clamp_min(0.0)
        lengths = torch.linalg.vector_norm(X, dim=-1) * real
        size = lengths.square().sum(-1)
        samples = {
            "rank.residual": (spread / size.clamp_min(tiny)).sqrt(),
            "rank.residual_absolute": spread.sqrt(),
            "rank.stable": torch.where(size > 0, size / _largest_eigenvalue(G).clamp_min(tiny), 0.0),
            "rank.cosine": _mean_cosine(X, lengths),
            "rank.diameter": _diameter(G_Y),
        }
        return {name: Sample(values, n > 1) for name, values in samples.items()}


def _gram(
    G_Y: Float[Tensor, "b i i"], along: Float[Tensor, "b i"], square: Float[Tensor, " b"], real: Bool[Tensor, "b i"]
) -> Float[Tensor, "b i i"]:
    """X X^T = Y Y^T + (Y x_0) 1^T + 1 (Y x_0)^T + |x_0|^2 1 1^T over the real rows, zero at padding."""
    half = along + square.unsqueeze(-1) / 2
    G = (G_Y + half.unsqueeze(-1)).add_(half.unsqueeze(-2))
    return G if bool(real.all()) else G.masked_fill_(~(real.unsqueeze(-1) & real.unsqueeze(-2)), 0.0)


def _trace(G: Float[Tensor, "b i i"]) -> Float[Tensor, " b"]:
    return G.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(0.0)


def _largest_eigenvalue(G: Float[Tensor, "b i i"]) -> Float[Tensor, " b"]:
    if G.shape[-1] < SMALL:
        return over_threads(torch.linalg.eigvalsh, G)[..., -1]
    return leading_singular_value(G)


def _mean_cosine(X: Float[Tensor, "b i e"], lengths: Float[Tensor, "b i"]) -> Float[Tensor, " b"]:
    """(|sum_i u_i|^2 - n) / (n (n - 1)) for the unit rows u_i = x_i / |x_i|; a zero row has cosine 0 with all.

    A massive token next to small ones does no harm, as it would if X X^T were put together from differences of rows.
    """
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
    total = (inverse.unsqueeze(-2) @ X).squeeze(-2)
    n = (lengths > 0).sum(-1)
    return (total.square().sum(-1) - n) / (n * (n - 1)).clamp_min(1)


def _diameter(G_Y: Float[Tensor, "b i i"]) -> Float[Tensor, " b"]:
    """sqrt(max_ij |y_i|^2 + |y_j|^2 - 2 y_i . y_j) over real rows; padded rows are zero, as the first row is."""
    square = G_Y.diagonal(dim1=-2, dim2=-1)
    distances = (-2 * G_Y).add_(square.unsqueeze(-1)).add_(square.unsqueeze(-2))
    return distances.amax((-2, -1)).clamp_min(0.0).sqrt()
