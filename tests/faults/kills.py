"""Saving and training killed with SIGKILL at counted moments: no clock decides where in the program that is."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from attnworks.core.errors import FolderError
from attnworks.core.folders import LAST_POINTER, read_pointer
from attnworks.models import AttentionConfig, PureConfig, build, load_model, save_model
from attnworks.models.build import PRESETS
from attnworks.traces.own import OwnSubject
from attnworks.training.run import Run
from attnworks.training.run_folder import checkpoints
from tests.training.processes import killed, moments_in
from tests.training.training_helpers import SMALL, metrics_of, recipe, state_of, write_pairs


@contextmanager
def without_waiting() -> Iterator[None]:
    """Nothing waits for the disk: what is written survives the process, not a loss of power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        for name, config in SMALL.items():
            patch.setitem(PRESETS, name, config)
        yield


# Saving ---------------------------------------------------------------------------------------------------------------


class Saves:
    """A folder to which models are saved whose entries are all the same number."""

    def __init__(self, place: Path, exchange: bool) -> None:
        self.place, self.exchange, self.log = place, exchange, place.with_name("log.txt")

    def save(self, number: int) -> None:
        model = build(PureConfig(d_e=5, layers=1, attention=AttentionConfig(heads=2, d_k=3, d_v=1)))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(number)
        save_model(model, self.place, overwrite=True)

    def save_on(self, first: int) -> None:
        for number in range(first, first + 10_000):
            self.save(number)

    def loaded(self) -> float:
        model = load_model(self.place)
        (number,) = {float(entry) for parameter in model.parameters() for entry in parameter.detach().flatten()}
        return number

    def found(self) -> float:
        """The folder is whole, or, between two renames, a whole copy is beside it and the error names it."""
        try:
            return self.loaded()
        except FolderError as error:
            copies = sorted(self.place.parent.glob(".model.*.old"), key=lambda path: path.stat().st_mtime_ns)
            assert not self.place.exists() and not self.exchange, error
            assert copies and str(copies[-1]) in str(error), error
            copies[-1].rename(self.place)
            return self.loaded()


def kill_saves(saves: Saves, seed: int = 5, kills: int = 20) -> int:
    """Kill a saving loop at random moments; the folder is always whole. The moments of one save are counted."""
    chance, seen, last = random.Random(seed), set(), 1
    (per_save,) = moments_in(lambda: saves.save(1), "")
    assert per_save > 300
    for _ in range(kills):
        moment = chance.randrange(1, 10 * per_save)
        assert killed(lambda first=last: saves.save_on(first), moment, saves.log)
        now = saves.found()
        assert last <= now < last + 11, (last, now)
        seen.add(now)
        last = int(now)
    assert len(seen) > kills // 2
    return kills


# Training -------------------------------------------------------------------------------------------------------------


def step_of(folder: Path) -> int:
    """Whatever moment it was: the folder loads and resumes, and so does what a user would open."""
    if not folder.exists():
        return 0
    named, newest = read_pointer(folder, LAST_POINTER), max(checkpoints(folder), default=0)
    run = Run.resume(folder)
    last = read_pointer(folder, LAST_POINTER)
    if last is not None:
        load_model(folder)
        OwnSubject.open(str(folder))
    assert run.progress.step == newest == (0 if last is None else int(last.name[5:]))
    assert named == last or run.remarks
    return run.progress.step


def result_of(folder: Path) -> tuple[object, ...]:
    """Step, hashes and metrics of a run that is done, and nothing half-written beside its checkpoints."""
    assert not list((folder / "checkpoints").glob(".*"))
    return state_of(Run.resume(folder)), metrics_of(folder)


PARTS = ("", "attnworks/core/folders.py")
"""Where a run is killed: anywhere, or where files are written."""


def kill_training(home: Path, seed: int, kills: int, steps: int) -> int:
    """Kill a run again and again until it is done; it ends with the same weights and metrics as one that never was.

    The moments of the whole run are counted, and each child kills itself at one of them: no clock is read.
    """
    chance = random.Random(seed)
    settings = recipe(
        write_pairs(home / "pairs.tsv"),
        steps=steps,
        accumulate=chance.choice([1, 2]),
        validate_every=chance.randint(1, 3),
        keep_every=chance.choice([None, 7]),
        score_sentences=0,
    )

    def go_on(folder: Path) -> None:
        run = Run.resume(folder) if folder.exists() else Run.create(settings, folder)
        run.train()

    Run.create(replace(settings, steps=1), home / "first").train()  # what is done once per process is not counted
    moments = moments_in(lambda: go_on(home / "whole"), *PARTS)
    expected = result_of(home / "whole")
    step, reached, times, runs = 0, set(), 0, 1
    while times < kills:
        folder = home / f"killed {runs}"
        within, number = chance.choice(list(zip(PARTS, moments, strict=True)))
        moment = chance.randrange(1, number // 2)
        times += killed(partial(go_on, folder), moment, home / "log.txt", within=within)
        now = step_of(folder)
        assert now >= step, (now, step)
        step = now
        reached.add(step)
        if step == steps:
            assert result_of(folder) == expected
            runs, step = runs + 1, 0
    go_on(home / f"killed {runs}")
    assert result_of(home / f"killed {runs}") == expected
    assert len(reached) >= 3
    return kills
