"""One head that asks for two keys at once, and two heads that ask for one each, when a key varies in length.

Source: CS224N, attention exploration, (b) to (d) (S2.8-S2.20), with the closed forms of D9.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.models.config import whole, within
from attnworks.theory.experiments.figures import (  # fmt: skip
    BLUE,
    BOUND,
    GREEN,
    GREY,
    ORANGE,
    name_right,
    note,
    panels,
    plain_ticks,
    save,
    title,
)
from attnworks.theory.retrieval import (
    one_head_variance_among,
    one_key_weight,
    simulate_retrieval,
    squashed,
    stretched_covariances,
    two_head_failure,
    two_head_variance,
    two_key_weight,
)

MOST = 2**27
"""A gigabyte of numbers."""
A, B = 0, 1
"""The keys that are asked for."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Keys with orthonormal means; that of a is gamma times its mean, gamma ~ N(1, 1/2).

    noise    variance of every entry of every key besides
    draws    of all keys, for each beta
    """

    betas: tuple[float, ...] = (0.5, 0.7, 1, 1.4, 2, 2.8, 4, 5.6, 8, 11, 16, 22, 32, 45, 64, 90, 128)
    keys: int = 10
    values: int = 16
    noise: float = 1e-6
    draws: int = 4000
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.betas:
            raise UsageError(asked="betas", expected="at least one", got="none", remedy="write for instance 2,10,50")
        for beta in self.betas:
            within("beta", beta, 1e-3, 1e4)
        whole("keys", self.keys, 3, 512)
        whole("values", self.values, 1, 1024)
        whole("draws", self.draws, 2, 1_000_000)
        whole("seed", self.seed, 0, 2**60)
        within("noise", self.noise, 0.0, 1.0)
        if self.draws * self.keys**2 > MOST:
            raise UsageError(
                asked=f"{self.draws:,} draws of {self.keys} keys",
                expected=f"at most {MOST:,} numbers at once",
                got=f"{self.draws * self.keys**2:,}",
                remedy="take fewer draws or keys",
            )


@dataclass(frozen=True)
class Weight:
    """Of a key over the draws: mean and the tenth and ninetieth percent.

    steady      the weight if no key varied
    expected    the mean in closed form, without the noise
    """

    mean: float
    low: float
    high: float
    steady: float
    expected: float


@dataclass(frozen=True)
class Row:
    """One beta. Variances are tr Var(c) / ||v_a - v_b||^2 of the output c.

    one_a, one_b               weights of a and b in the head that asks for both
    two_a, two_b               of a in the head that asks for a, and of b in the head that asks for b
    *_expected                 in closed form, without the noise
    failure                    how often the head that asks for a gives it less than one half
    """

    beta: float
    one_a: Weight
    one_b: Weight
    two_a: Weight
    two_b: Weight
    one_variance: float
    one_variance_expected: float
    two_variance: float
    two_variance_expected: float
    failure: float
    failure_expected: float


def run(options: Options) -> list[Row]:
    """Every beta, with keys of its own."""
    source = torch.Generator().manual_seed(options.seed)
    V = torch.randn(options.keys, options.values, generator=source, dtype=torch.float64)
    return [_row(beta, V, options, source) for beta in sorted(set(options.betas))]


def _row(beta: float, V: Float[Tensor, "n v"], options: Options, source: torch.Generator) -> Row:
    n = options.keys
    mu = torch.eye(n, dtype=torch.float64)
    drawn = simulate_retrieval(
        mu, stretched_covariances(mu, options.noise, A), V, beta, options.draws, a=A, b=B, generator=source
    )
    apart = float((V[A] - V[B]).square().sum())
    others = beta + math.log1p((n - 2) * math.exp(-beta))
    mean_a = squashed(beta - others, beta / math.sqrt(2)).mean
    mean_b = (1 - mean_a) * math.exp(beta - others)
    alone = squashed(beta - math.log(n - 1), beta / math.sqrt(2)).mean
    both, each = two_key_weight(n, beta), one_key_weight(n, beta)
    return Row(
        beta,
        one_a=_weight(drawn.one[:, A], both, mean_a),
        one_b=_weight(drawn.one[:, B], both, mean_b),
        two_a=_weight(drawn.first[:, A], each, alone),
        two_b=_weight(drawn.second[:, B], each, each),
        one_variance=float(drawn.by_one.var(0).sum()) / apart,
        one_variance_expected=one_head_variance_among(beta, V, A, B) / apart,
        two_variance=float(drawn.by_two.var(0).sum()) / apart,
        two_variance_expected=two_head_variance(beta, V, A) / apart,
        failure=float((drawn.first[:, A] < 0.5).double().mean()),
        failure_expected=two_head_failure(n, beta),
    )


def _weight(drawn: Float[Tensor, " t"], steady: float, expected: float) -> Weight:
    low, high = drawn.quantile(torch.tensor([0.1, 0.9], dtype=drawn.dtype)).tolist()
    return Weight(float(drawn.mean()), low, high, steady, expected)


# --- two keys ---------------------------------------------------------------------------------------------------------


def draw_two_keys(rows: Sequence[Row], options: Options, folder: Path) -> None:
    """Dots are simulated, bands hold eight of ten draws, lines are closed forms."""
    figure, ((one, two, variance),) = panels(1, 3, 4.5, 3.8, folder)
    betas = [row.beta for row in rows]
    title(one, "one head asks for a and b: their weights")
    title(two, "two heads ask for one each: their weights")
    title(variance, "variance of the output, over |v_a - v_b|²")
    for axis in (one, two, variance):
        axis.set_xscale("log")
        plain_ticks(axis.xaxis, [beta for beta in (0.5, 1, 2, 4, 8, 16, 32, 64, 128) if betas[0] <= beta <= betas[-1]])
        axis.set_xlim(betas[0] / 1.1, betas[-1] * 1.1)
        axis.set_xlabel("length β of the query", fontsize=9.5)
    for axis, a, b in ((one, "one_a", "one_b"), (two, "two_a", "two_b")):
        axis.set_ylim(-0.02, 1.02)
        ends = {}
        for field, colour, name in ((b, BLUE, "b"), (a, ORANGE, "a, its key varies")):
            weights = [getattr(row, field) for row in rows]
            axis.plot(betas, [weight.mean for weight in weights], "o", markersize=4, color=colour)
            axis.plot(betas, [weight.expected for weight in weights], color=colour, linewidth=1.5)
            ends[name] = (weights[-1].expected, colour)
        low, high = ([getattr(getattr(row, a), end) for row in rows] for end in ("low", "high"))
        axis.fill_between(betas, low, high, color=ORANGE, alpha=0.15, linewidth=0)
        name_right(axis, ends)
    note(one, "a in eight of ten draws", betas[-1], 0.0, ORANGE, (-4, 22), ha="right", path_effects=[])
    spreads = {"one head": ("one_variance", ORANGE), "two heads": ("two_variance", GREEN)}
    for field, colour in spreads.values():
        variance.plot(betas, [getattr(row, field) for row in rows], "o", markersize=4, color=colour)
        variance.plot(betas, [getattr(row, f"{field}_expected") for row in rows], color=colour, linewidth=1.5)
    variance.axhline(0.25, color=GREY, **BOUND)
    variance.set_ylim(0, 0.28)
    ends = {name: (getattr(rows[-1], f"{field}_expected"), colour) for name, (field, colour) in spreads.items()}
    name_right(variance, {**ends, "a or b by chance": (0.25, GREY)})
    save(figure, folder)
