"""Examples to batches of nearly equal length, in an order that is a pure function of (seed, step)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.text.pair import Pair
from attnworks.text.vocabulary import BOS, EOS, PAD, Vocabulary


@dataclass(frozen=True, slots=True)
class Example:
    """One pair as ids: the source ends with <eos>; the target neither begins nor ends with anything."""

    source: tuple[int, ...]
    target: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Batch:
    """Padded examples. The decoder reads `read` (<bos> first) and is to write `write` (<eos> last).

    Paddings are True at real tokens, and None when there is nothing padded. `rows` says which examples these are.
    """

    source: Int[Tensor, "b i"]
    source_padding: Bool[Tensor, "b i"] | None
    read: Int[Tensor, "b t"]
    write: Int[Tensor, "b t"]
    target_padding: Bool[Tensor, "b t"] | None
    rows: tuple[int, ...] = ()

    @property
    def target_tokens(self) -> int:
        return self.write.numel() if self.target_padding is None else int(self.target_padding.sum())

    @property
    def tokens(self) -> int:
        """Real tokens of both sides."""
        padding = self.source_padding
        return self.target_tokens + (self.source.numel() if padding is None else int(padding.sum()))

    def to(self, device: torch.device | str) -> Batch:
        def move(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor.to(device)

        source, read, write = (tensor.to(device) for tensor in (self.source, self.read, self.write))
        return Batch(source, move(self.source_padding), read, write, move(self.target_padding), self.rows)


def encode(pairs: Sequence[Pair], source: Vocabulary, target: Vocabulary) -> list[Example]:
    """Pairs as ids."""
    sources = source.encode_all(pair.source for pair in pairs)
    targets = target.encode_all(pair.target for pair in pairs)
    return [Example((*ids, EOS), tuple(written)) for ids, written in zip(sources, targets, strict=True)]


def collate(examples: Sequence[Example], rows: Sequence[int] = ()) -> Batch:
    """Pad examples on the right into one batch."""
    source, source_padding = pad([example.source for example in examples])
    read, target_padding = pad([(BOS, *example.target) for example in examples])
    write, _ = pad([(*example.target, EOS) for example in examples])
    return Batch(source, source_padding, read, write, target_padding, tuple(rows))


def pad(sequences: Sequence[Sequence[int]]) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"] | None]:
    """Right-padded ids, and where they are real (None if everywhere)."""
    lengths = [len(sequence) for sequence in sequences]
    longest = max(lengths)
    padded = torch.tensor([[*sequence, *[PAD] * (longest - len(sequence))] for sequence in sequences])
    if min(lengths) == longest:
        return padded, None
    return padded, torch.arange(longest) < torch.tensor(lengths)[:, None]


class BatchOrder:
    """Which examples make up the batch of each step.

    Examples are sorted by length, ties in an order of their own each epoch, and cut where the larger padded side of a
    batch would pass `tokens`. The cuts depend on lengths alone, so that every epoch has the same number of batches, and
    the batch of step s follows from (seed, s) without running through the steps before.
    """

    def __init__(self, examples: Sequence[Example], tokens: int, seed: int) -> None:
        if not examples:
            raise UsageError(
                asked="batches", expected="at least one example", got="none", remedy="choose a corpus that has pairs"
            )
        self.seed = seed
        self.source_lengths = np.array([len(example.source) for example in examples])
        self.target_lengths = np.array([len(example.target) + 1 for example in examples])
        order = np.lexsort((self.source_lengths, self.target_lengths))
        self.cuts = _cuts(self.source_lengths[order], self.target_lengths[order], tokens)

    @property
    def per_epoch(self) -> int:
        return len(self.cuts)

    def rows(self, step: int) -> list[int]:
        """The examples of the batch at `step`, counted from 0 over all epochs."""
        epoch, index = divmod(step, self.per_epoch)
        order, batches = self._epoch(epoch)
        start, end = self.cuts[batches[index]]
        return order[start:end].tolist()

    def _epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        return _shuffled(self, epoch)


@lru_cache(maxsize=4)
def _shuffled(order: BatchOrder, epoch: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.Generator(np.random.PCG64([order.seed, epoch]))
    ties = random.permutation(len(order.source_lengths))
    return np.lexsort((ties, order.source_lengths, order.target_lengths)), random.permutation(order.per_epoch)


def _cuts(source_lengths: np.ndarray, target_lengths: np.ndarray, tokens: int) -> list[tuple[int, int]]:
    """Consecutive ranges whose padded source and padded target both stay within `tokens`, or hold one example."""
    cuts: list[tuple[int, int]] = []
    start = longest = 0
    for end, lengths in enumerate(zip(source_lengths.tolist(), target_lengths.tolist(), strict=True)):
        longest = max(longest, *lengths)
        if end > start and longest * (end + 1 - start) > tokens:
            cuts.append((start, end))
            start, longest = end, max(lengths)
    return [*cuts, (start, len(source_lengths))]
