"""One head with a query for two keys, and two heads with a query for one each, when a key varies in length.

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

from attnworks.core.checks import number
from attnworks.core.errors import UsageError
from attnworks.theory import retrieval
from attnworks.theory.experiments import figures
from attnworks.theory.experiments.contract import ResultTable, TheoryExperiment
from attnworks.theory.experiments.figures import BLUE, GREEN, GREY, ORANGE

_MAX_KEY_NUMBERS = 2**27
"""A gigabyte of numbers."""
A, B = 0, 1
"""The keys to be found."""


@dataclass(frozen=True)
class TwoKeysRow:
    """One beta. Variances are tr Var(c) / ||v_a - v_b||^2 of the output c.

    one_a, one_b               weights of a and b in the head with a query for both
    two_a, two_b               of a in the head for a, and of b in the head for b
    *_expected                 in closed form, without the noise
    failure                    how often the head for a gives it less than one half
    """

    beta: float
    one_a: KeyWeight
    one_b: KeyWeight
    two_a: KeyWeight
    two_b: KeyWeight
    one_variance: float
    one_variance_expected: float
    two_variance: float
    two_variance_expected: float
    failure: float
    failure_expected: float


@dataclass(frozen=True, kw_only=True)
class TwoKeysExperiment(TheoryExperiment[TwoKeysRow]):
    """Keys with orthonormal means; that of a is gamma times its mean, gamma ~ N(1, 1/2).

    noise    variance that is added to every entry of every key
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
            raise UsageError("betas", "at least one", "none", "write for instance 2,10,50")
        for beta in self.betas:
            number("beta", beta, 1e-3, 1e4)
        self.check_integers(keys=(3, 512), values=(1, 1024), draws=(2, 1_000_000), seed=(0, 2**60))
        number("noise", self.noise, 0.0, 1.0)
        if (numbers := self.draws * self.keys**2) > _MAX_KEY_NUMBERS:
            asked = f"{self.draws:,} draws of {self.keys} keys"
            raise UsageError(asked, f"at most {_MAX_KEY_NUMBERS:,} numbers", f"{numbers:,}", "take fewer draws or keys")

    def run(self) -> list[TwoKeysRow]:
        """Every beta, with keys of its own."""
        source = torch.Generator().manual_seed(self.seed)
        V = torch.randn(self.keys, self.values, generator=source, dtype=torch.float64)
        return [_row(beta, V, self, source) for beta in sorted(set(self.betas))]

    def tables(self, rows: Sequence[TwoKeysRow]) -> list[ResultTable]:
        table = ResultTable(
            f"{self.keys} keys, {self.draws:,} draws: mean weights, variance over |v_a - v_b|²; closed forms in ()",
            "β", "one head: a", "b", "variance", "two heads: a", "b", "variance", "a below ½", left=0,
        )  # fmt: skip
        for row in rows:
            table.add_row(
                f"{row.beta:g}", *(_pair(weight.mean, weight.expected) for weight in (row.one_a, row.one_b)),
                _pair(row.one_variance, row.one_variance_expected),
                *(_pair(weight.mean, weight.expected) for weight in (row.two_a, row.two_b)),
                _pair(row.two_variance, row.two_variance_expected), _pair(row.failure, row.failure_expected),
            )  # fmt: skip
        return [table]

    def sentences(self, rows: Sequence[TwoKeysRow]) -> list[str]:
        last = rows[-1]
        a = last.one_a
        return [
            f"At β = {last.beta:g} one head gives a {a.mean:.2f} on average ({a.steady:.2f} if no key varied), and in "
            f"eight of ten draws something from {a.low:.2f} to {a.high:.2f}.",
            f"Two heads have {last.two_variance / last.one_variance:.1%} of its variance; the head that asks for a "
            f"gives it less than one half in {last.failure:.1%} of the draws.",
        ]

    def draw(self, rows: Sequence[TwoKeysRow], folder: Path) -> None:
        """Dots are simulated, bands hold eight of ten draws, lines are closed forms."""
        figure, ((one, two, variance),) = figures.panels(1, 3, 4.5, 3.8, folder)
        betas = [row.beta for row in rows]
        figures.title(one, "one head asks for a and b: their weights")
        figures.title(two, "two heads ask for one each: their weights")
        figures.title(variance, "variance of the output, over |v_a - v_b|²")
        for axis in (one, two, variance):
            axis.set_xscale("log")
            ticks = [beta for beta in (0.5, 1, 2, 4, 8, 16, 32, 64, 128) if betas[0] <= beta <= betas[-1]]
            figures.plain_ticks(axis.xaxis, ticks)
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
            figures.name_right(axis, ends)
        figures.note(one, "a in eight of ten draws", betas[-1], 0.0, ORANGE, (-4, 22), ha="right", path_effects=[])
        spreads = {"one head": ("one_variance", ORANGE), "two heads": ("two_variance", GREEN)}
        for field, colour in spreads.values():
            variance.plot(betas, [getattr(row, field) for row in rows], "o", markersize=4, color=colour)
            variance.plot(betas, [getattr(row, f"{field}_expected") for row in rows], color=colour, linewidth=1.5)
        variance.axhline(0.25, color=GREY, **figures.BOUND_STYLE)
        variance.set_ylim(0, 0.28)
        ends = {name: (getattr(rows[-1], f"{field}_expected"), colour) for name, (field, colour) in spreads.items()}
        figures.name_right(variance, {**ends, "a or b by chance": (0.25, GREY)})
        figures.save_figure(figure, folder)


def _pair(measured: float, expected: float) -> str:
    return f"{measured:.3f} ({expected:.3f})"


@dataclass(frozen=True)
class KeyWeight:
    """Of a key over the draws: mean and the tenth and ninetieth percent.

    steady      the weight if no key varied
    expected    the mean in closed form, without the noise
    """

    mean: float
    low: float
    high: float
    steady: float
    expected: float


def _row(beta: float, V: Float[Tensor, "n v"], experiment: TwoKeysExperiment, source: torch.Generator) -> TwoKeysRow:
    n = experiment.keys
    mu = torch.eye(n, dtype=torch.float64)
    Sigma = retrieval.stretched_covariances(mu, experiment.noise, A)
    drawn = retrieval.simulate_retrieval(mu, Sigma, V, beta, experiment.draws, a=A, b=B, generator=source)
    apart = float((V[A] - V[B]).square().sum())
    others = beta + math.log1p((n - 2) * math.exp(-beta))
    mean_a = retrieval.logistic_moments(beta - others, beta / math.sqrt(2)).mean
    mean_b = (1 - mean_a) * math.exp(beta - others)
    alone = retrieval.logistic_moments(beta - math.log(n - 1), beta / math.sqrt(2)).mean
    both, each = retrieval.two_key_weight(n, beta), retrieval.one_key_weight(n, beta)
    return TwoKeysRow(
        beta,
        one_a=_weight(drawn.one[:, A], both, mean_a),
        one_b=_weight(drawn.one[:, B], both, mean_b),
        two_a=_weight(drawn.first[:, A], each, alone),
        two_b=_weight(drawn.second[:, B], each, each),
        one_variance=float(drawn.by_one.var(0).sum()) / apart,
        one_variance_expected=retrieval.one_head_variance_among(beta, V, A, B) / apart,
        two_variance=float(drawn.by_two.var(0).sum()) / apart,
        two_variance_expected=retrieval.two_head_variance(beta, V, A) / apart,
        failure=float((drawn.first[:, A] < 0.5).double().mean()),
        failure_expected=retrieval.two_head_failure(n, beta),
    )


def _weight(drawn: Float[Tensor, " t"], steady: float, expected: float) -> KeyWeight:
    low, high = drawn.quantile(torch.tensor([0.1, 0.9], dtype=drawn.dtype)).tolist()
    return KeyWeight(float(drawn.mean()), low, high, steady, expected)
