"""The contract of a long-range task, and the registry of tasks."""

from __future__ import annotations

from typing import ClassVar, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnworks.core.checks import choice
from attnworks.core.errors import UsageError
from attnworks.core.registry import Registry

Split = Literal["train", "test"]
Readout = Literal["mean", "last"]
Drawn = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Tokens [size, length], the number of real tokens of each row [size], and labels [size], all int64."""


class TaskBatch(NamedTuple):
    """Sequences and the class of each; `real` is True at real tokens, which come first."""

    tokens: Int[Tensor, "b n"]
    real: Bool[Tensor, "b n"]
    labels: Int[Tensor, " b"]


class LongRangeTask:
    """A task that gives the same batch for the same (seed, step, split, size, length).

    vocabulary  number of different tokens
    classes     number of labels, all equally frequent: chance is 1 / classes
    readout     where a model finds the answer: in the mean over all tokens, or at the last one
    min_length  the least length of a sequence

    Holds for every registered task: labels are balanced, and no sequence of one split occurs in the other, whatever the
    seeds are.
    """

    vocabulary: int
    classes: int
    readout: ClassVar[Readout]
    min_length: ClassVar[int]

    def batch(self, seed: int, step: int, *, split: Split = "train", size: int = 16, length: int = 512) -> TaskBatch:
        """Batch number `step` of a seed: `size` sequences, padded to exactly `length` tokens."""
        choice("split", split, get_args(Split))
        if length < self.min_length or size < 1:
            expected = f"one text or more, of {self.min_length} tokens or more"
            raise UsageError(f"{size} texts of {length} tokens", expected, f"{size} of {length}", "add some")
        random = np.random.default_rng([seed, get_args(Split).index(split), step])
        tokens, lengths, labels = self.draw(random, split, size, length)
        real = torch.arange(length) < torch.from_numpy(lengths)[:, None]
        return TaskBatch(torch.from_numpy(tokens), real, torch.from_numpy(labels))

    def draw(self, random: np.random.Generator, split: Split, size: int, length: int) -> Drawn:
        raise NotImplementedError


TASKS: Registry[LongRangeTask] = Registry("task")


def draw_lengths(random: np.random.Generator, split: Split, size: int, length: int) -> list[int]:
    """Lengths from three quarters of `length` up to it; even in training and odd in test, to keep the splits apart."""
    largest = length - (length % 2 == (split == "train"))
    return (largest - 2 * random.integers(0, length // 8, size)).tolist()


def padded(rows: list[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of unequal length as one table padded with zeros, and the length of each."""
    tokens = np.zeros((len(rows), length), dtype=np.int64)
    for number, row in enumerate(rows):
        tokens[number, : len(row)] = row
    return tokens, np.array([len(row) for row in rows])
