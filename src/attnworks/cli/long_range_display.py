"""What `attnworks experiment long-range` shows: a bar while it runs, and the table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from attnworks.cli.console import console, print_json, progress_bar, progress_console
from attnworks.cli.train_display import stop_on_signal
from attnworks.studies.long_range import default_mechanisms, long_range_report, run_long_range
from attnworks.studies.long_range_cell import Cell, CellProgress, LongRangeSettings

MEGABYTE = 2**20


def show_long_range(
    folder: Path,
    settings: LongRangeSettings,
    tasks: Sequence[str],
    mechanisms: Sequence[str] | None,
    seeds: Sequence[int],
    as_json: bool,
) -> None:
    mechanisms = mechanisms or default_mechanisms(settings.length)
    with (
        stop_on_signal() as stopped,
        LongRangeDisplay(len(tasks) * len(mechanisms) * len(seeds), quiet=as_json) as display,
    ):
        cells = run_long_range(
            folder, settings, tasks, mechanisms, seeds, tell=display, should_stop=lambda: bool(stopped)
        )
    if as_json:
        print_json(long_range_report(settings, cells))
    elif cells:
        _print_table(settings, cells)
    if stopped:
        progress_console().print("Stopped; run the same command again to continue.")
        sys.exit(130)


class LongRangeDisplay:
    """A bar over all cells with the time left on a terminal; and a line for each cell that is done."""

    def __init__(self, cells: int, *, quiet: bool) -> None:
        self.cells, self.quiet, self.finished = cells, quiet, 0
        self.screen = progress_console()
        self.bar = progress_bar("cell", self.screen, shown=not quiet and self.screen.is_terminal)
        self.task = self.bar.add_task("", total=cells)

    def __enter__(self) -> LongRangeDisplay:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, event: CellProgress | Cell) -> None:
        if isinstance(event, CellProgress):
            text = f"{event.task}, {event.mechanism}: step {event.step:,}, length {event.length}, loss {event.loss:.3f}"
            self.bar.update(self.task, completed=self.finished + event.done, description=escape(text))
            return
        self.finished += 1
        self.bar.update(self.task, completed=self.finished)
        if not self.quiet:
            self.screen.print(
                f"{self.finished} of {self.cells}: {event.task}, {event.mechanism}, seed {event.seed}: "
                f"{_percent([event])} right in {event.seconds:.0f} s",
                markup=False,
            )


def _print_table(settings: LongRangeSettings, cells: Sequence[Cell]) -> None:
    tasks, mechanisms = (list(dict.fromkeys(getattr(cell, name) for cell in cells)) for name in ("task", "mechanism"))
    by_place = {
        (task, mechanism): [cell for cell in cells if (cell.task, cell.mechanism) == (task, mechanism)]
        for task in tasks
        for mechanism in mechanisms
    }
    basis = "dense" if "dense" in mechanisms else mechanisms[0]
    table = Table(box=SIMPLE_HEAD)
    table.add_column("mechanism", overflow="fold")
    for task in tasks:
        table.add_column(task, justify="right")
        table.add_column("time", justify="right")
        table.add_column("memory", justify="right")
    for mechanism in mechanisms:
        row: list[str] = []
        for task in tasks:
            found, base = by_place[task, mechanism], by_place[task, basis]
            row += [_percent(found), _ratio(found, base), _megabytes(found)] if found else ["-"] * 3
        table.add_row(escape(mechanism), *row)
    table.add_row("chance", *(text for task in tasks for text in (_chance(cells, task), "", "")))
    seeds = len({cell.seed for cell in cells})
    spread = "95 % interval over held-out sequences" if seeds == 1 else f"mean, and range over {seeds} seeds"
    console().print(
        f"{settings.length} tokens; accuracy in % ({spread}), time of a training step relative to {escape(basis)}, "
        "its peak memory in MB",
        table,
    )


def _percent(cells: Sequence[Cell]) -> str:
    accuracies = [cell.accuracy for cell in cells]
    low, high = (cells[0].low, cells[0].high) if len(cells) == 1 else (min(accuracies), max(accuracies))
    return f"{100 * fmean(accuracies):.1f} ({100 * low:.0f}-{100 * high:.0f})"


def _ratio(cells: Sequence[Cell], base: Sequence[Cell]) -> str:
    took, basis = _seconds(cells), _seconds(base)
    return "-" if took is None or basis is None else f"{took / basis:.2f}"


def _seconds(cells: Sequence[Cell]) -> float | None:
    known = [cell.seconds_per_step for cell in cells if cell.seconds_per_step is not None]
    return fmean(known) if known else None


def _megabytes(cells: Sequence[Cell]) -> str:
    return f"{max(cell.step_bytes for cell in cells) / MEGABYTE:.0f}"


def _chance(cells: Sequence[Cell], task: str) -> str:
    return f"{100 * next(cell.chance for cell in cells if cell.task == task):.1f}"
