"""Damaged run folders: an error in one line or the run as it was, never less."""

from __future__ import annotations

import os
import random
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from attnworks.core.errors import AttnworksError
from attnworks.models.build import PRESETS
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.own import OwnSubject
from attnworks.training.run import Run
from tests.covering import thorough
from tests.faults.mutants import MUTATIONS
from tests.training.training_helpers import SMALL, recipe, state_of, tensor_sha256, weights_of, write_pairs

CHECKPOINT = "checkpoints/step-00000004"
FILES = [
    "run.json",
    "source.json",
    "target.json",
    "last.json",
    "best.json",
    "metrics.jsonl",
    *(f"{CHECKPOINT}/{name}" for name in ("training.json", "optimizer.safetensors", "model.safetensors")),
    *(f"{CHECKPOINT}/{name}" for name in ("config.json", "manifest.json")),
]
ROUNDS = 18 if thorough else 9
MORE_ROUNDS = 45 if thorough else 18
"""For files where most of what is changed would still be read: other words, other numbers."""


@pytest.fixture(autouse=True)
def small_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for the disk: what is written survives the process."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for name, config in SMALL.items():
        monkeypatch.setitem(PRESETS, name, config)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        for name, config in SMALL.items():
            patch.setitem(PRESETS, name, config)
        Run.create(recipe(write_pairs(home / "pairs.tsv"), steps=4), home / "run").train()
        yield home / "run"


@pytest.fixture(scope="module")
def expected(whole: Path) -> tuple[object, ...]:
    return contents(Run.resume(whole))


@pytest.fixture(scope="module")
def model(whole: Path) -> str:
    found = opened(whole)
    assert found is not None
    return found


@pytest.fixture
def place(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def contents(run: Run) -> tuple[object, ...]:
    return run.recipe, state_of(run), run.progress, run.source.tokenizer.to_str(), run.target.tokenizer.to_str()


def resumed(place: Path) -> tuple[object, ...] | None:
    """What resuming gives, or None for an error of ours; anything else is a failure of the test, even a warning."""
    try:
        return contents(Run.resume(place))
    except AttnworksError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
        return None


def opened(place: Path) -> str | None:
    try:
        trained = OwnSubject.open(str(place))
    except AttnworksError as error:
        assert "\n" not in str(error) and len(str(error)) < 2000
        return None
    return tensor_sha256(weights_of(trained.model)) + trained.vocabularies[0].tokenizer.to_str()


@pytest.fixture(autouse=True)
def no_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


@pytest.mark.parametrize("name", FILES)
def test_changed_bytes(name: str, place: Path, expected: tuple[object, ...], model: str) -> None:
    chance = random.Random(f"run {name}")
    intact, refused = (place / name).read_bytes(), 0
    rounds = MORE_ROUNDS if name in ("source.json", "target.json") else ROUNDS
    for turn in range(rounds):
        data = bytearray(intact)
        mutation = MUTATIONS[turn % len(MUTATIONS)]
        mutation(data, chance)
        (place / name).write_bytes(data)
        got = resumed(place) if turn % 3 else opened(place)
        refused += got is None
        assert got in (None, expected, model), f"turn {turn}: {mutation.__name__} went unnoticed"
    if name not in ("metrics.jsonl", "best.json", "last.json"):
        assert refused > 0.5 * rounds
    (place / name).write_bytes(intact)
    assert resumed(place) == expected


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("kind", ["empty", "missing", "folder"])
def test_a_file_that_is_none(name: str, kind: str, place: Path, expected: tuple[object, ...], model: str) -> None:
    path = place / name
    path.unlink()
    if kind == "empty":
        path.touch()
    elif kind == "folder":
        path.mkdir()
    got = resumed(place)
    if name == "last.json" and kind == "missing":
        assert got == expected, "without a pointer the newest checkpoint is taken"
    assert got in (None, expected)
    assert opened(place) in (None, model)


def test_metrics_that_were_damaged_do_not_stop_a_run(place: Path) -> None:
    chance = random.Random("metrics")
    intact = (place / "metrics.jsonl").read_bytes()
    for turn in range(len(MUTATIONS)):
        data = bytearray(intact)
        MUTATIONS[turn](data, chance)
        (place / "metrics.jsonl").write_bytes(data)
        Run.resume(place).train()


@pytest.mark.parametrize("seed", range(3))
def test_damaged_vocabularies_alone(seed: int, place: Path) -> None:
    """Without the run's hash beside it: an error of ours or a vocabulary, and no panic of the library below."""
    chance = random.Random(f"vocabulary {seed}")
    intact = (place / "source.json").read_bytes()
    path = place / "mine.json"
    for turn in range(150):
        data = bytearray(intact)
        chance.choice(MUTATIONS)(data, chance)
        path.write_bytes(data)
        try:
            vocabulary = Vocabulary.load(path)
        except AttnworksError as error:
            assert "\n" not in str(error), turn
        else:
            vocabulary.decode(vocabulary.encode(["Luca", "sees", "xyz"]))


def test_files_of_another_step(whole: Path, place: Path) -> None:
    """Half a checkpoint from one moment and half from another is no checkpoint."""
    longer = Run.resume(place, steps=6)
    longer.train()
    later = place / "checkpoints" / "step-00000006"
    for name in ("optimizer.safetensors", "training.json", "model.safetensors", "manifest.json"):
        intact = (later / name).read_bytes()
        shutil.copy(whole / CHECKPOINT / name, later / name)
        assert resumed(place) is None, name
        (later / name).write_bytes(intact)
    got = resumed(place)
    assert got is not None and got[1:] == contents(longer)[1:]
