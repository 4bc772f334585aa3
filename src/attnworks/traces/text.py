"""The text that a model reads: rows of tokens of every passage, and the batches that they are cut into."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnworks.core.display import counted
from attnworks.core.errors import UsageError
from attnworks.text.passages import Passage
from attnworks.text.tokenizers import TextReader, usable
from attnworks.text.tokens import Batch, TokenRow, collate, count_rarity, exam_batches

EXAM_BATCH_TOKENS = 4096
"""Padded tokens of a batch of an examination, unless another number is given."""
TARGETS_WRITTEN_AT_ONCE = 32


@dataclass(frozen=True, eq=False)
class TokenizedText:
    """Rows of both sides, their rarities over the whole text, and which rows make up each batch.

    sides      rows of the source, or only, side, and of the target
    pads       the id of padding of each side
    batches    the numbers of the rows of each batch
    kept       the number of every row's passage among the `passages` that were given; a passage that is too long for
               the model has several rows
    written    how many targets the model wrote itself
    positions  the number of tokens that the model reads at once; 0 if nothing limits it
    """

    sides: tuple[Sequence[TokenRow], ...]
    pads: tuple[int, ...]
    rarities: tuple[Mapping[int, float], ...]
    batches: Sequence[Sequence[int]]
    kept: Sequence[int]
    passages: int
    written: int
    positions: int = 0

    @classmethod
    def of_rows(
        cls,
        sides: Sequence[Sequence[TokenRow]],
        pads: Sequence[int],
        *,
        numbers: Sequence[int] | None = None,
        batch_tokens: int,
        written: int,
        positions: int | None = None,
    ) -> TokenizedText:
        """Rows of each side with two tokens of text or more, in batches of about `batch_tokens` padded tokens.

        numbers    the number of every row's passage, from 0, the last row being one of the last passage; None for one
                   row to a passage
        """
        rows_kept, _ = usable(*sides)
        numbers = range(len(sides[0])) if numbers is None else numbers
        sides = [[rows[index] for index in rows_kept] for rows in sides]
        batches = exam_batches(*sides, batch_tokens=batch_tokens)
        rarities, kept = tuple(map(count_rarity, sides)), [numbers[index] for index in rows_kept]
        return cls(tuple(sides), tuple(pads), rarities, batches, kept, numbers[-1] + 1, written, positions or 0)

    @classmethod
    def of_one(cls, sides: Sequence[Sequence[TokenRow]], pads: Sequence[int], *, written: int) -> TokenizedText:
        """One row of each side, however short, in a batch of its own."""
        return cls(tuple(sides), tuple(pads), tuple(map(count_rarity, sides)), [[0]], [0], 1, written)

    @property
    def dropped(self) -> int:
        return self.passages - len({*self.kept})

    @property
    def tokens(self) -> int:
        """The number of tokens on all sides."""
        return sum(len(row) for rows in self.sides for row in rows)

    @property
    def split(self) -> tuple[int, int]:
        """The number of passages that have several rows, as they are too long for the model, and of these rows."""
        several = [rows for rows in Counter(self.kept).values() if rows > 1]
        return len(several), sum(several)

    @property
    def split_note(self) -> str | None:
        """That passages were split, in words; None if none was."""
        texts, windows = self.split
        longer = f"{counted(texts, 'text')} {'is' if texts == 1 else 'are'} longer than the"
        note = f"{longer} {self.positions:,} tokens that the model reads: split into {windows:,} windows"
        return note if texts else None

    def check_whole(self, asked: str) -> None:
        """Refuse, for what is asked, passages that were split."""
        if texts := self.split[0]:
            expected = f"at most {self.positions:,} tokens, the positions of the model"
            got, remedy = f"{counted(texts, 'text')} with more", f"cut to {self.positions:,} tokens or fewer"
            raise UsageError(asked, expected, got, remedy)

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
        joined = sum(row.side is not None for row in self.sides[0])
        return {
            "sentences": len(self.sides[0]),
            "tokens": self.tokens,
            "longest": self.longest,
            "dropped": self.dropped,
            "split": self.split[0],
            "written_by_the_model": self.written,
            **({"joined_pairs": joined} if joined else {}),
        }


def source_rows(reader: TextReader, passages: Sequence[Passage], *, pairs: bool) -> tuple[list[TokenRow], list[int]]:
    """Rows of all sources, and the number of the passage of every row.

    A source that is too long for the model has several rows: see `TextReader.windows`. With `pairs`, it must not be too
    long if its target is given, as nobody knows which part of the target belongs to which row. The same holds for two
    texts that are read as one sequence.
    """
    found = [
        [reader.read_passage(passage)]
        if reader.joins_pairs or (pairs and passage.target is not None)
        else reader.windows(passage.source)
        for passage in passages
    ]
    return [row for rows in found for row in rows], [number for number, rows in enumerate(found) for _ in rows]


def target_rows(
    reader: TextReader,
    passages: Sequence[Passage],
    sources: Sequence[TokenRow],
    write: Callable[[Sequence[TokenRow]], Sequence[TokenRow]],
) -> tuple[list[TokenRow], int]:
    """Rows of all targets; those that passages lack are written from the sources, and counted."""
    targets = [None if passage.target is None else reader.read(passage.target) for passage in passages]
    missing = [index for index, row in enumerate(targets) if row is None]
    for start in range(0, len(missing), TARGETS_WRITTEN_AT_ONCE):
        chosen = missing[start : start + TARGETS_WRITTEN_AT_ONCE]
        for index, row in zip(chosen, write([sources[index] for index in chosen]), strict=True):
            targets[index] = row
    return [row for row in targets if row is not None], len(missing)
