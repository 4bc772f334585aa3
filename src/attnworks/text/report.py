"""What was read and what was left out, and why."""

from __future__ import annotations

from dataclasses import dataclass, field

from attnworks.text.pair import Pair
from attnworks.text.words import words

MOST_WORDS = 1_000
"""A side with more words than this is no sentence but an accident."""
FEW = 5
"""How many numbers are remembered per reason."""


@dataclass(frozen=True)
class Report:
    """The usable pairs and the lines (rows, entries) that were left out.

    read         usable pairs
    bad          how many were left out
    reasons      reason -> how many
    first_lines  reason -> the numbers of the first few, from 1, where they are numbered
    unit         what is counted: line, row or entry
    """

    read: int
    bad: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    first_lines: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unit: str = "line"

    def summary(self) -> str:
        """For people, e.g. `151,089 pairs; 3 lines left out: no tab (lines 7, 19), empty side (line 40)`."""
        pairs = _count(self.read, "pair")
        return f"{pairs}; {self.left_out()}" if self.bad else pairs

    def left_out(self) -> str:
        """The second half of the summary."""
        reasons = ", ".join(f"{reason} ({self._where(reason)})" for reason in self.reasons)
        return f"{_count(self.bad, self.unit)} left out: {reasons}" if self.bad else f"nothing but blank {self.unit}s"

    def _where(self, reason: str) -> str:
        count, numbers = self.reasons[reason], self.first_lines.get(reason, ())
        if not numbers:
            return f"{count:,}"
        more = f" and {count - len(numbers):,} more" if count > len(numbers) else ""
        return f"{_plural(count, self.unit)} {', '.join(map(str, numbers))}{more}"


class Tally:
    """Turns texts into pairs and keeps count; its `report` is what it counted so far."""

    def __init__(self, unit: str = "line") -> None:
        self._unit = unit
        self._read = 0
        self._reasons: dict[str, int] = {}
        self._first: dict[str, tuple[int, ...]] = {}

    def pair(self, source: str, target: str, number: int | None = None) -> Pair | None:
        """The pair of two texts, or None (and a reason counted) if it is unusable."""
        if "\0" in source or "\0" in target:
            return self.leave_out("NUL byte", number)
        pair = Pair(words(source), words(target))
        if not pair.source or not pair.target:
            return self.leave_out("empty side", number)
        if max(len(pair.source), len(pair.target)) > MOST_WORDS:
            return self.leave_out(f"more than {MOST_WORDS:,} words", number)
        self._read += 1
        return pair

    def leave_out(self, reason: str, number: int | None = None) -> None:
        """Count something unusable, with its number where it has one."""
        self._reasons[reason] = self._reasons.get(reason, 0) + 1
        first = self._first.get(reason, ())
        if number is not None and len(first) < FEW:
            self._first[reason] = (*first, number)

    def report(self) -> Report:
        return Report(self._read, sum(self._reasons.values()), dict(self._reasons), dict(self._first), self._unit)


def _count(count: int, unit: str) -> str:
    return f"{count:,} {_plural(count, unit)}"


def _plural(count: int, unit: str) -> str:
    if count == 1:
        return unit
    return f"{unit[:-1]}ies" if unit.endswith("y") else f"{unit}s"
