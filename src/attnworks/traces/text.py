"""The text that a model reads: rows of tokens of every passage, and the batches that they are cut into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnworks.text.tokenizers import usable
from attnworks.text.tokens import Batch, TokenRow, collate, count_rarity, exam_batches

EXAM_BATCH_TOKENS = 4096
"""Padded tokens of a batch of an examination, unless another number is given."""


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """Rows of both sides, their rarities over the whole text, and which rows make up each batch.

    sides      rows of the source, or only, side, and of the target
    pads       the id of padding of each side
    batches    the numbers of the rows of each batch
    kept       the number of every row's passage among the `passages` that were given
    written    how many targets the model wrote itself
    """

    sides: tuple[Sequence[TokenRow], ...]
    pads: tuple[int, ...]
    rarities: tuple[Mapping[int, float], ...]
    batches: Sequence[Sequence[int]]
    kept: Sequence[int]
    passages: int
    written: int

    @classmethod
    def of_rows(
        cls, sides: Sequence[Sequence[TokenRow]], pads: Sequence[int], *, batch_tokens: int, written: int
    ) -> TokenizedText:
        """Rows of each side with two tokens of text or more, in batches of about `batch_tokens` padded tokens."""
        passages, (kept, _) = len(sides[0]), usable(*sides)
        sides = [[rows[index] for index in kept] for rows in sides]
        batches = exam_batches(*sides, batch_tokens=batch_tokens)
        return cls(tuple(sides), tuple(pads), tuple(map(count_rarity, sides)), batches, kept, passages, written)

    @classmethod
    def of_one(cls, sides: Sequence[Sequence[TokenRow]], pads: Sequence[int], *, written: int) -> TokenizedText:
        """One row of each side, however short, in a batch of its own."""
        return cls(tuple(sides), tuple(pads), tuple(map(count_rarity, sides)), [[0]], [0], 1, written)

    @property
    def dropped(self) -> int:
        return self.passages - len(self.kept)

    @property
    def lengths(self) -> list[int]:
        """Tokens of the longer side of every text."""
        return [max(map(len, sides)) for sides in zip(*self.sides, strict=True)]

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def batch(self, number: int) -> tuple[Batch, Tensor]:
        """One batch, and the numbers of its passages."""
        chosen = self.batches[number]
        tokens = [
            collate([rows[index] for index in chosen], pad, rarity)
            for rows, pad, rarity in zip(self.sides, self.pads, self.rarities, strict=True)
        ]
        rows = torch.tensor([self.kept[index] for index in chosen])
        return Batch(tokens[0], tokens[1] if len(tokens) > 1 else None, rows), rows

    def part(self, some: slice) -> TokenizedText:
        """A slice of all rows in the order of batches, put together into batches that are as large as these."""
        in_order = [(index, len(rows)) for rows in self.batches for index in rows]
        batches: list[list[int]] = [[]]
        for index, size in in_order[some]:
            if len(batches[-1]) >= size:
                batches.append([])
            batches[-1].append(index)
        return replace(self, batches=[batch for batch in batches if batch])

    def about(self) -> dict[str, Any]:
        return {
            "sentences": len(self.sides[0]),
            "tokens": sum(len(row) for rows in self.sides for row in rows),
            "longest": self.longest,
            "dropped": self.dropped,
            "written_by_the_model": self.written,
        }
