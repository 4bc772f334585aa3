"""The results of an experiment of the theory, shown to people; and tables that fit any terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group
from rich.table import Table
from rich.text import Text

from attnworks.theory.experiments.contract import ResultTable
from attnworks.theory.experiments.results import TheoryResults

_GAP, _EDGES = 3, 2
"""Spaces between two columns, and at both ends of a row."""


def theory_shown(results: TheoryResults) -> Group:
    """Tables, and what they show in sentences."""
    experiment, rows = results.experiment, results.rows
    return Group(*map(FittingTable, experiment.tables(rows)), *map(Text, experiment.sentences(rows)))


class FittingTable:
    """A table that is shown in several parts, each with its first columns, where the terminal is too narrow for all.

    Words in the first columns are broken there if need be; numbers never are.
    """

    def __init__(self, table: ResultTable) -> None:
        self.table = table

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table]:
        title = self.table.title
        for columns in self._parts(options.max_width):
            yield self._part(columns, title, options.max_width)
            title = ""

    def _parts(self, width: int) -> Iterator[list[int]]:
        """The columns of each part."""
        first = max(1, self.table.left)
        taken = _EDGES - _GAP + sum(self._most(column, width) + _GAP for column in range(first))
        part, used = [*range(first)], taken
        for column in range(first, len(self.table.headings)):
            needed = self._width(column) + _GAP
            if used + needed > width and len(part) > first:
                yield part
                part, used = [*range(first)], taken
            part.append(column)
            used += needed
        yield part

    def _width(self, column: int) -> int:
        """Of the longest word of the heading and the longest cell."""
        words = self.table.headings[column].split()
        return max(map(cell_len, (*words, *(row[column] for row in self.table.rows))), default=0)

    def _whole(self, column: int) -> int:
        """Of the heading in one line and the longest cell."""
        return max(self._width(column), cell_len(self.table.headings[column]))

    def _most(self, column: int, width: int) -> int:
        """The largest width of one of the first columns: what the others leave, if that is enough for its words."""
        first = max(1, self.table.left)
        others = sum(self._width(other) + _GAP for other in range(first, len(self.table.headings)))
        left = (width - _EDGES + _GAP - others) // first - _GAP
        words = " ".join((self.table.headings[column], *(row[column] for row in self.table.rows))).split()
        enough = max(map(cell_len, words), default=0) <= left
        return min(self._whole(column), left if enough else width // (first + 2))

    def _part(self, columns: Sequence[int], title: str, width: int) -> Table:
        fits = _EDGES - _GAP + sum(self._whole(column) + _GAP for column in columns) <= width
        shown = Table(box=SIMPLE_HEAD, pad_edge=False, title=Text(title) if title else None, title_justify="left")
        for column in columns:
            narrow = self._width(column) if column >= max(1, self.table.left) else self._most(column, width)
            justify = "left" if column < self.table.left else "right"
            shown.add_column(
                self.table.headings[column], justify=justify, overflow="fold", width=None if fits else narrow
            )
        for row in self.table.rows:
            shown.add_row(*(Text(row[column]) for column in columns))
        return shown
