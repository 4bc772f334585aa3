"""How a reshape tells what it is doing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate

Watch = Callable[[str, int, int], None]
"""(what is being done, how many steps of it are done, of how many); a total of 0 marks a message to show once."""

PERCENT = 100


def silently(stage: str, done: int, total: int) -> None:
    """Tell nobody."""
    del stage, done, total


def on_one_scale(watch: Watch, stages: Mapping[str, float]) -> Watch:
    """A callback for all of these stages that tells `watch` the percentage of the whole that is done.

    stages    what each is expected to cost, in the order in which they come; the others cost nothing

    The percentage never falls, also where a stage is left out or comes again. Messages are passed on unchanged.

    >>> whole = on_one_scale(lambda *told: print(*told), {"reading": 3.0, "solving": 1.0})
    >>> whole("reading", 1, 2), whole("solving", 0, 2), whole("reading", 0, 1)
    reading 37 100
    solving 75 100
    reading 75 100
    (None, None, None)
    """
    ends = dict(zip(stages, accumulate(stages.values()), strict=True))
    whole, furthest = sum(stages.values()), 0

    def tell(stage: str, done: int, total: int) -> None:
        nonlocal furthest
        if not total:
            watch(stage, done, total)
            return
        if whole and stage in stages:
            spent = ends[stage] - stages[stage] * (1 - done / total)
            furthest = max(furthest, min(PERCENT, int(PERCENT * spent / whole + 1e-9)))
        watch(stage, furthest, PERCENT)

    return tell
