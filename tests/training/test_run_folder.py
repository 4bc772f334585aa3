"""Checkpoints: every tensor of weights and optimiser back in place, bit for bit and in its own memory layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from attnworks.core.errors import AttnworksError, FolderError
from attnworks.core.sealed import BEST, LAST, pointed_at
from attnworks.models import Model, build, load
from attnworks.training.run_folder import Progress, load_checkpoint, optimiser_tensors, save_checkpoint
from tests.training.training_helpers import SMALL, tensor_sha256, weights_of


def trained(name: str, steps: int, seed: int = 1) -> tuple[Model, torch.optim.Adam]:
    model = build(SMALL[name], seed=seed)
    optimiser = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, lr=0.01, fused=True)
    for step in range(steps):
        torch.manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimiser.step()
    return model, optimiser


def hashes(model: nn.Module, optimiser: torch.optim.Optimizer) -> tuple[str, str]:
    return tensor_sha256(weights_of(model)), tensor_sha256(optimiser_tensors(model, optimiser))


PROGRESS = Progress(step=3, seconds=0.1 + 0.2, best_loss=1 / 3, best_step=2, validations_since_best=1)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("steps", [0, 3])
def test_there_and_back(name: str, steps: int, tmp_path: Path) -> None:
    model, optimiser = trained(name, steps)
    folder = save_checkpoint(tmp_path, model, optimiser, PROGRESS, best=True)
    other, its_optimiser = trained(name, 0, seed=2)
    assert load_checkpoint(folder, other, its_optimiser) == PROGRESS
    assert hashes(other, its_optimiser) == hashes(model, optimiser)
    assert hashes(load(folder), optimiser)[0] == hashes(model, optimiser)[0], "a checkpoint is a model folder"


@pytest.mark.parametrize("name", SMALL)
def test_going_on_equals_never_having_stopped(name: str, tmp_path: Path) -> None:
    straight, its_optimiser = trained(name, 5)
    model, optimiser = trained(name, 3)
    folder = save_checkpoint(tmp_path, model, optimiser, PROGRESS, best=False)
    again, optimiser = trained(name, 0, seed=2)
    load_checkpoint(folder, again, optimiser)
    for parameter in again.parameters():
        for moment in ("exp_avg", "exp_avg_sq"):
            assert optimiser.state[parameter][moment].stride() == parameter.stride()
    for group in optimiser.param_groups:
        group["lr"] = 0.01
    for step in (3, 4):
        torch.manual_seed(step)
        for parameter in again.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimiser.step()
    assert hashes(again, optimiser) == hashes(straight, its_optimiser)


def test_pointers(tmp_path: Path) -> None:
    model, optimiser = trained("small", 1)
    assert pointed_at(tmp_path, LAST) is None and pointed_at(tmp_path, BEST) is None
    first = save_checkpoint(tmp_path, model, optimiser, Progress(step=1), best=True)
    assert pointed_at(tmp_path, LAST) == pointed_at(tmp_path, BEST) == first
    second = save_checkpoint(tmp_path, model, optimiser, Progress(step=2), best=False)
    assert pointed_at(tmp_path, LAST) == second and pointed_at(tmp_path, BEST) == first
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "last.json", "best.json"}


def test_a_checkpoint_that_is_there_is_replaced(tmp_path: Path) -> None:
    model, optimiser = trained("small", 1)
    folder = save_checkpoint(tmp_path, model, optimiser, Progress(step=1), best=False)
    model, optimiser = trained("small", 2)
    assert save_checkpoint(tmp_path, model, optimiser, Progress(step=1, seconds=5.0), best=False) == folder
    other, its_optimiser = trained("small", 0)
    assert load_checkpoint(folder, other, its_optimiser).seconds == 5.0
    assert hashes(other, its_optimiser) == hashes(model, optimiser)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimiser.safetensors", "training.json", "config.json"])
def test_a_missing_file_is_told_and_changes_nothing(name: str, tmp_path: Path) -> None:
    model, optimiser = trained("small", 3)
    folder = save_checkpoint(tmp_path, model, optimiser, PROGRESS, best=False)
    (folder / name).unlink()
    other, its_optimiser = trained("small", 1, seed=2)
    before = hashes(other, its_optimiser)
    with pytest.raises(FolderError) as caught:
        load_checkpoint(folder, other, its_optimiser)
    assert "\n" not in str(caught.value)
    assert hashes(other, its_optimiser) == before


def test_the_checkpoint_of_another_model(tmp_path: Path) -> None:
    model, optimiser = trained("small", 1)
    folder = save_checkpoint(tmp_path, model, optimiser, PROGRESS, best=False)
    for name in ("small-lstm", "small-tied"):
        other, its_optimiser = trained(name, 1)
        before = hashes(other, its_optimiser)
        with pytest.raises(AttnworksError) as caught:
            load_checkpoint(folder, other, its_optimiser)
        assert "\n" not in str(caught.value)
        assert hashes(other, its_optimiser) == before
