"""Attention mechanisms on long sequences: accuracy, time and memory of each on tasks in the shape of Long Range Arena.

The three tasks (`attnworks.studies.tasks`) are generated, so that nothing is downloaded and a table takes minutes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from attnworks.core.errors import UsageError
from attnworks.studies.long_range_cell import (
    Cell,
    CellProgress,
    LongRangeSettings,
    new_classifier,
    train_cell,
    training_lengths,
)
from attnworks.studies.results import read_results, write_results
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


def run_long_range(
    folder: Path,
    settings: LongRangeSettings,
    tasks: Sequence[str],
    mechanisms: Sequence[str],
    seeds: Sequence[int] = (0,),
    *,
    tell: Callable[[CellProgress | Cell], None] = lambda event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Cell]:
    """The cells tasks x mechanisms x seeds, in this order. Cells that are in `folder` are not computed again.

    Every finished cell is written at once, so that an interrupted experiment loses at most one. A mechanism that cannot
    run on a task is refused before the first cell is trained.
    """
    known = _by_key(read_cells(folder, settings))
    check_long_range(settings, tasks, mechanisms)
    wanted = [(task, mechanism, seed) for task in tasks for mechanism in mechanisms for seed in seeds]
    for key in wanted:
        if key not in known:
            cell = train_cell(*key, settings, tell, should_stop)
            if cell is None:
                break
            saved = _by_key([*read_cells(folder, settings), cell])  # another run may have added cells meanwhile
            write_results(folder, long_range_report(settings, list(saved.values())))
            known |= saved
        tell(known[key])
    return [known[key] for key in wanted if key in known]


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


def long_range_report(settings: LongRangeSettings, cells: Sequence[Cell]) -> dict[str, object]:
    """The experiment as JSON."""
    return {"format": RESULTS_FORMAT, "settings": asdict(settings), "cells": [asdict(cell) for cell in cells]}


def _by_key(cells: Sequence[Cell]) -> dict[_CellKey, Cell]:
    return {(cell.task, cell.mechanism, cell.seed): cell for cell in cells}
