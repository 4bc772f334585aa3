"""Scalars for TensorBoard, where it is installed."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from attnworks.training import tensorboard
from attnworks.training.run import Run
from tests.training.training_helpers import metrics_of, recipe


def test_scalars_are_those_of_the_metrics(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[str, float, int]] = []
    begun: list[tuple[str, int | None]] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int | None) -> None:
            begun.append((folder, purge_step))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def flush(self) -> None: ...

        def close(self) -> None: ...

    module: Any = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: name)
    run = Run.create(recipe(corpus, steps=5), tmp_path / "run")
    run.train()
    losses = [(f"{kind}/loss", loss, step) for kind, step, loss in metrics_of(run.folder, "kind", "step", "loss")]
    assert [scalar for scalar in written if scalar[0].endswith("/loss")] == losses and len(losses) == 6
    assert {name for name, *_ in written} >= {"training/learning_rate", "validation/perplexity"}
    Run.resume(tmp_path / "run", steps=6).train()
    assert begun == [(str(tmp_path / "run" / "tensorboard"), step) for step in (None, 6)]


def test_nothing_where_it_is_not_installed(corpus: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensorboard, "find_spec", lambda name: None)
    Run.create(recipe(corpus, steps=1), tmp_path / "run").train()
    assert not (tmp_path / "run" / "tensorboard").exists()
