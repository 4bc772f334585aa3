"""The results of an experiment of the theory, shown to people."""

from __future__ import annotations

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

from attnworks.theory.experiments.contract import ResultTable
from attnworks.theory.experiments.results import TheoryResults


def theory_shown(results: TheoryResults) -> Group:
    """Tables, and what they show in sentences."""
    experiment, rows = results.experiment, results.rows
    return Group(*map(_rich_table, experiment.tables(rows)), *map(Text, experiment.sentences(rows)))


def _rich_table(table: ResultTable) -> Table:
    shown = Table(box=SIMPLE_HEAD, pad_edge=False, title=table.title, title_justify="left")
    for place, heading in enumerate(table.headings):
        shown.add_column(heading, justify="left" if place < table.left else "right")
    for cells in table.rows:
        shown.add_row(*cells)
    return shown
