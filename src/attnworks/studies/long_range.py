"""Attention mechanisms on long sequences: accuracy, time and memory of each on tasks in the shape of Long Range Arena.

The three tasks (`attnworks.studies.tasks`) are drawn by us, so that nothing is downloaded and a table takes minutes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from attnworks.core.errors import UsageError
from attnworks.core.folders import write_file
from attnworks.studies.long_range_cell import Cell, Progress, Settings, classifier, lengths, train_cell
from attnworks.studies.results import read_kept
from attnworks.studies.tasks import TASKS

RESULTS, FORMAT = "results.json", 1
Key = tuple[str, str, int]
"""Task, mechanism and seed of a cell."""


def default_mechanisms(length: int) -> tuple[str, ...]:
    """Six; a query of the sparse ones sees 65 to 96 keys, however long the sequence."""
    return (
        "dense",
        "window:window=32",
        "longformer:window=32,n_global=1",
        "bigbird:window=16,block=16,n_global=1,n_random=2",
        "linear",
        f"linformer:rank=64,length={length}",
    )


def long_range(
    folder: Path,
    settings: Settings,
    tasks: Sequence[str],
    mechanisms: Sequence[str],
    seeds: Sequence[int] = (0,),
    *,
    watch: Callable[[Progress | Cell], None] = lambda event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Cell]:
    """The cells tasks x mechanisms x seeds, in this order; those that `folder` has already are not computed again.

    Every finished cell is written at once, so that an interrupted experiment loses at most one. What cannot run is
    refused before anything does.
    """
    known = _by_key(read_cells(folder, settings))
    check(settings, tasks, mechanisms)
    wanted = [(task, mechanism, seed) for task in tasks for mechanism in mechanisms for seed in seeds]
    for key in wanted:
        if key not in known:
            cell = train_cell(*key, settings, watch, should_stop)
            if cell is None:
                break
            known |= _add(folder, settings, cell)
        watch(known[key])
    return [known[key] for key in wanted if key in known]


def check(settings: Settings, tasks: Sequence[str], mechanisms: Sequence[str]) -> None:
    """Let every mechanism read one short and one long sequence, so that what is impossible is said at once."""
    for name in tasks:
        task = TASKS[name]
        for mechanism in mechanisms:
            model = classifier(task, mechanism, 0)
            for length in {lengths(task, settings)[0], settings.length}:
                batch = task.batch(0, 0, size=1, length=length)
                with torch.no_grad():
                    model(batch.tokens, batch.padding)


def read_cells(folder: Path, settings: Settings) -> list[Cell]:
    """Cells that an earlier run with the same settings left in the folder; a new or empty folder has none."""
    kept = read_kept(
        folder,
        RESULTS,
        "experiment",
        FORMAT,
        lambda table: (Settings(**table["settings"]), [Cell(**cell) for cell in table["cells"]]),
    )
    if kept is None:
        return []
    before, cells = kept
    for name, value in asdict(before).items():
        if value != getattr(settings, name):
            raise UsageError(
                asked=f"the experiment in {folder} with {name}={getattr(settings, name)}",
                expected=f"{name}={value}, as in the cells that are there",
                got=str(getattr(settings, name)),
                remedy="choose another --out, or the same settings",
            )
    return cells


def _add(folder: Path, settings: Settings, cell: Cell) -> dict[Key, Cell]:
    """Write one more cell; all that are there now, also those that another run has added meanwhile."""
    cells = _by_key([*read_cells(folder, settings), cell])
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / RESULTS, (json.dumps(report(settings, list(cells.values())), indent=2) + "\n").encode())
    return cells


def report(settings: Settings, cells: Sequence[Cell]) -> dict[str, object]:
    """The experiment as JSON."""
    return {"format": FORMAT, "settings": asdict(settings), "cells": [asdict(cell) for cell in cells]}


def _by_key(cells: Sequence[Cell]) -> dict[Key, Cell]:
    return {(cell.task, cell.mechanism, cell.seed): cell for cell in cells}
