"""Nested list operations on digits: the answer depends on brackets that open and close far apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random

import numpy as np

from attnworks.core.errors import UsageError
from attnworks.studies.tasks.contract import TASKS, LongRangeTask, Split, draw_lengths, padded

LISTOPS_WORDS = (*"0123456789", "[MIN", "[MAX", "[MEDIAN", "[SUM", "]")
MIN, MAX, MEDIAN, SUM, CLOSE = range(10, 15)
MIN_OPERATION_TOKENS = 4
"""Tokens of the min_length operation, on two digits."""


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
            raise UsageError(
                "a listops task",
                "arguments from 4, and nested from 1 to fewer than these",
                f"arguments={self.arguments} and nested={self.nested}",
                "for instance ListOps(arguments=10, nested=4)",
            )

    def draw(
        self, random: np.random.Generator, split: Split, size: int, length: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        labels = random.integers(0, self.classes, size)
        lengths = draw_lengths(random, split, size, length)
        writer = Random(int(random.integers(2**63)))
        rows = [
            np.array(self.expression(writer, label, tokens))
            for label, tokens in zip(labels.tolist(), lengths, strict=True)
        ]
        return *padded(rows, length), labels

    def expression(self, random: Random, value: int, length: int) -> list[int]:
        """Exactly `length` tokens (1, or 4 and more) that evaluate to `value`."""
        written: list[int] = []
        waiting = [(value, length)]
        while waiting:
            value, length = waiting.pop()
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
            waiting.append((CLOSE, 1))
            waiting += zip(_arguments(random, operation, value, len(lengths)), lengths, strict=True)
        return written

    def _lengths(self, random: Random, inside: int) -> list[int]:
        """Lengths of arguments that fill `inside` tokens: some operations, and digits."""
        unit = random.random
        nested = 1 + int(unit() * min(self.nested, inside // MIN_OPERATION_TOKENS))
        fewest, most = nested == 1, min(self.arguments - nested, inside - MIN_OPERATION_TOKENS * nested)
        digits = fewest + int(unit() * (most - fewest + 1))
        spare = inside - digits - MIN_OPERATION_TOKENS * nested
        cuts = sorted(int(unit() * (spare + 1)) for _ in range(nested - 1))
        lengths = [1] * digits + [MIN_OPERATION_TOKENS + end - start for start, end in pairwise((0, *cuts, spare))]
        _shuffle(random, lengths)
        return lengths


def _arguments(random: Random, operation: int, value: int, count: int) -> list[int]:
    """Digits, in any order, on which the operation gives `value`: the value itself (for SUM, what is missing)."""
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
    """As random.shuffle, but twice as fast for a few items; a good part of the time of a batch is spent here."""
    few.sort(key=lambda _: random.random())


_VALUE_OF: dict[int, Callable[[list[int]], int]] = {
    MIN: min,
    MAX: max,
    MEDIAN: lambda values: sorted(values)[(len(values) - 1) // 2],
    SUM: lambda values: sum(values) % 10,
}


def evaluate_listops(tokens: Sequence[int]) -> int:
    """The value of an expression; of an even number of arguments, MEDIAN is the lower one in the middle.

    >>> evaluate_listops(read_listops("[MAX 2 [SUM 7 6 ] 1 ]"))
    3
    """
    open_operations: list[tuple[int, list[int]]] = [(CLOSE, [])]
    for token in tokens:
        if token == CLOSE and len(open_operations) > 1 and open_operations[-1][1]:
            operation, values = open_operations.pop()
            open_operations[-1][1].append(_VALUE_OF[operation](values))
        elif token in _VALUE_OF:
            open_operations.append((token, []))
        elif 0 <= token <= 9:
            open_operations[-1][1].append(token)
        else:
            raise _no_expression(tokens)
    if len(open_operations) > 1 or len(open_operations[0][1]) != 1:
        raise _no_expression(tokens)
    return open_operations[0][1][0]


def read_listops(text: str) -> list[int]:
    """Tokens of an expression written as in `[MIN 4 [SUM 5 6 ] ]`."""
    unknown = [word for word in text.split() if word not in LISTOPS_WORDS]
    if unknown:
        raise UsageError(
            "a list expression",
            f"words out of {' '.join(LISTOPS_WORDS)}",
            repr(unknown[0]),
            "put spaces between words and ]",
        )
    return [LISTOPS_WORDS.index(word) for word in text.split()]


def _no_expression(tokens: Sequence[int]) -> UsageError:
    shown = " ".join(LISTOPS_WORDS[token] if 0 <= token < len(LISTOPS_WORDS) else str(token) for token in tokens)
    return UsageError(
        "a list expression", "a digit or one operation in brackets", repr(shown[:60]), "as in [MIN 4 [SUM 5 6 ] ]"
    )


TASKS.register("listops")(ListOps())
