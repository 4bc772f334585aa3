"""Sentences whose attention maps are kept, for display."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attnworks.exam.examination import Pin
from attnworks.traces.layer import LayerTrace, Slot
from attnworks.traces.maps import maps_of
from attnworks.traces.subject import Examinee, Spectator
from attnworks.traces.text import ExamText

EASY, MOST = 32, 128
"""Tokens that are easy to look at, and beyond which no sentence is kept unasked."""


class KeepMaps(Spectator):
    """Keeps the maps of the first sentence of a batch."""

    def __init__(self) -> None:
        self.maps: dict[Slot, Tensor] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        self.maps[trace.slot] = torch.cat([piece.P for piece in maps_of(trace)], 1)[0]
        return None


def pin_maps(examinee: Examinee, text: ExamText) -> Pin:
    """The attention maps of a text of one sentence, all of them."""
    batch, _ = text.batch(0)
    keep = KeepMaps()
    with torch.inference_mode():
        examinee.subject.run(batch.to(next(examinee.subject.model.parameters()).device), keep)
    return pin_of(examinee, text, keep)


def pin_of(examinee: Examinee, text: ExamText, keep: KeepMaps) -> Pin:
    """Maps that were kept of the first batch, with the tokens of its first sentence."""
    row = text.batches[0][0]
    spelled = [
        tuple(spell(token) for token in rows[row].ids) for spell, rows in zip(examinee.spell, text.sides, strict=False)
    ]
    return Pin.of(spelled[0], keep.maps, spelled[1] if len(spelled) > 1 else None)


def one_sentence(text: ExamText) -> list[ExamText]:
    """The longest sentence that is easy to look at, else the shortest; none if that is very long."""
    lengths = [max(len(row) for row in rows) for rows in zip(*text.sides, strict=True)]
    easy = [length for length in lengths if length <= EASY]
    chosen = max(easy) if easy else min(lengths)
    return [replace(text, batches=[[lengths.index(chosen)]])] if chosen <= MOST else []
