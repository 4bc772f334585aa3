"""Sentences whose attention maps are kept, for display."""

from __future__ import annotations

import torch
from torch import Tensor

from attnworks.exam.examination import Pin
from attnworks.traces.examinee import Examinee
from attnworks.traces.layer import LayerTrace, Slot
from attnworks.traces.maps import maps_of
from attnworks.traces.subject import Spectator
from attnworks.traces.text import ExamText


class _KeepMaps(Spectator):
    def __init__(self) -> None:
        self.maps: dict[Slot, Tensor] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        self.maps[trace.slot] = torch.cat([piece.P for piece in maps_of(trace)], 1)[0]
        return None


def pin_maps(examinee: Examinee, text: ExamText) -> Pin:
    """The attention maps of one sentence, all of them."""
    batch, _ = text.batch(0)
    keep = _KeepMaps()
    with torch.inference_mode():
        examinee.subject.run(batch.to(next(examinee.subject.model.parameters()).device), keep)
    spelled = [
        tuple(spell(token) for token in rows[0].ids) for spell, rows in zip(examinee.spell, text.sides, strict=False)
    ]
    return Pin.of(spelled[0], keep.maps, spelled[1] if len(spelled) > 1 else None)
