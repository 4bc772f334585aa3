"""Covering arrays: few rows of a large product that still hold every pair of values of any two factors."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, product
from typing import Any

Row = tuple[Any, ...]
thorough = os.environ.get("THOROUGH") == "1"
"""Set by `make test-all`: the full product is tested, not only every pair."""


def pairs(row: Row) -> Iterator[Hashable]:
    """Every two values of a row, with the places of their factors."""
    return combinations(enumerate(row), 2)


def covering(*factors: Sequence[Hashable], allowed: Callable[..., bool] = lambda *_: True) -> list[Row]:
    """Rows in which every two values that some allowed row holds meet at least once; all allowed rows if thorough.

    The same arguments give the same rows. Pairs that few rows hold are placed first; of the rows that hold a pair, the
    one with the most pairs that are still missing is taken.
    """
    rows = [row for row in product(*factors) if allowed(*row)]
    if thorough or len(factors) < 2:
        return rows
    holding: dict[Hashable, list[Row]] = defaultdict(list)
    for row in rows:
        for pair in pairs(row):
            holding[pair].append(row)
    missing, chosen = set(holding), []
    for pair in sorted(holding, key=lambda pair: len(holding[pair])):
        if pair in missing:
            best = max(holding[pair], key=lambda row: len(missing.intersection(pairs(row))))
            missing.difference_update(pairs(best))
            chosen.append(best)
    return chosen


@contextmanager
def noted(*values: object) -> Iterator[None]:
    """A failure inside says for which values it failed: for tests that go through several rows."""
    try:
        yield
    except BaseException as error:  # failures of pytest are no Exceptions
        error.add_note(f"with {', '.join(map(str, values))}")
        raise
