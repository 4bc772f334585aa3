"""Learning rates by step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

ScheduleKind = Literal["warmup", "cosine", "constant"]


def schedule(kind: ScheduleKind, peak: float, warmup: int, steps: int | None = None) -> Callable[[int], float]:
    """The learning rate of step s = 0, 1, ..., as a pure function.

    warmup      rises linearly for `warmup` steps, then falls with 1 / sqrt(s): the schedule of the 2017 Transformer,
                peak * min((s+1) / w, sqrt(w / (s+1)))
    cosine      rises the same way, then falls along half a cosine to a tenth of the peak at `steps`
    constant    rises the same way, then stays
    """
    warmup = max(1, warmup)

    def rate(step: int) -> float:
        rise = (step + 1) / warmup
        if rise < 1 or kind == "constant":
            return peak * min(1.0, rise)
        if kind == "warmup" or steps is None:
            return peak / math.sqrt(rise)
        done = min(1.0, (step + 1 - warmup) / max(1, steps - warmup))
        return peak * (0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2)

    return rate
