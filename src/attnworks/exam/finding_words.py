"""The readings of a model as findings use them, and how findings name heads and stacks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from attnworks.exam.reading import Reading, Readings
from attnworks.traces.layer import Kind, Slot

NAMED = 4
"""Heads that one finding names."""
STACKS = {"encoder": "encoder", "decoder": "decoder", "cross": "cross-attention"}


class HeadValue(NamedTuple):
    """A head and its value in some reading."""

    slot: Slot
    head: int
    value: float

    @property
    def at(self) -> tuple[Slot, int]:
        return self.slot, self.head

    @property
    def full_name(self) -> str:
        return f"{self.slot}.{self.head}"


class ModelReadings:
    """The readings of a model, and how its heads are called."""

    def __init__(self, readings: Readings) -> None:
        self.readings, self.several = readings, len(readings.kinds()) > 1

    def heads(self, name: str, end: int | None = None) -> list[HeadValue]:
        """Every head that has a number in this reading, or (0, 1) at this end of its interval."""
        return [
            HeadValue(Slot(reading.kind, layer), head, value)
            for reading in self.readings.of(name)
            for layer, row in enumerate(_values(reading, end))
            if isinstance(row, Tensor)
            for head, value in enumerate(row.tolist())
            if math.isfinite(value)
        ]

    def at(self, name: str, end: int | None = None) -> dict[tuple[Slot, int], float]:
        """(slot, head) -> value, or one end of its interval."""
        return {head.at: head.value for head in self.heads(name, end)}

    def curves(self, name: str) -> dict[Kind, dict[int, float]]:
        """Of every stack: depth (or layer, or length) -> value, where there is a number."""
        found: dict[Kind, dict[int, float]] = {}
        for reading in self.readings.of(name):
            rows = [row for row in reading.value if isinstance(row, Tensor)]
            if len(reading.axes) == 1 and rows:
                values = torch.stack(rows).flatten() if reading.layered else rows[0]
                found[reading.kind] = {at: value for at, value in enumerate(values.tolist()) if math.isfinite(value)}
        return found

    def labels(self, name: str) -> list[tuple[Slot, int, str]]:
        return [
            (Slot(reading.kind, layer), head, label)
            for reading in self.readings.of(name)
            for layer, row in enumerate(reading.value)
            if isinstance(row, tuple)
            for head, label in enumerate(row)
        ]

    def name_of(self, head: HeadValue) -> str:
        return head.full_name if self.several else f"{head.slot.layer}.{head.head}"

    def stack(self, kind: Kind) -> str:
        """The name of a stack before "layer 3" or "depth 3"; nothing where there is only one."""
        return f"{STACKS[kind]} " if self.several else ""

    def in_stacks(self, kinds: Iterable[Kind]) -> str:
        """ " in the encoder and the decoder"; nothing where there is only one stack."""
        return f" in {joined_with_and([f'the {STACKS[kind]}' for kind in kinds])}" if self.several else ""


def _values(reading: Reading, end: int | None) -> tuple[Tensor | tuple[str, ...], ...]:
    if end is None:
        return reading.value
    return () if reading.interval is None else reading.interval[end]


def whole_percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def counted_heads(model: ModelReadings, heads: list[HeadValue], of: int | None = None) -> str:
    """head 0.2; 3 heads; 3 of 8 heads."""
    if len(heads) == 1:
        return f"head {model.name_of(heads[0])}"
    return f"{len(heads)} heads" if of is None else f"{len(heads)} of {of} heads"


def verb_for(verb: str, heads: list[HeadValue]) -> str:
    """As one head, or as several do it."""
    return verb if len(heads) == 1 else {"has": "have", "is": "are", "does": "do"}.get(verb, verb.removesuffix("s"))


def its_or_their(heads: list[HeadValue]) -> str:
    return "its" if len(heads) == 1 else "their"


def joined_with_and(parts: list[str]) -> str:
    """a, b and c."""
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"


def head_names(heads: list[HeadValue]) -> tuple[str, ...]:
    return tuple(head.full_name for head in heads)


def listed_heads(model: ModelReadings, heads: list[HeadValue]) -> str:
    names = [model.name_of(head) for head in heads[:NAMED]]
    return ", ".join(names) + (", ..." if len(heads) > NAMED else "")
