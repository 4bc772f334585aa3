"""Zipf-like choice: the rank of an entry decides how often it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

T = TypeVar("T")

RESOLUTION = 4096
EXPONENT = 1.35


class Choice(Generic[T]):
    """Draws entries in proportion to their weights, from a table precomputed for speed."""

    def __init__(self, entries: Sequence[T], weights: Sequence[float]) -> None:
        self.entries = tuple(entries)
        self.table: list[T] = []
        total, reached = sum(weights), 0.0
        for entry, weight in zip(self.entries, weights, strict=True):
            reached += weight
            self.table += [entry] * max(1, round(RESOLUTION * reached / total) - len(self.table))
        self.size = len(self.table)

    def pick(self, unit: float) -> T:
        """The entry that a number in [0, 1) falls upon."""
        return self.table[int(unit * self.size)]


def zipf_weights(count: int) -> list[float]:
    """Weights that fall with a power of the rank, flattened at the very top."""
    return [(rank + 2) ** -EXPONENT for rank in range(count)]


def ranked(entries: Sequence[T]) -> Choice[T]:
    """A Zipf distribution over entries in the order of their frequency."""
    return Choice(entries, zipf_weights(len(entries)))


def united(groups: Sequence[Sequence[T]]) -> Choice[T]:
    """A Zipf distribution over several ranked groups, each with its own first, second, ... entry."""
    entries = [entry for group in groups for entry in group]
    return Choice(entries, [weight for group in groups for weight in zipf_weights(len(group))])


def weighted(weights: dict[T, float]) -> Choice[T]:
    """A choice with given weights."""
    return Choice(tuple(weights), tuple(weights.values()))
