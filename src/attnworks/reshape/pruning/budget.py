"""A share of the parameters, or of the time of a forward pass, and the fewest heads that go to get down to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import nn

from attnworks.core.checks import number
from attnworks.core.errors import UsageError
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.evaluate import parameter_count, time_ratio
from attnworks.traces.text import TokenizedText

PARAMETERS, TIME = "parameters", "time"
OF_WHAT = {PARAMETERS: "the parameters", TIME: "the time of a forward pass"}
TIMED_TOKENS = 1024
"""The largest number of padded tokens of the batch by which models are timed, unless one text has more."""

ShareKept = Callable[[int], float]
"""How many heads stay -> the share of the parameters, or of the time, that the model then has."""


@dataclass(frozen=True)
class Budget:
    """At most this share of the parameters, or of the time of a forward pass, is left."""

    of: str
    share: float

    @classmethod
    def parse(cls, given: float | str) -> Budget:
        """Of 0.9, "parameters:0.9" or "time:0.8"."""
        of, share = PARAMETERS, given
        if isinstance(given, str) and ":" in given:
            of, _, share = given.rpartition(":")
        remedy = "write for instance budget='parameters:0.9' or budget='time:0.8'"
        if of not in OF_WHAT:
            expected = "a share of parameters or of time"
            raise UsageError(f"pruning with budget={given!r}", expected, repr(of), remedy)
        try:
            share = float(share) if isinstance(share, str) else share
        except ValueError:
            raise UsageError(f"pruning with budget={given!r}", "a number from 0 to 1", repr(share), remedy) from None
        return cls(of, number("pruning with budget", share, 0, 1, remedy=remedy))

    def __str__(self) -> str:
        return f"{self.of}:{self.share:g}"

    def share_of(self, context: ReshapeContext, model: nn.Module) -> float:
        """What a model with fewer heads has; of a time, the upper end of its 95 % interval."""
        if self.of == PARAMETERS:
            return parameter_share(context.model, model)
        text_loss = replace(context.calibration, text=_timed(context.calibration.text))
        _, (_, high) = time_ratio(text_loss, context.subject.with_model(model))
        return high

    def check(self, least: float) -> None:
        """Refuse a budget that the model without any head, which has the share `least`, does not meet."""
        if least > self.share:
            expected, got = f"{least:.3g} or more", f"{self.share:g}"
            remedy = f"removing every head leaves {100 * least:.0f} % of {OF_WHAT[self.of]}"
            raise UsageError(f"pruning with budget={str(self)!r}", expected, got, remedy)

    def most_kept(self, heads: int, least: float, share_kept: ShareKept) -> int:
        """The largest number of heads that may stay, by a search between all of them and none.

        heads    of the whole model, which has the share 1
        least    the share without any of them, which is within the budget

        Each step tries where a line through the ends of the interval meets the budget, or, where the step before did
        not halve the interval, its middle.
        Holds when: the share grows with the heads that stay.
        """
        if self.share >= 1:
            return heads
        low, high, at_low, at_high = 0, heads, least, 1.0
        halve = False
        while high - low > 1:
            slope = (at_high - at_low) / (high - low)
            straight = low + int((self.share - at_low) / slope + 1e-9) if slope > 0 and not halve else (low + high) // 2
            tried, width = min(max(straight, low + 1), high - 1), high - low
            if (found := share_kept(tried)) <= self.share:
                low, at_low = tried, found
            else:
                high, at_high = tried, found
            halve = 2 * (high - low) > width and not halve
        return low


def parameter_share(before: nn.Module, after: nn.Module) -> float:
    return parameter_count(after) / max(1, parameter_count(before))


def _timed(text: TokenizedText) -> TokenizedText:
    """The longest texts, as many as make a batch of TIMED_TOKENS."""
    order = [index for batch in text.batches for index in batch]
    longest = max(len(rows[order[-1]]) for rows in text.sides)
    return replace(text, batches=[order[-max(1, TIMED_TOKENS // longest) :]])
