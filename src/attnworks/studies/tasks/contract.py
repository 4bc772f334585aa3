"""What every task promises, and the registry of those that do."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.core.registry import Registry, unknown_name

Split = Literal["train", "test"]
Readout = Literal["mean", "last"]


class Batch(NamedTuple):
    """Sequences and the class of each; padding is True at real tokens, which come first."""

    tokens: Int[Tensor, "b n"]
    padding: Bool[Tensor, "b n"]
    labels: Int[Tensor, " b"]


class Task:
    """(seed, step, split, size, length) -> Batch, always the same one.

    vocabulary  kinds of tokens
    classes     kinds of labels, all equally frequent: chance is 1 / classes
    readout     where a model finds the answer: in the mean over all tokens, or at the last one
    shortest    the least length that has room for the question

    Promises, tested for every registered name: labels are balanced; a sequence of one split cannot occur in the other,
    whatever the seeds.
    """

    vocabulary: int
    classes: int
    readout: ClassVar[Readout]
    shortest: ClassVar[int]

    def batch(self, seed: int, step: int, *, split: Split = "train", size: int = 16, length: int = 512) -> Batch:
        """Batch number `step` of a seed: `size` sequences, padded to exactly `length` tokens."""
        if split not in get_args(Split):
            raise unknown_name("split", split, get_args(Split))
        if length < self.shortest or size < 1:
            raise UsageError(
                asked=f"{size} sequences of {length} tokens",
                expected=f"at least one, of {self.shortest} tokens or more",
                got=f"{size} of {length}",
                remedy=f"choose a length from {self.shortest}",
            )
        random = np.random.default_rng([seed, get_args(Split).index(split), step])
        tokens, lengths, labels = self.draw(random, split, size, length)
        return Batch(
            torch.from_numpy(tokens),
            torch.arange(length) < torch.from_numpy(lengths)[:, None],
            torch.from_numpy(labels),
        )

    def draw(
        self, random: np.random.Generator, split: Split, size: int, length: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Tokens [size length], the real tokens of each row, and labels, all int64."""
        raise NotImplementedError


TASKS: Registry[Task] = Registry("task")


def draw_lengths(random: np.random.Generator, split: Split, size: int, longest: int) -> list[int]:
    """From three quarters of `longest` up to it; even in training and odd in test, which keeps the splits apart."""
    last = longest - (longest % 2 == (split == "train"))
    return (last - 2 * random.integers(0, longest // 8, size)).tolist()


def padded(rows: list[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of unequal length as one table filled up with zeros, and the length of each."""
    tokens = np.zeros((len(rows), length), dtype=np.int64)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    return tokens, np.array([len(row) for row in rows])
