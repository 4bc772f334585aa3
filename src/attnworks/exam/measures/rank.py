"""The measures `rank`, `ranks` and `residuals`: how alike the tokens are at every depth."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.core.places import Slot
from attnworks.core.tensors import widened
from attnworks.exam.linalg.krylov import SMALL_MATRIX, leading_singular_value
from attnworks.exam.linalg.residual import NORMS, residual_norm
from attnworks.exam.linalg.spectrum import effective_rank, over_threads, rank_for_energy, second_ratio, singular_values
from attnworks.exam.measure import BY_DEPTH, MEASURES, Measure, ReadingSpec, Sample, Samples, sampled_sentences
from attnworks.exam.reading import Readings
from attnworks.traces.layer import StreamTrace

BY_LINEAR_PROGRAM = ("inf", "composite")
LINEAR_PROGRAM_ONE_IN = 16
"""Linear programs are solved for one sentence in LINEAR_PROGRAM_ONE_IN."""
MINIMISER_NAMES = {
    "frobenius": "mean row",
    "spectral": "mean row",
    "one": "column medians",
    "max": "column midranges",
    "inf": "linear program",
    "composite": "linear programs",
}


@MEASURES.register("rank")
class Rank(Measure):
    """Residual to equal rows, stable rank, mean cosine and diameter of the residual stream, from X X^T alone.

    Source: Xie 2021, section 2 (S0.14, S0.15); the rank post (S1.10: a residual is no rank, so both are given); D4, D7.
    Sentences of one token are left out. Equal rows have residual 0, stable rank 1, cosine 1, diameter 0.
    """

    name = "rank"
    description = "how alike tokens are after every layer: residual, stable rank, cosine, diameter"
    cost = "one small matrix product per layer"
    default = True

    def declares(self) -> tuple[ReadingSpec, ...]:
        return (
            ReadingSpec("rank.residual", BY_DEPTH, "distance to equal rows over size; 0: equal tokens", "S0.14, S0.15"),
            ReadingSpec("rank.residual_absolute", BY_DEPTH, "Frobenius distance to equal rows", "S0.14"),
            ReadingSpec("rank.stable", BY_DEPTH, "||X||_F^2 / s1^2; 1: one direction carries everything", "S1.10"),
            ReadingSpec("rank.cosine", BY_DEPTH, "mean cosine between tokens; 1: all point the same way", "S0.15"),
            ReadingSpec("rank.diameter", BY_DEPTH, "largest distance between two tokens", "D6"),
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
        trace = G_Y.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(0.0)
        spread = (trace - G_Y.sum((-2, -1)) / n.clamp_min(1)).clamp_min(0.0)
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


def _largest_eigenvalue(G: Float[Tensor, "b i i"]) -> Float[Tensor, " b"]:
    if G.shape[-1] < SMALL_MATRIX:
        return over_threads(torch.linalg.eigvalsh, G)[..., -1]
    return leading_singular_value(G)


def _mean_cosine(X: Float[Tensor, "b i e"], lengths: Float[Tensor, "b i"]) -> Float[Tensor, " b"]:
    """(|sum_i u_i|^2 - n) / (n (n - 1)) for the unit rows u_i = x_i / |x_i|; a zero row has cosine 0 with all.

    Unlike a sum over X X^T built from differences of rows, it stays exact if one token is much larger than the others.
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


@MEASURES.register("ranks")
class Ranks(Measure):
    """Effective and numerical rank, rank for 90 % of the energy, and s2 / s1 of X, from exact singular values.

    Source: the rank post (S1.2, S1.10); Roy and Vetterli 2007 for the effective rank.
    Equal rows have effective and numerical rank 1, and s2 / s1 = 0.
    """

    name = "ranks"
    description = "effective and numerical rank, rank for 90 % of the energy, and s2 / s1 at every depth"
    cost = "the singular values of every sentence at every depth, about a quarter of a forward pass"

    def declares(self) -> tuple[ReadingSpec, ...]:
        return (
            ReadingSpec("ranks.effective", BY_DEPTH, "exp(entropy) of the singular values; 1: one direction", "S1.10"),
            ReadingSpec("ranks.numerical", BY_DEPTH, "singular values above rounding", "S1.2"),
            ReadingSpec("ranks.energy90", BY_DEPTH, "fewest directions with 90 % of the energy", "S1.10"),
            ReadingSpec("ranks.second_ratio", BY_DEPTH, "s2 / s1; 0: one direction carries everything", "S1.10"),
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


@MEASURES.register("residuals")
class Residuals(Measure):
    """min_x ||X - 1 x^T||, absolute and over ||X||, in six norms.

    Source: Xie 2021, section 2 (S0.13, S0.14); the rank post (S1.11); D4.
    """

    name = "residuals"
    description = "distance to equal rows in six norms, each with its exact minimiser"
    cost = f"a linear program per depth for one sentence in {LINEAR_PROGRAM_ONE_IN}: seconds for each"

    def declares(self) -> tuple[ReadingSpec, ...]:
        def spec(norm: str, suffix: str, words: str) -> ReadingSpec:
            text = f"{norm} distance to equal rows {words}; minimiser: {MINIMISER_NAMES[norm]}"
            return ReadingSpec(f"residuals.{norm}{suffix}", BY_DEPTH, text, "S0.14, D4")

        scales = (("", "over size; 0: all tokens the same"), ("_absolute", "as it is"))
        return tuple(spec(norm, suffix, words) for norm in NORMS for suffix, words in scales)

    def why_missing(self, name: str, slots: Sequence[Slot], readings: Readings) -> str | None:
        if name.removeprefix("residuals.").removesuffix("_absolute") not in BY_LINEAR_PROGRAM:
            return None
        return f"they are measured for one sentence in {LINEAR_PROGRAM_ONE_IN}, and none was drawn; give more text"

    def stream(self, stream: StreamTrace) -> Samples:
        real = stream.tokens.real
        several = real.sum(-1) > 1
        X = stream.X.double()
        samples: dict[str, Sample] = {}
        for norm in NORMS:
            chosen = several
            if norm in BY_LINEAR_PROGRAM:
                chosen = several & sampled_sentences(stream.tokens, LINEAR_PROGRAM_ONE_IN, self.context.seed)
            values, size = torch.zeros(2, len(X), dtype=X.dtype, device=X.device)
            if chosen.any():
                values[chosen] = residual_norm(X[chosen], norm, real[chosen])
                size[chosen] = NORMS[norm](X[chosen] * real[chosen].unsqueeze(-1))
            relative = values / size.clamp_min(torch.finfo(X.dtype).tiny)
            samples[f"residuals.{norm}"] = Sample(relative, chosen)
            samples[f"residuals.{norm}_absolute"] = Sample(values, chosen)
        return samples
