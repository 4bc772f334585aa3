"""The best step along a direction in which a function falls, with few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

DOUBLINGS = 16
SHRINKINGS = 4
REFINEMENTS = 2


class Found(NamedTuple):
    """The best step that was tried, 0 if none is better than staying, and the value there."""

    step: float
    value: float


def line_search(function: Callable[[float], float], start: float, at_zero: float) -> Found:
    """min over t >= 0: shrink `start` by fours until f(t) < f(0), double it while f falls, then fit parabolas.

    Values that are not finite count as very large. The best of all points that were tried is returned, so that the
    value is one that was measured.
    """
    tried = {0.0: at_zero}

    def value(t: float) -> float:
        if t not in tried:
            found = function(t)
            tried[t] = found if math.isfinite(found) else math.inf
        return tried[t]

    t = start
    for _ in range(SHRINKINGS):
        if value(t) < at_zero:
            break
        t /= 4
    else:
        return Found(0.0, at_zero)
    for _ in range(DOUBLINGS):
        if value(2 * t) >= value(t):
            break
        t *= 2
    for _ in range(REFINEMENTS):
        if (t := _lowest_of_parabola(tried)) in tried:
            break
        value(t)
    step = min(tried, key=lambda t: (tried[t], t))
    return Found(step, tried[step])


def _lowest_of_parabola(tried: dict[float, float]) -> float:
    """Of the parabola through the best point and its neighbours; the best point itself where there is none."""
    steps = sorted(tried)
    at = steps.index(min(steps, key=lambda t: tried[t]))
    if not 0 < at < len(steps) - 1 or not math.isfinite(tried[steps[at + 1]]):
        return steps[at]
    (a, b, c), (f_a, f_b, f_c) = steps[at - 1 : at + 2], (tried[t] for t in steps[at - 1 : at + 2])
    left, right = (b - a) * (f_b - f_c), (b - c) * (f_b - f_a)
    return steps[at] if left == right else b - ((b - a) * left - (b - c) * right) / (2 * (left - right))
