"""What the six experiments of the theory share: options that run, draw and describe themselves, and plain tables."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from attnworks.core.checks import integer

ExperimentRow = TypeVar("ExperimentRow")


class ResultTable:
    """A table as plain text; the first `left` columns hold words, the others numbers."""

    def __init__(self, title: str, *headings: str, left: int = 1) -> None:
        self.title, self.headings, self.left = title, headings, left
        self.rows: list[tuple[str, ...]] = []

    def add_row(self, *cells: str) -> None:
        self.rows.append(cells)


@dataclass(frozen=True, kw_only=True)
class TheoryExperiment(ABC, Generic[ExperimentRow]):
    """The options of an experiment, checked; a subclass is a frozen dataclass, and so are its rows."""

    def check_integers(self, **ranges: tuple[int, int]) -> None:
        """Refuse options that are not whole numbers in their ranges, ends included."""
        for name, (low, high) in ranges.items():
            integer(name, getattr(self, name), low, high)

    @abstractmethod
    def run(self) -> list[ExperimentRow]:
        """Compute all rows."""

    @abstractmethod
    def tables(self, rows: Sequence[ExperimentRow]) -> list[ResultTable]: ...

    @abstractmethod
    def sentences(self, rows: Sequence[ExperimentRow]) -> list[str]:
        """What the rows show, in words."""

    @abstractmethod
    def draw(self, rows: Sequence[ExperimentRow], folder: Path) -> None:
        """Write figure.svg and figure.png into `folder`."""


def three_digits(value: float | None) -> str:
    """Three digits, or a dash for None.

    >>> three_digits(0.12345), three_digits(2.5e-7), three_digits(None)
    ('0.123', '2e-07', '-')
    """
    if value is None:
        return "-"
    return f"{value:.3g}" if value == 0 or 1e-3 <= abs(value) < 1e4 else f"{value:.0e}"
