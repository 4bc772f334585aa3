"""Interleaved ratio timing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Race:
    """Seconds of every candidate in every round."""

    seconds: dict[str, tuple[float, ...]]

    def median(self, name: str) -> float:
        return statistics.median(self.seconds[name])

    def speedup(self, name: str, over: str) -> float:
        """How many times faster `name` is than `over`: the median of the ratios of each round."""
        pairs = zip(self.seconds[over], self.seconds[name], strict=True)
        return statistics.median(slow / fast for slow, fast in pairs)

    def spread(self, name: str, over: str) -> tuple[float, float]:
        """First and third quartile of those ratios."""
        ratios = sorted(slow / fast for slow, fast in zip(self.seconds[over], self.seconds[name], strict=True))
        return ratios[len(ratios) // 4], ratios[(3 * len(ratios)) // 4]


def interleave(
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int = 15,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> Race:
    """Run every candidate once per round, in an order that rotates, and keep the rounds after the warm-up."""
    names = list(candidates)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(warmup + rounds):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            began = clock()
            candidates[name]()
            seconds[name].append(clock() - began)
    return Race({name: tuple(values[warmup:]) for name, values in seconds.items()})
