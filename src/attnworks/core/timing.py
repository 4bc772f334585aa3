"""Timing of candidates that take turns, so that slow phases of the machine hit all of them."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
"""Confidence of the intervals of time ratios."""
MAX_ROUNDS, MIN_ROUNDS, MAX_SECONDS = 101, 6, 10.0
"""Rounds of `interleave_within`, and their total time. A busy machine needs many rounds for a narrow interval; fewer
than 6 give no interval of the median at 95 %."""

Interval = tuple[float, float]
"""Lower and upper end."""


def contains_one(interval: Interval) -> bool:
    """Whether a time ratio with this interval may be 1: no measurable gain or loss."""
    return interval[0] <= 1 <= interval[1]


def median_interval(values: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Confidence interval of the median for any distribution, by the sign test: two order statistics.

    The median is below the k-th smallest of n independent values with probability P(Bin(n, 1/2) < k). The k-th smallest
    and the k-th largest are returned, with the largest k whose coverage is at least `confidence`.

    >>> median_interval([5.0, 1.0, 4.0, 2.0, 3.0, 9.0])
    (1.0, 9.0)
    """
    n, ordered, outside, k = len(values), sorted(values), 0.0, 0
    while outside + math.comb(n, k) / 2**n <= (1 - confidence) / 2:
        outside += math.comb(n, k) / 2**n
        k += 1
    if k == 0:
        raise ValueError(f"{n} values give no interval of the median with confidence {confidence}")
    return ordered[k - 1], ordered[n - k]


@dataclass(frozen=True)
class Race:
    """Seconds of every candidate in every round."""

    seconds: dict[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def speedup(self, name: str, over: str) -> float:
        """The factor by which `name` is faster than `over`: the median of the ratios of each round."""
        return self.time_ratio(over, name)

    def time_ratio(self, name: str, to: str) -> float:
        """Time of `name` as a share of the time of `to`: the median of the ratios of each round."""
        return statistics.median(self._time_ratios(name, to))

    def time_interval(self, name: str, to: str) -> Interval:
        """Confidence interval of the time ratio, at CONFIDENCE."""
        return median_interval(self._time_ratios(name, to))

    def _time_ratios(self, name: str, to: str) -> list[float]:
        return [one / other for one, other in zip(self.seconds[name], self.seconds[to], strict=True)]

    def spread(self, name: str, over: str) -> tuple[float, float]:
        """First and third quartile of the ratios whose median is the speedup."""
        ratios = sorted(self._time_ratios(over, name))
        return ratios[len(ratios) // 4], ratios[(3 * len(ratios)) // 4]


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> Race:
    """Run every candidate once per round, in rotating order, and return the times after the warm-up rounds."""
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warmup + rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            began = clock()
            candidates[name]()
            seconds[name].append(clock() - began)
    return Race({name: tuple(values[warmup:]) for name, values in seconds.items()})


def interleave_within(
    candidates: Mapping[str, Callable[[], object]], *, clock: Callable[[], float] = time.perf_counter
) -> Race:
    """`interleave` with as many rounds as fit into MAX_SECONDS, from MIN_ROUNDS to MAX_ROUNDS.

    A first round warms up and measures the time of a round.
    """
    began = clock()
    for run in candidates.values():
        run()
    once = clock() - began
    fitting = MAX_ROUNDS if once * MAX_ROUNDS <= MAX_SECONDS else int(MAX_SECONDS / once)
    return interleave(candidates, rounds=max(MIN_ROUNDS, fitting), warmup=0, clock=clock)
