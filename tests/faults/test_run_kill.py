"""Training killed with SIGKILL at random moments: the folder always loads, resumes, and ends with the same weights."""

from __future__ import annotations

import os
import random
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from tests.training.processes import killed, moments_in, needs_fork
from tests.training.training_helpers import SMALL, metrics_of, recipe, state_of, write_pairs

from attnworks.models import load
from attnworks.models.presets import PRESETS
from attnworks.storage.pointer import LAST, pointed_at
from attnworks.training.checkpoint import checkpoints
from attnworks.training.run import Run
from attnworks.training.trained import open_run


def step_of(folder: Path) -> int:
    """Whatever moment it was: the folder loads and resumes, and so does what a user would open."""
    if not folder.exists():
        return 0
    named, newest = pointed_at(folder, LAST), max(checkpoints(folder), default=0)
    run = Run.resume(folder)
    last = pointed_at(folder, LAST)
    if last is not None:
        load(folder)
        open_run(folder)
    assert run.progress.step == newest == (0 if last is None else int(last.name[5:]))
    assert named == last or run.remarks
    return run.progress.step


def result_of(folder: Path) -> tuple[object, ...]:
    """Step, hashes and metrics of a run that is done, and nothing half-written beside its checkpoints."""
    assert not list((folder / "checkpoints").glob(".*"))
    return state_of(Run.resume(folder)), metrics_of(folder)


PARTS = ("", "attnworks/storage/disk.py")
"""Where a run is killed: anywhere, or where files are written."""

SWEEP = [pytest.param(seed, 25, 40, marks=pytest.mark.slow) for seed in range(2, 6)]


@needs_fork
@pytest.mark.parametrize(("seed", "kills", "steps"), [(1, 8, 20), *SWEEP])
def test_killed_at_random_moments(
    seed: int, kills: int, steps: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The moments of the whole run are counted, and each child kills itself at one of them: no clock is read."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)  # what is written survives the process
    for name, config in SMALL.items():
        monkeypatch.setitem(PRESETS, name, config)
    chance = random.Random(seed)
    settings = recipe(
        write_pairs(tmp_path / "pairs.tsv"),
        steps=steps,
        accumulate=chance.choice([1, 2]),
        validate_every=chance.randint(1, 3),
        keep_every=chance.choice([None, 7]),
        score_sentences=0,
    )

    def go_on(folder: Path) -> None:
        run = Run.resume(folder) if folder.exists() else Run.create(settings, folder)
        run.train()

    Run.create(replace(settings, steps=1), tmp_path / "first").train()  # what is done once per process is not counted
    moments = moments_in(lambda: go_on(tmp_path / "whole"), *PARTS)
    expected = result_of(tmp_path / "whole")
    step, reached, times, runs = 0, set(), 0, 1
    while times < kills:
        folder = tmp_path / f"killed {runs}"
        within, number = chance.choice(list(zip(PARTS, moments, strict=True)))
        moment = chance.randrange(1, number // 2)
        times += killed(partial(go_on, folder), moment, tmp_path / "log.txt", within=within)
        now = step_of(folder)
        assert now >= step, (now, step)
        step = now
        reached.add(step)
        if step == steps:
            assert result_of(folder) == expected
            runs, step = runs + 1, 0
    go_on(tmp_path / f"killed {runs}")
    assert result_of(tmp_path / f"killed {runs}") == expected
    assert len(reached) >= 3
