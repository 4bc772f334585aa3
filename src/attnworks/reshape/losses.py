"""Losses of a model before and after a change, with their intervals, and what they say in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from attnworks.core.display import counted
from attnworks.core.timing import CONFIDENCE, Interval

PER_TOKEN = ("lm", "mlm", "seq2seq")
"""Objectives that are a mean cross-entropy per token, of which exp is the perplexity."""
LARGEST_EXPONENT = 700.0
UNCERTAIN_SHARE = 0.02
"""An interval of the rise of the loss that is narrower than this share of the loss is narrow enough."""


@dataclass(frozen=True, kw_only=True)
class LossIntervals:
    """Student's 95 % intervals of mean losses over held-out sentences; None for fewer than two, or if one is infinite.

    rise           of after - before, from the differences of each sentence
    healed_rise    of healed - before, likewise
    """

    before: tuple[float, float] | None = None
    after: tuple[float, float] | None = None
    rise: tuple[float, float] | None = None
    healed: tuple[float, float] | None = None
    healed_rise: tuple[float, float] | None = None


@dataclass(frozen=True)
class Losses:
    """Mean loss over the held-out sentences.

    predicted    from other sentences, before the change was made
    healed       after training; None without healing
    intervals    None in old receipts
    """

    before: float
    predicted: float
    after: float
    healed: float | None = None
    intervals: LossIntervals | None = None

    @property
    def last(self) -> float:
        """The loss of the new model, healed if it was."""
        return self.after if self.healed is None else self.healed

    @property
    def last_rise(self) -> Interval | None:
        """The interval of the rise of the last loss."""
        if self.intervals is None:
            return None
        return self.intervals.rise if self.healed is None else self.intervals.healed_rise


@dataclass(frozen=True, kw_only=True)
class LossesAtLength(Losses):
    """Mean loss over held-out sentences that were joined into longer texts.

    tokens    of the longest of them
    """

    tokens: int


def describe_loss(loss: Losses, steps: int, objective: str) -> str:
    """In words; of a healed model also the loss before healing; of a loss per token also the perplexity.

    >>> describe_loss(Losses(2.0, 2.1, 2.5), 0, "own")
    'loss 2 -> 2.5 (+0.5)'
    >>> describe_loss(Losses(2.0, 2.1, 2.5, 1.9, LossIntervals(healed_rise=(-0.2, 0.0))), 3, "lm")
    'loss 2 -> 2.5, and 1.9 (-0.1, 95 % interval -0.2 to +0) after 3 steps of healing, perplexity 7.39 -> 6.69'
    """
    before, after, last = (f"{value:.4g}" for value in (loss.before, loss.after, loss.last))
    if loss.healed is None and before == after:
        return f"loss unchanged at {before}"
    interval = "" if loss.last_rise is None else f", {100 * CONFIDENCE:.0f} % interval {_signed(*loss.last_rise)}"
    rise = f"({_signed(loss.last - loss.before)}{interval})"
    words = f"loss {before} -> {after} {rise}"
    if loss.healed is not None:
        words = f"loss {before} -> {after}, and {last} {rise} after {counted(steps, 'step')} of healing"
    if objective not in PER_TOKEN:
        return words
    return f"{words}, perplexity {perplexity(loss.before):.3g} -> {perplexity(loss.last):.3g}"


def perplexity(loss: float) -> float:
    """exp(loss) of a mean cross-entropy per token."""
    return math.exp(loss) if loss < LARGEST_EXPONENT else math.inf


def _signed(*values: float) -> str:
    return " to ".join(f"{value:+.3g}" for value in values)


def loss_warnings(loss: Losses, sentences: int) -> tuple[str, ...]:
    """Says that held-out text is too small: the interval of the rise is wider than the rise, and than 2 % of the loss.

    A loss that is zero before is a distance, of which 1 takes the place of the loss.
    """
    interval, rise = loss.last_rise, loss.last - loss.before
    if sentences < 2:
        return ("There is only one held-out sentence, so that no interval of the loss is known. Give more text.",)
    if interval is None or interval[1] - interval[0] <= max(abs(rise), UNCERTAIN_SHARE * (abs(loss.before) or 1.0)):
        return ()
    told = f"{rise:+.2g}, with a 95 % interval from {interval[0]:+.2g} to {interval[1]:+.2g}"
    return (f"The held-out text is too small to say by how much the loss changed: {told}. Give more text.",)
