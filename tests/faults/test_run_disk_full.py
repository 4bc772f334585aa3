"""A disk that fills up at any moment of a run: one line, the checkpoint before still there, and nothing in the way."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from attnworks.core import folders
from attnworks.core.errors import AttnworksError, FolderError
from attnworks.core.folders import LAST_POINTER, read_pointer
from attnworks.models.build import PRESETS
from attnworks.training.run import Run
from tests.training.training_helpers import SMALL, StopAfter, metrics_of, recipe, state_of, write_pairs


@pytest.fixture(autouse=True)
def small_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk, whose errors are made here."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for name, config in SMALL.items():
        monkeypatch.setitem(PRESETS, name, config)


class FullFrom:
    """Makes a function that writes fail: from the n-th call on there is no space left."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def instead_of(self, real: Callable[..., Any], error: Exception | None) -> Callable[..., Any]:
        def write(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise error or OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(*arguments, **named)

        return write


PLACES: dict[str, tuple[object, str, Exception | None]] = {
    "sync": (os, "fsync", None),
    "bytes": (Path, "write_bytes", None),
    "tensors": (folders, "save_file", SafetensorError("Error while serializing: I/O error: No space left on device")),
    "new names": (Path, "rename", None),
}


def refused(work: Callable[[], object]) -> str:
    with pytest.raises(FolderError) as caught:
        work()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run to step 4, and one that was stopped at step 3."""
    home = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        for name, config in SMALL.items():
            patch.setitem(PRESETS, name, config)
        settings = recipe(write_pairs(home / "pairs.tsv"), steps=4, score_sentences=0)
        Run.create(settings, home / "whole").train()
        Run.create(settings, home / "stopped").train(should_stop=StopAfter(3))
    return home


@pytest.mark.parametrize("place", PLACES)
def test_full_while_training(place: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, name, error = PLACES[place]
    expected = state_of(Run.resume(runs / "whole")), metrics_of(runs / "whole")
    moment = failures = 0
    while True:
        folder = Path(shutil.copytree(runs / "stopped", tmp_path / str(moment)))
        going = Run.resume(folder)
        with monkeypatch.context() as patch:
            full = FullFrom(moment)
            patch.setattr(module, name, full.instead_of(getattr(module, name), error))
            try:
                going.train()
            except AttnworksError as raised:
                assert isinstance(raised, FolderError) and "\n" not in str(raised)
                assert "No space left" in str(raised)
                failures += 1
        last = read_pointer(folder, LAST_POINTER)
        assert last is not None and last.name in {"step-00000003", "step-00000004"}
        assert not list(folder.glob("**/.*")), "something half-written was left"
        rest = Run.resume(folder)
        rest.train()
        assert (state_of(rest), metrics_of(folder)) == expected
        shutil.rmtree(folder)
        if full.left >= 0:
            break
        moment += 1
    assert failures >= (1 if place == "new names" else 2)


@pytest.mark.parametrize("place", ["sync", "bytes", "new names"])
def test_full_at_the_start(place: str, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No run folder, not even half of one; with space it can be made."""
    module, name, error = PLACES[place]
    settings = recipe(f"tsv:{runs / 'pairs.tsv'}", steps=2)
    with monkeypatch.context() as patch:
        patch.setattr(module, name, FullFrom(0).instead_of(getattr(module, name), error))
        assert "No space left" in refused(lambda: Run.create(settings, tmp_path / "run"))
    assert list(tmp_path.iterdir()) == []
    assert Run.create(settings, tmp_path / "run").train().step == 2
