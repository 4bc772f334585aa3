"""Nested list operations on digits: the answer depends on brackets that open and close far apart."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from random import Random

import numpy as np

from attnworks.core.errors import UsageError
from attnworks.studies.tasks.contract import TASKS, Drawn, LongRangeTask, Split, draw_lengths, padded

LISTOPS_WORDS = (*"0123456789", "[MIN", "[MAX", "[MEDIAN", "[SUM", "]")
MIN, MAX, MEDIAN, SUM, CLOSE = range(10, 15)
MIN_OPERATION_TOKENS = 4
"""Tokens of the shortest operation, on two digits."""


@dataclass(frozen=True)
class ListOps(LongRangeTask):
    """[MAX 2 [SUM 7 6 ] 1 ] -> 3: the value of an expression of MIN, MAX, MEDIAN and SUM modulo 10.

    Expressions are generated from the answer down: an operation with a given value gets arguments that yield it.
    So all ten answers are equally frequent, and every expression has exactly the wanted length.

    arguments   the largest number of arguments of one operation, 4 or more
    nested      the largest number of these that are operations themselves

    Splits: expressions have an even number of tokens in training and an odd one in test.
    """

    arguments: int = 10
    nested: int = 4

    vocabulary = len(LISTOPS_WORDS)
    classes = 10
    readout = "mean"
    min_length = 8

    def __post_init__(self) -> None:
        if self.arguments < MIN_OPERATION_TOKENS or not 1 <= self.nested < self.arguments:
            expected = "arguments from 4, and nested from 1 to fewer than these"
            raise UsageError("a listops task", expected, str(self), "for instance ListOps(arguments=10, nested=4)")

    def draw(self, random: np.random.Generator, split: Split, size: int, length: int) -> Drawn:
        labels = random.integers(0, self.classes, size)
        lengths = draw_lengths(random, split, size, length)
        writer = Random(int(random.integers(2**63)))
        wanted = zip(labels.tolist(), lengths, strict=True)
        return *padded([np.array(self.expression(writer, *each)) for each in wanted], length), labels

    def expression(self, random: Random, value: int, length: int) -> list[int]:
        """Exactly `length` tokens (1, or 4 and more) that evaluate to `value`."""
        written: list[int] = []
        pending = [(value, length)]
        while pending:
            value, length = pending.pop()
            if length == 1:
                written.append(value)
                continue
            operation, inside = MIN + int(4 * random.random()), length - 2
            written.append(operation)
            if inside <= self.arguments:
                written += _arguments(random, operation, value, inside)
                written.append(CLOSE)
                continue
            lengths = self._lengths(random, inside)
            pending.append((CLOSE, 1))
            pending += zip(_arguments(random, operation, value, len(lengths)), lengths, strict=True)
        return written

    def _lengths(self, random: Random, inside: int) -> list[int]:
        """Lengths of arguments that fill `inside` tokens: some operations, and digits."""
        unit = random.random
        nested = 1 + int(unit() * min(self.nested, inside // MIN_OPERATION_TOKENS))
        least, most = nested == 1, min(self.arguments - nested, inside - MIN_OPERATION_TOKENS * nested)
        digits = least + int(unit() * (most - least + 1))
        spare = inside - digits - MIN_OPERATION_TOKENS * nested
        cuts = sorted(int(unit() * (spare + 1)) for _ in range(nested - 1))
        lengths = [1] * digits + [MIN_OPERATION_TOKENS + end - start for start, end in pairwise((0, *cuts, spare))]
        _shuffle(random, lengths)
        return lengths


def _arguments(random: Random, operation: int, value: int, count: int) -> list[int]:
    """`count` digits for which the operation gives `value`, which is one of them except for SUM."""
    unit, others = random.random, count - 1
    if operation == SUM:
        drawn = [int(10 * unit()) for _ in range(others)]
        return [*drawn, (value - sum(drawn)) % 10]
    below = 0 if operation == MIN else others if operation == MAX else others // 2
    drawn = [int((value + 1) * unit()) for _ in range(below)]
    drawn += [value + int((10 - value) * unit()) for _ in range(others - below)]
    if operation == MEDIAN:
        _shuffle(random, drawn)
    drawn.insert(int(count * unit()), value)
    return drawn


def _shuffle(random: Random, few: list[int]) -> None:
    """As random.shuffle, but twice as fast for a few items. A large part of the time of a batch is spent here."""
    few.sort(key=lambda _: random.random())


TASKS.register("listops")(ListOps())
