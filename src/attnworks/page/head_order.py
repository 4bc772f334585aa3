"""The order of heads by how much they tell, for pages that cannot hold the maps of all."""

from __future__ import annotations

import math

from torch import Tensor

from attnworks.exam.examination import Examination
from attnworks.exam.measures.structure import NONE
from attnworks.exam.reading import Reading

Head = tuple[str, int]
"""Slot and number: ("enc.3", 7)."""
HEADS = ("layer", "head")
RULE = (
    "the heads that matter most to the loss, where that was examined; else those whose role is furthest above its "
    "baseline or whose structured form explains most"
)


def by_telling(exam: Examination) -> dict[Head, float]:
    """Head -> how much it tells, from 0 to 1; heads that nothing is known of are not there.

    The change of the loss without the head, or else the gradient of its gate, as a share of the largest of all heads.
    Without both, the larger of (score - baseline) / (1 - baseline) of its role and the share that its structured form
    explains.
    """
    for name in ("ablation.change", "importance.gradient"):
        if found := {head: abs(value) for head, value in _heads(exam, name).items()}:
            largest = max(found.values()) or 1.0
            return {head: value / largest for head, value in found.items()}
    score, baseline = _heads(exam, "roles.score"), _heads(exam, "roles.baseline")
    gains = {
        head: (score[head] - least) / (1 - least) for head, least in baseline.items() if head in score and least < 1
    }
    formed = _with_form(exam)
    fits = {head: share for head, share in _heads(exam, "structure.explained").items() if head in formed}
    return {head: max(gains.get(head, 0.0), fits.get(head, 0.0), 0.0) for head in gains | fits}


def _with_form(exam: Examination) -> set[Head]:
    """Heads that have a structured form."""
    return {
        (reading.row_name(layer), head)
        for reading in exam.readings.of("structure.form")
        for layer, row in enumerate(reading.value)
        if isinstance(row, tuple)
        for head, form in enumerate(row)
        if form != NONE
    }


def _heads(exam: Examination, name: str) -> dict[Head, float]:
    return {head: value for reading in exam.readings.of(name) for head, value in _numbers(reading)}


def _numbers(reading: Reading) -> list[tuple[Head, float]]:
    if reading.axes != HEADS:
        return []
    rows = [
        (reading.row_name(layer), row)
        for layer, row in enumerate(reading.value)
        if isinstance(row, Tensor) and row.dim() == 1
    ]
    return [
        ((slot, head), value) for slot, row in rows for head, value in enumerate(row.tolist()) if math.isfinite(value)
    ]
