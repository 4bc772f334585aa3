"""The text that a model reads: passages read into rows, rows cut into batches, and the loss on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.models.modes import evaluating
from attnworks.text.passages import Passage
from attnworks.text.tokenizers import usable
from attnworks.text.tokens import TextBatch, TokenRow, collate_tokens, count_rarity, text_batches
from attnworks.traces.subject import Examinee, Spectator, Subject
from attnworks.training.objectives.contract import Outputs, TextObjective

TOKENS_PER_BATCH = 4096
"""Padded tokens of a batch of an examination, unless another number is asked for."""

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


@dataclass(frozen=True, eq=False)
class Judge:
    """Judges models on a text.

    original    the model before any change, from which objectives that are relative measure distance
    """

    original: Subject
    objective: TextObjective
    text: ExamText

    def losses(
        self, subject: Subject, batch: TextBatch, rows: Tensor, spectator: Spectator | None = None
    ) -> Float[Tensor, " b"]:
        """One loss for each sentence of a batch."""
        outputs = self._outputs(subject, batch, spectator)
        if not self.objective.relative:
            return self.objective.losses(outputs, batch, rows)
        with evaluating(self.original.model):
            whole = self._outputs(self.original, batch)
        return self.objective.distance(outputs, Outputs(whole.hidden.clone()), batch, rows)

    def mean(
        self, subject: Subject | None = None, spectator: Spectator | None = None, *, some: slice = slice(None)
    ) -> float:
        """Over all sentences, or some of them; by default of the original model."""
        subject = self.original if subject is None else subject
        device = next(subject.model.parameters()).device
        total, sentences = 0.0, 0
        with evaluating(subject.model):
            for batch, rows in self.batches(some):
                losses = self.losses(subject, batch.to(device), rows, spectator)
                total, sentences = total + float(losses.double().sum()), sentences + len(losses)
        return total / max(sentences, 1)

    def batches(self, some: slice = slice(None)) -> Iterator[tuple[TextBatch, Tensor]]:
        """All sentences, or some in the order of batches, which is that of lengths: some are of all lengths."""
        text = self.text if some == slice(None) else self.text.part(some)
        for number in range(len(text.batches)):
            yield text.batch(number)

    def _outputs(self, subject: Subject, batch: TextBatch, spectator: Spectator | None = None) -> Outputs:
        able = subject.abilities
        scores = self.objective.reads_scores and (able.vocabulary or able.classes is not None)
        return subject.run(self.objective.prepare(batch), spectator, scores=scores)
