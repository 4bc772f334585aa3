"""Readings as aligned text, for a Python prompt."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from attnworks.exam.reading import Reading, Row


def are(sentences: int) -> str:
    """1 sentence is, 2 sentences are."""
    return "1 sentence is" if sentences == 1 else f"{sentences} sentences are"


def number(value: float) -> str:
    """About three digits, for people; - for what is no number."""
    if math.isnan(value):
        return "-"
    size = abs(value)
    if size == 0 or math.isinf(value):
        return f"{value:g}"
    if size < 1e-3 or size >= 1e6:
        return f"{value:.1e}"
    return f"{value:,.{3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0}f}"


class TextTable(str):
    """Text in aligned columns that a Python prompt shows as it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def reading_table(reading: Reading) -> TextTable:
    """A reading for people: layers down and heads across; along depth, or another single axis, with its interval.

    A third axis, such as the offset, is told by its strongest entry: `-1: 0.94`.
    """
    inner = reading.axes[1:] if reading.layered else reading.axes
    if len(inner) == 0 or (not reading.layered and len(inner) == 1):
        lines = _column(reading)
    elif reading.layered:
        lines = _grid(reading, inner)
    else:
        lines = _matrix(reading, inner)
    title = f"{reading.name} ({reading.kind}): {reading.words}"
    return TextTable("\n".join([title, *_aligned(lines)]))


def _column(reading: Reading) -> list[list[str]]:
    """One value a line, with the ends of its interval if it has one."""

    def entries(rows: tuple[Row, ...]) -> list[Tensor | str]:
        if reading.layered:
            return [row if isinstance(row, Tensor) else " ".join(row) for row in rows]
        return list(rows[0]) if reading.axes else [rows[0]] if isinstance(rows[0], Tensor) else list(rows[0])

    axis = reading.axes[0] if reading.axes else "value"
    values = entries(reading.value)
    ticks = _ticks(reading, axis, len(values))
    names = [reading.row_name(row) for row in range(len(values))] if reading.layered else ticks
    lines = [[axis, reading.name.partition(".")[2] or "value"]]
    if reading.interval is None:
        return lines + [[name, _cell(value)] for name, value in zip(names, values, strict=True)]
    lows, highs = (entries(end) for end in reading.interval)
    lines[0].append("95 % interval")
    for name, value, low, high in zip(names, values, lows, highs, strict=True):
        lines.append([name, _cell(value), f"{_cell(low)} to {_cell(high)}"])
    return lines


def _grid(reading: Reading, inner: tuple[str, ...]) -> list[list[str]]:
    widest = max((len(row) for row in reading.value), default=0)
    ticks = _ticks(reading, inner[0], widest)
    lines = [[f"{reading.axes[0]} \\ {inner[0]}", *ticks]]
    for index, row in enumerate(reading.value):
        cells = list(row) if isinstance(row, tuple) else [_strongest(reading, inner[1:], entry) for entry in row]
        lines.append([reading.row_name(index), *cells])
    return lines


def _matrix(reading: Reading, inner: tuple[str, ...]) -> list[list[str]]:
    (row,) = reading.value
    assert isinstance(row, Tensor)
    across = _ticks(reading, inner[1], row.shape[1])
    lines = [[f"{inner[0]} \\ {inner[1]}", *across]]
    for name, entries in zip(_ticks(reading, inner[0], len(row)), row, strict=True):
        lines.append([name, *(_strongest(reading, inner[2:], entry) for entry in entries)])
    return lines


def _strongest(reading: Reading, axes: tuple[str, ...], entry: Tensor) -> str:
    if not axes:
        return _cell(entry)
    if not entry.numel() or bool(entry.isnan().all()):
        return "-"
    where = torch.unravel_index(entry.nan_to_num(nan=-torch.inf).argmax(), entry.shape)
    names = [_ticks(reading, axis, size)[int(at)] for axis, size, at in zip(axes, entry.shape, where, strict=True)]
    return f"{','.join(names)}: {_cell(entry[where])}"


def _ticks(reading: Reading, axis: str, size: int) -> list[str]:
    labels = reading.ticks.get(axis, ())
    return [f"{label:g}" for label in labels] if len(labels) == size else [str(place) for place in range(size)]


def _cell(value: Tensor | str) -> str:
    return value if isinstance(value, str) else number(float(value))


def _aligned(lines: list[list[str]]) -> list[str]:
    widths = [0] * max(len(line) for line in lines)
    for line in lines:
        widths[: len(line)] = [max(width, len(cell)) for width, cell in zip(widths, line, strict=False)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=False)).rstrip() for line in lines]
