"""How alike the tokens have become, at every depth."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.linalg.krylov import SMALL, leading_singular_value
from attnworks.linalg.spectrum import over_threads
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
        G, C = gram_matrices(stream.X.float() if stream.X.dtype.itemsize < 4 else stream.X, real)
        spread, size = _trace(C), _trace(G)
        tiny = torch.finfo(G.dtype).tiny
        samples = {
            "rank.residual": (spread / size.clamp_min(tiny)).sqrt(),
            "rank.residual_absolute": spread.sqrt(),
            "rank.stable": torch.where(size > 0, size / _largest_eigenvalue(G).clamp_min(tiny), 0.0),
            "rank.cosine": _mean_cosine(G, real),
            "rank.diameter": _diameter(C, real),
        }
        return {name: Sample(values, real.sum(-1) > 1) for name, values in samples.items()}


def gram_matrices(
    X: Float[Tensor, "b i e"], real: Bool[Tensor, "b i"]
) -> tuple[Float[Tensor, "b i i"], Float[Tensor, "b i i"]]:
    """X X^T and R R^T for the residual R = X - 1 mean, both zero at padding, from one matrix product.

    With Y = X - 1 x_0^T, zero for equal rows (D7): X X^T = Y Y^T + (Y x_0) 1^T + 1 (Y x_0)^T + |x_0|^2 1 1^T, and
    R R^T is Y Y^T without the means of its rows and columns.
    """
    x = X[:, :1]
    Y = X - x
    both = real.unsqueeze(-1) & real.unsqueeze(-2)
    G_Y = torch.where(both, Y @ Y.mT, 0.0)
    along = Y @ x.mT
    G = torch.where(both, G_Y + along + along.mT + x.square().sum(-1, keepdim=True), 0.0)
    n = real.sum(-1)[:, None, None].clamp_min(1)
    row = G_Y.sum(-1, keepdim=True) / n
    C = torch.where(both, G_Y - row - row.mT + row.sum(-2, keepdim=True) / n, 0.0)
    return G, C


def _trace(G: Float[Tensor, "b i i"]) -> Float[Tensor, " b"]:
    return G.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(0.0)


def _largest_eigenvalue(G: Float[Tensor, "b i i"]) -> Float[Tensor, " b"]:
    if G.shape[-1] < SMALL:
        return over_threads(torch.linalg.eigvalsh, G)[..., -1]
    return leading_singular_value(G)


def _mean_cosine(G: Float[Tensor, "b i i"], real: Bool[Tensor, "b i"]) -> Float[Tensor, " b"]:
    """mean over i != j of G_ij / sqrt(G_ii G_jj); a zero row has cosine 0 with all."""
    length = G.diagonal(dim1=-2, dim2=-1).clamp_min(0.0).sqrt()
    inverse = torch.where(length > 0, 1 / length, 0.0)
    cosines = G * inverse.unsqueeze(-1) * inverse.unsqueeze(-2)
    n = real.sum(-1)
    return (cosines.sum((-2, -1)) - _trace(cosines)) / (n * (n - 1)).clamp_min(1)


def _diameter(C: Float[Tensor, "b i i"], real: Bool[Tensor, "b i"]) -> Float[Tensor, " b"]:
    """sqrt(max_ij C_ii + C_jj - 2 C_ij) over real rows, from the Gram matrix of centred rows."""
    square = C.diagonal(dim1=-2, dim2=-1)
    distances = square.unsqueeze(-1) + square.unsqueeze(-2) - 2 * C
    return distances.masked_fill(~(real.unsqueeze(-1) & real.unsqueeze(-2)), 0.0).amax((-2, -1)).clamp_min(0.0).sqrt()
