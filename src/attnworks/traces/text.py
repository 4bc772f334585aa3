"""The text of an examination: passages read into rows, and rows cut into batches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.text.passages import Passage
from attnworks.text.tokenizers import usable
from attnworks.text.tokens import TextBatch, TokenRow, collate_tokens, count_rarity, text_batches
from attnworks.traces.subject import Examinee

WRITTEN_AT_ONCE = 32


@dataclass(frozen=True, eq=False)
class ExamText:
    """Rows of both sides, their rarities over the whole text, and which rows make up each batch.

    kept    the number of every row's passage among the `passages` that were given
    """

    sides: tuple[Sequence[TokenRow], ...]
    pads: tuple[int, ...]
    rarities: tuple[Mapping[int, float], ...]
    batches: Sequence[Sequence[int]]
    kept: Sequence[int]
    passages: int
    written: int

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

    def batch(self, number: int) -> tuple[TextBatch, Tensor]:
        """One batch, and the numbers of its passages."""
        chosen = self.batches[number]
        tokens = [
            collate_tokens([rows[index] for index in chosen], pad, rarity)
            for rows, pad, rarity in zip(self.sides, self.pads, self.rarities, strict=True)
        ]
        return TextBatch(*tokens), torch.tensor([self.kept[index] for index in chosen])

    def part(self, some: slice) -> ExamText:
        """Some of all rows in the order of batches, put together into fewer batches that are as large as these."""
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


def read_text(examinee: Examinee, passages: Sequence[Passage], tokens_per_batch: int) -> ExamText:
    """Tokens of every passage; where a target is needed and missing, the model writes it."""
    sides: list[list[TokenRow]] = [[examinee.source.read(passage.source) for passage in passages]]
    pads, written = [examinee.source.pad_id], 0
    if examinee.target is not None:
        pads.append(examinee.target.pad_id)
        missing = [index for index, passage in enumerate(passages) if passage.target is None]
        targets = {
            index: examinee.target.read(passage.target)
            for index, passage in enumerate(passages)
            if passage.target is not None
        }
        if examinee.write is not None:
            for start in range(0, len(missing), WRITTEN_AT_ONCE):
                chosen = missing[start : start + WRITTEN_AT_ONCE]
                written_now = examinee.write(examinee.subject.model, [sides[0][index] for index in chosen])
                targets |= zip(chosen, written_now, strict=True)
        sides.append([targets[index] for index in range(len(passages))])
        written = len(missing)
    for rows, words in zip(sides, examinee.words, strict=False):
        check_ids(rows, words, examinee.subject.name)
    kept, _ = usable(*sides)
    sides = [[rows[index] for index in kept] for rows in sides]
    batches = text_batches(*sides, tokens_per_batch=tokens_per_batch)
    rarities = tuple(count_rarity(rows) for rows in sides)
    return ExamText(tuple(sides), tuple(pads), rarities, batches, kept, len(passages), written)


def check_ids(rows: Sequence[TokenRow], words: int | None, name: str) -> None:
    largest = max((token for row in rows for token in row.ids), default=0)
    if words is not None and largest >= words:
        raise UsageError(
            asked=f"tokens for {name}",
            expected=f"ids below {words:,}, the rows of its embedding",
            got=f"{largest:,}",
            remedy="use the tokenizer that belongs to the model",
        )
