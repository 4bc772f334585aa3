"""Notes on readings that no sentence counts for: which, in which layers, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attnworks.exam.measure import Measure
from attnworks.exam.reading import Reading, Readings
from attnworks.traces.layer import Slot

NAMED = 4
"""Layers that a note names."""
UNKNOWN = "no sentence has a value for it"


def missing_notes(measure: Measure, readings: Readings) -> Iterator[str]:
    """One note for each reason. Readings that only some layers lack are noted where the reason is known."""
    names = [declared.name for declared in measure.declares() if readings.of(declared.name)]
    by_reason: dict[tuple[str, tuple[Slot, ...]], list[str]] = {}
    layers: dict[str, list[Slot]] = {}
    for name in names:
        layers[name] = [slot for reading in readings.of(name) for slot in _slots(reading)]
        empty = [slot for reading in readings.of(name) for slot in _slots(reading, empty=True)]
        known = [measure.reasons.get(slot) for slot in empty]
        for reason in dict.fromkeys(known):
            slots = [slot for slot, other in zip(empty, known, strict=True) if other == reason]
            words = measure.why_missing(name, slots, readings) if reason is None else reason
            if words is None and len(slots) == len(layers[name]):
                words = UNKNOWN
            if words:
                by_reason.setdefault((words, tuple(slots)), []).append(name)
    for (words, slots), found in by_reason.items():
        what = f"{measure.name} was" if found == names and len(names) > 1 else _were(found)
        where = "" if all(len(slots) == len(layers[name]) for name in found) else f" in {_listed(slots)}"
        yield f"{what} not computed{where}: {words}"


def _slots(reading: Reading, *, empty: bool = False) -> list[Slot]:
    """The layers with heads of a reading, or those for which no sentence counted."""
    if reading.count is None:
        return []
    rows = enumerate(reading.count)
    return [Slot(reading.kind, row) for row, count in rows if count.numel() and not (empty and bool(count.any()))]


def _were(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'was' if len(names) == 1 else 'were'}"


def _listed(slots: Sequence[Slot]) -> str:
    more = len(slots) - NAMED
    return ", ".join(map(str, slots[:NAMED])) + (f" and {more} more layer{'s' * (more > 1)}" if more > 0 else "")
