"""How far the loss would fall for more keys or values in every head: predicted, and checked on other sentences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Inexact
from torch import Tensor

from attnworks.attention.heads import HeadMatrices
from attnworks.core.places import Slot
from attnworks.reshape.growth.apply import Addition, GrowthPlace, GrowthStep, Keys, NewHead, Values, grown
from attnworks.reshape.growth.directions import (
    Direction,
    marginal_gains,
    score_direction,
    value_direction,
    whitened_direction,
)
from attnworks.reshape.growth.metric import ScoreSample, as_real_columns, real_product
from attnworks.reshape.growth.solvers import LineMinimum, line_search
from attnworks.reshape.growth.statistics import CHECKING_SLICE, GrowthSums
from attnworks.traces.loss import TextLoss

GrowthKind = Literal["keys", "values", "heads"]
TRIAL_SENTENCES = 128
"""About this many of the checking sentences are used to try steps."""
FIRST_STEP_LOSS_SHARE = 0.01
"""The share of the loss that the first step of a search would gain if the loss were linear."""
SOLVER_TOLERANCE, MAX_SOLVER_RESIDUAL = 1e-2, 0.1
"""The residual at which the solver stops, and the residual above which the closed form is used instead."""
SOLVER_SWEEPS = 20
VARIANCE_CUTOFFS = (1e-4, 0.01, 0.03)
"""Directions in which the states vary less than this share of the largest variance are left out. A larger cutoff loses
more signal and removes more noise; the first one that gives `CONVINCING_TRUST` is used."""
CONVINCING_TRUST = 0.8
"""If other sentences confirm this share of a slope, no larger cutoff is tried."""
MIN_TRUST = 0.5
"""The slope on the checking sentences must be at least this share of the slope on the fitting sentences."""


@runtime_checkable
class DirectionSolver(Protocol):
    def __call__(self, T: Tensor, sample: ScoreSample, p: int, *, cutoff: float) -> Direction: ...


def best_direction(T: Tensor, sample: ScoreSample, p: int, *, cutoff: float) -> Direction:
    """`score_direction`; for heads in which its solver does not converge, the closed form `whitened_direction`.

    The solver usually fails because T has a part in a direction without curvature in the sample: there is no optimum.
    The closed form replaces the curvature by second moments of the states. These are positive in every direction that
    `cutoff` keeps, so that it always has an optimum.
    """
    solved = score_direction(T, sample, p, sweeps=SOLVER_SWEEPS, tolerance=SOLVER_TOLERANCE, cutoff=cutoff)
    stuck = solved.residual > MAX_SOLVER_RESIDUAL
    if not bool(stuck.any()):
        return solved
    pairs = zip(solved, whitened_direction(T, sample, p, cutoff=cutoff), strict=True)
    return Direction(*(torch.where(stuck.view(-1, *[1] * (one.dim() - 1)), closed, one) for one, closed in pairs))


@dataclass(frozen=True, eq=False)
class Score:
    """A direction of growth at one place, and what it is worth.

    addition       what to add, for a step of one
    fitted_slope   how fast the loss falls along it, on the sentences that the direction was fitted to
    checked_slope  the same on the sentences that check it
    residual       how far the direction is from a local optimum, where it is 0. At most `MAX_SOLVER_RESIDUAL` by the
                   solver; any number by the closed form, which `whitened` always uses, and `fisher` if the solver fails
    parameters     how many parameters it adds
    shares         what each of its columns or pairs adds to the gain, in the metric of the solver
    step, gain     the best step on the checking sentences, and how far their loss falls there; 0 before it is tried
    """

    place: GrowthPlace
    kind: GrowthKind
    addition: Addition
    fitted_slope: float
    checked_slope: float
    residual: float
    parameters: int
    shares: tuple[float, ...]
    step: float = 0.0
    gain: float = 0.0

    @property
    def trust(self) -> float:
        """checked_slope / fitted_slope: 1 for a direction that serves other sentences as well, about 0 for noise."""
        return self.checked_slope / self.fitted_slope if self.fitted_slope > 0 else 0.0

    @property
    def columns(self) -> int:
        """How many columns it adds; of keys and of values together for a new head."""
        match self.addition:
            case Keys(alpha):
                return alpha.shape[1]
            case Values(a):
                return a.shape[1]
            case NewHead(like, a):
                return like.W_Q.shape[1] + a.shape[1]
        raise TypeError(f"no columns in {type(self.addition).__name__}")

    @property
    def is_pair(self) -> bool:
        """Whether it adds frequency pairs."""
        return isinstance(self.addition, Keys) and self.addition.turns is not None

    @property
    def predicted(self) -> float:
        """By how much the loss of the checking sentences falls for each parameter, in the metric, before it is tried.

        The direction has the length that is best for the fitting sentences, where slope and curvature are the same.
        """
        if min(self.fitted_slope, self.checked_slope) <= 0:
            return 0.0
        return self.checked_slope**2 / (2 * self.fitted_slope) / self.parameters

    @property
    def refusal(self) -> str | None:
        """Why nothing should grow here, in words."""
        if self.trust < MIN_TRUST:
            return f"other sentences confirm {self.trust:.0%} of the slope: more data, or no bottleneck"
        return None if self.gain > 0 else "no step lowers the loss"

    def tried(self, trial: GrowthTrial, scale: float) -> Score:
        """With the best step. Nothing is tried where other sentences do not confirm the direction."""
        if self.trust < MIN_TRUST:
            return self
        found = trial.search(self.checked_slope, lambda length: [GrowthStep(self.place, self.addition, length, scale)])
        return replace(self, step=found.step, gain=trial.loss - found.value)


def better(one: Score, other: Score | None) -> Score:
    """The one that should lower the loss by more per parameter; the first one if they are equal."""
    return one if other is None or other.predicted <= one.predicted else other


class GrowthTrial:
    """What steps of growth do to the loss, on some of the calibration sentences."""

    def __init__(self, text_loss: TextLoss, some: slice) -> None:
        self.text_loss, self.some = text_loss, some
        self.loss = text_loss.mean(some=some)

    def with_steps(self, steps: Sequence[GrowthStep]) -> float:
        """The mean loss of the model with these additions."""
        original: Any = self.text_loss.original
        return self.text_loss.mean(original.with_model(grown(original.model, steps)), some=self.some)

    def search(
        self, slope: float, steps: Callable[[float], Sequence[GrowthStep]], whole: float | None = None
    ) -> LineMinimum:
        """The best length along a direction that falls with this slope from `whole`, by default the model's loss."""
        whole = self.loss if whole is None else whole
        if slope <= 0:
            return LineMinimum(0.0, whole)
        return line_search(lambda t: self.with_steps(steps(t)), FIRST_STEP_LOSS_SHARE * abs(whole) / slope, whole)

    def search_along(self, steps: Callable[[float], Sequence[GrowthStep]], start: float) -> LineMinimum:
        """The best length along a line, from a first one."""
        return line_search(lambda t: self.with_steps(steps(t)), start, self.with_steps(steps(0.0)))


def checking_sentences(text_loss: TextLoss) -> slice:
    """The checking sentences on which steps are tried."""
    return trial_sentences(sum(map(len, text_loss.text.batches)))


def trial_sentences(sentences: int) -> slice:
    """Of this many sentences, those on which steps are tried."""
    checks = len(range(sentences)[CHECKING_SLICE])
    return slice(CHECKING_SLICE.start, None, CHECKING_SLICE.step * max(1, checks // TRIAL_SENTENCES))


def key_scores(
    slot: Slot,
    T: Inexact[Tensor, "2 h e f"],
    sample: ScoreSample,
    like: HeadMatrices,
    p: int,
    solve: DirectionSolver = best_direction,
) -> list[Score]:
    """The best p columns of keys for every head of a layer, or the best p pairs with the angle of the sample.

    T       on the fitting and on the checking sentences; its last rows are those of a bias of the queries, if they have
            one, and its last columns for pairs those of a bias of the keys
    like    a head of the layer
    """
    fitted, checked = T
    biased = (like.b_Q is not None, like.b_K is not None and sample.angle > 0)

    def found(cutoff: float) -> list[Score]:
        direction = solve(fitted, sample, p, cutoff=cutoff)
        slopes = (direction.slope, -real_product(direction.alpha, checked @ direction.beta))
        shares = marginal_gains(direction, fitted, sample)
        sides = (as_real_columns(side) for side in (direction.alpha, direction.beta))
        additions = [_keys(alpha, beta, biased, sample.angle) for alpha, beta in zip(*sides, strict=True)]
        rows = [len(W) for W in (like.W_Q, like.W_K)] + [1 for b in (like.b_Q, like.b_K) if b is not None]
        parameters = additions[0].alpha.shape[1] * sum(rows)
        return _scores(slot, "keys", additions, slopes, parameters, shares, direction.residual)

    return _convincing(found)


def _keys(alpha: Tensor, beta: Tensor, biased: tuple[bool, bool], angle: float) -> Keys:
    """Columns whose last rows may be biases."""
    (alpha, bias), (beta, key_bias) = (
        (side[:-1], side[-1]) if has_bias else (side, None)
        for side, has_bias in zip((alpha, beta), biased, strict=True)
    )
    turns = torch.full_like(alpha[0], angle) if angle else None
    return Keys(alpha, beta, bias, key_bias, turns)


def value_scores(slot: Slot, sums: GrowthSums, biased: bool, p: int) -> list[Score]:
    """The best p columns of values, with their rows of outputs, for every head of a layer."""
    _, (fitted, checked), spread = sums.means()

    def found(cutoff: float) -> list[Score]:
        direction = value_direction(fitted, spread, p, cutoff=cutoff)
        products = direction.a @ direction.b
        slopes = (-(fitted * products).sum((-2, -1)), -(checked * products).sum((-2, -1)))
        additions = [Values(a, b) for a, b in zip(direction.a, direction.b, strict=True)]
        parameters = p * (fitted.shape[1] + fitted.shape[2] + biased)
        exact = torch.zeros_like(slopes[0])
        return _scores(slot, "values", additions, slopes, parameters, direction.captured, exact)

    return _convincing(found)


def _convincing(found: Callable[[float], list[Score]]) -> list[Score]:
    """For every head, the direction of the first cutoff with `CONVINCING_TRUST`, or of the one with the most trust."""
    best = found(VARIANCE_CUTOFFS[0])
    for cutoff in VARIANCE_CUTOFFS[1:]:
        if all(score.trust >= CONVINCING_TRUST for score in best):
            break
        best = [
            old if old.trust >= min(new.trust, CONVINCING_TRUST) else new
            for old, new in zip(best, found(cutoff), strict=True)
        ]
    return best


def _scores(
    slot: Slot,
    kind: GrowthKind,
    additions: Sequence[Addition],
    slopes: tuple[Tensor, Tensor],
    parameters: int,
    shares: Tensor,
    residuals: Tensor,
) -> list[Score]:
    """One for every head; slopes are those on the fitting and on the checking sentences."""
    numbers = zip(additions, *(side.tolist() for side in (*slopes, residuals, shares)), strict=True)
    return [
        Score(GrowthPlace(slot, head), kind, addition, fitted, checked, residual, parameters, tuple(share))
        for head, (addition, fitted, checked, residual, share) in enumerate(numbers)
    ]


def head_score(slot: Slot, new: NewHead, sums: GrowthSums) -> Score:
    """The score of a new head with given queries and keys, and the best values for its attention."""
    p = new.a.shape[1]
    found = value_scores(slot, sums, new.like.b_V is not None, p)[0]
    assert isinstance(found.addition, Values)
    addition = NewHead(new.like, found.addition.a, found.addition.b)
    keys = sum(part.numel() for part in (new.like.W_Q, new.like.W_K, new.like.b_Q, new.like.b_K) if part is not None)
    return replace(
        found, place=GrowthPlace(slot, None), kind="heads", addition=addition, parameters=found.parameters + keys
    )
