"""Attention mechanisms on long sequences: accuracy, time and memory of each on tasks in the shape of Long Range Arena.

The three tasks (`attnworks.studies.tasks`) are generated, so that nothing is downloaded and a table takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attnworks.core.display import Progress, silent
from attnworks.core.errors import UsageError
from attnworks.studies.long_range_cell import (
    Cell,
    CellProgress,
    LongRangeSettings,
    new_classifier,
    train_cell,
    training_lengths,
)
from attnworks.studies.results import StudyResults, read_results, write_results
from attnworks.studies.tasks import TASKS

RESULTS_FORMAT = 1
_CellKey = tuple[str, str, int]
"""The task, mechanism and seed of a cell."""


def default_mechanisms(length: int) -> tuple[str, ...]:
    """Six mechanisms. A query of the sparse ones attends to 65 to 96 keys at any length."""
    return (
        "dense",
        "window:window=32",
        "longformer:window=32,n_global=1",
        "bigbird:window=16,block=16,n_global=1,n_random=2",
        "linear",
        f"linformer:rank=64,length={length}",
    )


class LongRangeResults(list[Cell], StudyResults):
    """Cells, and the settings of all of them."""

    has_pictures = False

    def __init__(self, cells: Iterable[Cell], settings: LongRangeSettings) -> None:
        super().__init__(cells)
        self.settings = settings

    def to_json(self) -> dict[str, Any]:
        cells = [asdict(cell) for cell in self]
        return {"format": RESULTS_FORMAT, "settings": asdict(self.settings), "cells": cells}


def run_long_range(
    folder: Path,
    settings: LongRangeSettings,
    tasks: Sequence[str],
    mechanisms: Sequence[str],
    seeds: Sequence[int] = (0,),
    *,
    progress: Progress = silent,
    should_stop: Callable[[], bool] = lambda: False,
) -> LongRangeResults:
    """The cells tasks x mechanisms x seeds, in this order. Cells that are in `folder` are not computed again.

    Every finished cell is written at once, so that an interrupted experiment loses at most one. A mechanism that cannot
    run on a task is refused before the first cell is trained.
    """
    known = _by_key(read_cells(folder, settings))
    check_long_range(settings, tasks, mechanisms)
    wanted = [(task, mechanism, seed) for task in tasks for mechanism in mechanisms for seed in seeds]
    finished = 0

    def tell(event: CellProgress) -> None:
        percent = round(100 * (finished + event.done) / len(wanted))
        progress(f"{event.task}, {event.mechanism}, seed {event.seed}", percent, 100)

    for finished, key in enumerate(wanted):
        if key not in known:
            cell = train_cell(*key, settings, tell, should_stop)
            if cell is None:
                break
            saved = _by_key([*read_cells(folder, settings), cell])  # another run may have added cells meanwhile
            write_results(folder, LongRangeResults(saved.values(), settings).to_json())
            known |= saved
        cell = known[key]
        scored = f"{100 * cell.accuracy:.1f} % right in {cell.seconds:.0f} s"
        progress(f"{finished + 1} of {len(wanted)}: {cell.task}, {cell.mechanism}, seed {cell.seed}: {scored}", 0, 0)
    return LongRangeResults((known[key] for key in wanted if key in known), settings)


def check_long_range(settings: LongRangeSettings, tasks: Sequence[str], mechanisms: Sequence[str]) -> None:
    """Run every mechanism on one short and one long sequence of every task, so that errors come before training."""
    for name in tasks:
        task = TASKS[name]
        for mechanism in mechanisms:
            model = new_classifier(task, mechanism, 0)
            for length in {training_lengths(task, settings)[0], settings.length}:
                batch = task.batch(0, 0, size=1, length=length)
                with torch.no_grad():
                    model(batch.tokens, batch.real)


def read_cells(folder: Path, settings: LongRangeSettings) -> list[Cell]:
    """The cells of an earlier run with the same settings in this folder; a new or empty folder has none."""
    saved = read_results(
        folder, "experiment", RESULTS_FORMAT,
        lambda table: (LongRangeSettings(**table["settings"]), [Cell(**cell) for cell in table["cells"]]),
    )  # fmt: skip
    before, cells = saved or (settings, [])
    for name, value in asdict(before).items():
        if value != (got := getattr(settings, name)):
            asked, expected = f"the experiment in {folder} with {name}={got}", f"{name}={value}, as in the saved cells"
            raise UsageError(asked, expected, str(got), "choose another --out, or the same settings")
    return cells


def _by_key(cells: Sequence[Cell]) -> dict[_CellKey, Cell]:
    return {(cell.task, cell.mechanism, cell.seed): cell for cell in cells}
