"""The measures `rank`, `ranks` and `residuals`: how alike the tokens are at every depth."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.core.places import Slot
from attnworks.core.tensors import widened
from attnworks.exam.linalg.krylov import SMALL_MATRIX, leading_singular_value
from attnworks.exam.linalg.outliers import (
    OUTLYING_ACTIVATION,
    channels_of_largest,
    largest_activation,
    outlying_tokens,
    token_norms,
)
from attnworks.exam.linalg.residual import NORMS, residual_norm
from attnworks.exam.linalg.spectrum import effective_rank, over_threads, rank_for_energy, second_ratio, singular_values
from attnworks.exam.measure import BY_DEPTH, MEASURES, Measure, ReadingSpec, Sample, Samples, sampled_sentences
from attnworks.exam.reading import WITHOUT_OUTLIERS, Readings
from attnworks.text.tokens import Tokens
from attnworks.traces.layer import StreamTrace

SUN = "Sun et al. 2024 (massive activations)"
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


def with_and_without(*readings: tuple[str, str, str]) -> tuple[ReadingSpec, ...]:
    """Readings by depth (name, description, source), each for all tokens and without the outlying ones."""
    return tuple(
        ReadingSpec(name + end, BY_DEPTH, description + words, source)
        for end, words in (("", ""), (WITHOUT_OUTLIERS, "; without outlying tokens"))
        for name, description, source in readings
    )


@MEASURES.register("rank")
class Rank(Measure):
    """Residual to equal rows, stable rank, mean cosine and diameter of the residual stream, from X X^T alone.

    Each is given for all tokens and without outlying ones (`outlying_tokens`): one token with t times the norm of n
    others has t^2 / (t^2 + n) of the squared norm, so that the first number may describe this token alone. In a
    sentence without outlying tokens the two numbers are the same.

    largest_norm         max_i |x_i| / median_i |x_i|
    outliers             the number of outlying tokens
    outliers_first       the share of them that are the first token
    outliers_delimiter   the share of them that are special tokens after the first
    outliers_activation  max_ie |x_ie| / median_ie |x_ie|, in sentences with outlying tokens
    outliers_channels    the number of channels with 90 % of the squared norm of the largest outlying token

    Source: Xie 2021, section 2 (S0.14, S0.15); the rank post (S1.10: a residual is no rank, so both are given); D4, D7;
    Sun et al. 2024 for outlying tokens.
    Sentences of one token are left out. Equal rows have residual 0, stable rank 1, cosine 1, diameter 0.
    """

    name = "rank"
    description = "how alike tokens are after every layer: residual, stable rank, cosine, diameter; outlying tokens"
    cost = "one small matrix product per layer"
    default = True

    def declares(self) -> tuple[ReadingSpec, ...]:
        limit = f"an activation above {OUTLYING_ACTIVATION:g} times the median norm of the tokens"
        of_outliers = {
            "largest_norm": "largest norm of a token over the median norm; 1: all norms are equal",
            "outliers": f"number of outlying tokens, which have {limit}",
            "outliers_first": "share of the outlying tokens that are the first token",
            "outliers_delimiter": "share of the outlying tokens that are special tokens after the first",
            "outliers_activation": "largest activation over the median magnitude, in sentences with outlying tokens",
            "outliers_channels": "channels with 90 % of the squared norm of the largest outlying token",
        }
        return (
            *with_and_without(
                ("rank.residual", "distance to equal rows over size; 0: equal tokens", "S0.14, S0.15"),
                ("rank.residual_absolute", "Frobenius distance to equal rows", "S0.14"),
                ("rank.stable", "||X||_F^2 / s1^2; 1: one direction carries everything", "S1.10"),
                ("rank.cosine", "mean cosine between tokens; 1: all point the same way", "S0.15"),
                ("rank.diameter", "largest distance between two tokens", "D6"),
            ),
            *(ReadingSpec(f"rank.{name}", BY_DEPTH, words, SUN) for name, words in of_outliers.items()),
        )

    def stream(self, stream: StreamTrace) -> Samples:
        """With Y = X - 1 x_m^T, which is zero for equal rows (D7), all follows from Y Y^T and Y x_m.

        x_m is a token of median norm, and so never an outlying one. Differences from it are exact to the digits of the
        other tokens, and Y Y^T of the other tokens alone is part of Y Y^T of all.
        """
        real = stream.tokens.real
        X = widened(stream.X)
        known = token_norms(X, real)
        middle = X[torch.arange(len(X), device=X.device), known.median_at].unsqueeze(1)
        Y = (X - middle).masked_fill_(~real.unsqueeze(-1), 0.0)
        G_Y, along, square = Y @ Y.mT, (Y @ middle.mT).squeeze(-1), middle.square().sum((-2, -1))
        values = _likeness(X, G_Y, along, square, known.norms, real)
        outlying = outlying_tokens(X, known)
        kept = real & ~outlying
        without, some = values, outlying.any(-1)
        if bool(some.any()):
            left = kept[some]
            G_Y = G_Y[some].masked_fill_(~_pairs(left), 0.0)
            rest = _likeness(X[some], G_Y, along[some], square[some], known.norms[some] * left, left)
            without = {name: values[name].masked_scatter(some, part) for name, part in rest.items()}
        of_all, of_kept = real.sum(-1) > 1, kept.sum(-1) > 1
        return {
            **{f"rank.{name}": Sample(found, of_all) for name, found in values.items()},
            **{f"rank.{name}{WITHOUT_OUTLIERS}": Sample(found, of_kept) for name, found in without.items()},
            "rank.largest_norm": Sample(known.largest_over_median, of_all & (known.median > 0)),
            "rank.outliers": Sample(outlying.sum(-1).to(X.dtype), of_all),
            **_about_outliers(X, stream.tokens, known.norms, outlying, some),
        }

    def why_missing(self, name: str, slots: Sequence[Slot], readings: Readings) -> str | None:
        return "" if name.startswith("rank.outliers_") else None


def _about_outliers(X: Tensor, tokens: Tokens, norms: Tensor, outlying: Tensor, some: Tensor) -> Samples:
    """Where outlying tokens are and how large, in the sentences that have `some`; no number in the others."""
    found = X.new_zeros(4, len(X), dtype=torch.float64)
    if bool(some.any()):
        at, rows, real = outlying[some], X[some], tokens.real[some]
        number = at.sum(-1)
        special = torch.zeros_like(at) if tokens.special is None else tokens.special[some] & at
        channels = channels_of_largest(rows, norms[some] * at)
        shares = (at[:, 0] / number, special[:, 1:].sum(-1) / number)
        found[:, some] = torch.stack([part.double() for part in (*shares, largest_activation(rows, real), channels)])
    names = ("first", "delimiter", "activation", "channels")
    return {
        f"rank.outliers_{name}": Sample(values, some & (values > 0) if name == "activation" else some)
        for name, values in zip(names, found, strict=True)
    }


def _likeness(
    X: Float[Tensor, "b i e"],
    G_Y: Float[Tensor, "b i i"],
    along: Float[Tensor, "b i"],
    square: Float[Tensor, " b"],
    norms: Float[Tensor, "b i"],
    counted: Bool[Tensor, "b i"],
) -> dict[str, Float[Tensor, " b"]]:
    """Residual, stable rank, cosine and diameter of the `counted` tokens; `G_Y` and `norms` are zero at others."""
    G = _gram(G_Y, along, square, counted)
    n, tiny = counted.sum(-1), torch.finfo(X.dtype).tiny
    trace = G_Y.diagonal(dim1=-2, dim2=-1).sum(-1).clamp_min(0.0)
    spread = (trace - G_Y.sum((-2, -1)) / n.clamp_min(1)).clamp_min(0.0)
    size = norms.square().sum(-1)
    return {
        "residual": (spread / size.clamp_min(tiny)).sqrt(),
        "residual_absolute": spread.sqrt(),
        "stable": torch.where(size > 0, size / _largest_eigenvalue(G).clamp_min(tiny), 0.0),
        "cosine": _mean_cosine(X, norms),
        "diameter": _diameter(G_Y),
    }


def _pairs(counted: Bool[Tensor, "b i"]) -> Bool[Tensor, "b i i"]:
    return counted.unsqueeze(-1) & counted.unsqueeze(-2)


def _gram(
    G_Y: Float[Tensor, "b i i"], along: Float[Tensor, "b i"], square: Float[Tensor, " b"], counted: Bool[Tensor, "b i"]
) -> Float[Tensor, "b i i"]:
    """X X^T = Y Y^T + (Y x_m) 1^T + 1 (Y x_m)^T + |x_m|^2 1 1^T over the counted rows, zero elsewhere."""
    half = along + square.unsqueeze(-1) / 2
    G = (G_Y + half.unsqueeze(-1)).add_(half.unsqueeze(-2))
    return G if bool(counted.all()) else G.masked_fill_(~_pairs(counted), 0.0)


def _largest_eigenvalue(G: Float[Tensor, "b i i"]) -> Float[Tensor, " b"]:
    if G.shape[-1] < SMALL_MATRIX:
        return over_threads(torch.linalg.eigvalsh, G)[..., -1]
    return leading_singular_value(G)


def _mean_cosine(X: Float[Tensor, "b i e"], lengths: Float[Tensor, "b i"]) -> Float[Tensor, " b"]:
    """(|sum_i u_i|^2 - n) / (n (n - 1)) for the unit rows u_i = x_i / |x_i|; zero rows are left out.

    Unlike a sum over X X^T built from differences of rows, it stays exact if one token is much larger than the others.
    """
    inverse = torch.where(lengths > 0, 1 / lengths, 0.0)
    total = (inverse.unsqueeze(-2) @ X).squeeze(-2)
    n = (lengths > 0).sum(-1)
    return (total.square().sum(-1) - n) / (n * (n - 1)).clamp_min(1)


def _diameter(G_Y: Float[Tensor, "b i i"]) -> Float[Tensor, " b"]:
    """sqrt(max_ij |y_i|^2 + |y_j|^2 - 2 y_i . y_j) over counted rows; the others are zero, as the row of x_m is."""
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
    cost = (
        "the singular values of every sentence at every depth, about a quarter of a forward pass; twice with outliers"
    )

    def declares(self) -> tuple[ReadingSpec, ...]:
        return with_and_without(
            ("ranks.effective", "exp(entropy) of the singular values; 1: one direction", "S1.10"),
            ("ranks.numerical", "singular values above rounding", "S1.2"),
            ("ranks.energy90", "fewest directions with 90 % of the energy", "S1.10"),
            ("ranks.second_ratio", "s2 / s1; 0: one direction carries everything", "S1.10"),
        )

    def stream(self, stream: StreamTrace) -> Samples:
        real = stream.tokens.real
        X = widened(stream.X) * real.unsqueeze(-1)
        outlying = outlying_tokens(X, token_norms(X, real))
        kept, some = real & ~outlying, outlying.any(-1)
        values = _ranks(X, real)
        without = values
        if bool(some.any()):
            rest = _ranks(X[some] * kept[some].unsqueeze(-1), kept[some])
            without = {name: values[name].masked_scatter(some, part) for name, part in rest.items()}
        return {
            **{f"ranks.{name}": Sample(found, real.sum(-1) > 1) for name, found in values.items()},
            **{f"ranks.{name}{WITHOUT_OUTLIERS}": Sample(found, kept.sum(-1) > 1) for name, found in without.items()},
        }


def _ranks(X: Float[Tensor, "b i e"], counted: Bool[Tensor, "b i"]) -> dict[str, Float[Tensor, " b"]]:
    """Of matrices that are zero in all rows that are not counted."""
    s, n = singular_values(X), counted.sum(-1)
    tol = torch.maximum(n, torch.full_like(n, X.shape[-1])).unsqueeze(-1) * torch.finfo(X.dtype).eps
    return {
        "effective": effective_rank(s),
        "numerical": (s > tol * s[..., :1]).sum(-1).to(s.dtype),
        "energy90": rank_for_energy(s).to(s.dtype),
        "second_ratio": second_ratio(s),
    }


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
