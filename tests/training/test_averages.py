"""The mean of the weights of several checkpoints: which, what, and that the run resumes as without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import attnworks
from attnworks.core.errors import UsageError
from attnworks.core.folders import BEST_POINTER, LAST_POINTER, read_pointer
from attnworks.core.tensors import tensors_of
from attnworks.models import load_model
from attnworks.training.averages import average_model, steps_to_average
from attnworks.training.run import Run
from attnworks.training.run_folder import RunProgress
from tests.training.training_helpers import StopAfter, metrics_of, recipe, state_of


def train(corpus: str, folder: Path, average: str | None, steps: int = 12) -> Run:
    run = Run.create(recipe(corpus, validate_every=2, average=average, steps=steps), folder)
    run.train()
    return run


def lines(folder: Path, kind: str) -> list[dict]:
    return [
        line for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines()) if line["kind"] == kind
    ]


@pytest.mark.parametrize(("average", "expected"), [("last:3", [8, 10, 12]), ("best:2", [2, 6]), (None, [])])
def test_which_checkpoints(average: str | None, expected: list[int]) -> None:
    losses = {"2": 1.0, "4": 3.0, "6": 2.0, "8": 4.0, "10": 5.0, "12": 6.0}
    assert steps_to_average(recipe("grammar", average=average), RunProgress(losses=losses)) == expected


def test_the_mean_is_that_of_every_tensor(corpus: str, tmp_path: Path) -> None:
    run = train(corpus, tmp_path / "run", "last:3")
    parts = [tensors_of(load_model(tmp_path / "run" / "checkpoints" / f"step-{step:08d}")) for step in (8, 10, 12)]
    mean = average_model(run.folder, [8, 10, 12])
    assert mean is not None
    for name, tensor in tensors_of(mean).items():
        expected = torch.stack([part[name].double() for part in parts]).mean(0)
        assert torch.allclose(tensor.double(), expected, rtol=0, atol=1e-7), name
    assert average_model(run.folder, [12]) is None


@pytest.mark.parametrize("average", ["last:3", "best:3"])
def test_a_better_mean_is_what_is_opened(average: str, corpus: str, tmp_path: Path) -> None:
    run = train(corpus, tmp_path / "run", average)
    (line,) = lines(run.folder, "average")
    best, losses = read_pointer(run.folder, BEST_POINTER), [row["loss"] for row in lines(run.folder, "validation")]
    assert line["best"] == (line["loss"] < min(losses)) and best is not None
    assert best.name == ("average-00000012" if line["best"] else f"step-{run.progress.best_step:08d}")
    opened = attnworks.open(run.folder)
    stored = tensors_of(load_model(best))
    assert all(torch.equal(tensor, stored[name]) for name, tensor in tensors_of(opened.model).items())
    assert run.progress.best_loss == min(losses), "the mean is no validation of the run"


def test_a_mean_that_is_better_for_sure(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its checkpoint is used until a later one is better, and goes when there is another mean."""
    run = Run.create(recipe(corpus, validate_every=2, average="last:2", steps=4), tmp_path / "run")
    own = Run._loss
    monkeypatch.setattr(
        Run, "_loss", lambda self, model, rows: own(self, model, rows) / (1 + (model is not self.model))
    )
    run.train()
    best, last = (read_pointer(run.folder, pointer) for pointer in (BEST_POINTER, LAST_POINTER))
    assert best is not None and best.name == "average-00000004" and last is not None and last.name == "step-00000004"
    assert attnworks.translate(run.folder, ["Luca sees bread ."], num_beams=2)
    again = Run.resume(run.folder, steps=8)
    again.train()
    names = sorted(path.name for path in (run.folder / "checkpoints").iterdir())
    assert "average-00000008" in names and "average-00000004" not in names
    assert not (run.folder / "checkpoints" / "step-00000002").exists()


def test_resuming_stays_exact(corpus: str, tmp_path: Path) -> None:
    plain, whole = train(corpus, tmp_path / "plain", None), train(corpus, tmp_path / "whole", "best:2")
    Run.create(recipe(corpus, validate_every=2, average="best:2", steps=12), tmp_path / "parts")
    for steps in (3, 4):
        Run.resume(tmp_path / "parts").train(should_stop=StopAfter(steps))
    parts = Run.resume(tmp_path / "parts")
    parts.train()
    assert state_of(parts) == state_of(whole) == state_of(plain)
    assert metrics_of(parts.folder) == metrics_of(whole.folder)
    assert parts.progress.losses == whole.progress.losses and len(whole.progress.losses) == 2
    longer = Run.resume(tmp_path / "parts", steps=14)
    longer.train()
    assert state_of(longer) == state_of(train(corpus, tmp_path / "longer", None, steps=14))


@pytest.mark.parametrize("average", ["5", "last", "last:1", "mean:3", "best:x"])
def test_what_cannot_be_averaged(average: str) -> None:
    with pytest.raises(UsageError, match=f"average={average}: expected last:N or best:N"):
        recipe("grammar", average=average)
