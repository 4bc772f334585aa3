"""Checkpoints: every tensor of weights and optimizer back in place, bit for bit and in its own memory layout."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from attnworks.core.errors import AttnworksError, FolderError
from attnworks.core.folders import BEST_POINTER, LAST_POINTER, read_pointer
from attnworks.models import Model, build, load_model
from attnworks.training.run_folder import RunProgress, load_checkpoint, optimizer_tensors, save_checkpoint
from tests.training.training_helpers import SMALL, tensor_sha256, weights_of


def trained(name: str, steps: int, seed: int = 1) -> tuple[Model, torch.optim.Adam]:
    model = build(SMALL[name], seed=seed)
    optimizer = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98), eps=1e-9, lr=0.01, fused=True)
    for step in range(steps):
        torch.manual_seed(step)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    return model, optimizer


def hashes(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[str, str]:
    return tensor_sha256(weights_of(model)), tensor_sha256(optimizer_tensors(model, optimizer))


PROGRESS = RunProgress(step=3, seconds=0.1 + 0.2, best_loss=1 / 3, best_step=2, validations_since_best=1)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("steps", [0, 3])
def test_there_and_back(name: str, steps: int, tmp_path: Path) -> None:
    model, optimizer = trained(name, steps)
    folder = save_checkpoint(tmp_path, model, optimizer, PROGRESS, best=True)
    other, its_optimizer = trained(name, 0, seed=2)
    assert load_checkpoint(folder, other, its_optimizer) == PROGRESS
    assert hashes(other, its_optimizer) == hashes(model, optimizer)
    assert hashes(load_model(folder), optimizer)[0] == hashes(model, optimizer)[0], "a checkpoint is a model folder"


@pytest.mark.parametrize("name", SMALL)
def test_going_on_equals_never_having_stopped(name: str, tmp_path: Path) -> None:
    straight, its_optimizer = trained(name, 5)
    model, optimizer = trained(name, 3)
    folder = save_checkpoint(tmp_path, model, optimizer, PROGRESS, best=False)
    again, optimizer = trained(name, 0, seed=2)
    load_checkpoint(folder, again, optimizer)
    for parameter in again.parameters():
        for moment in ("exp_avg", "exp_avg_sq"):
            assert optimizer.state[parameter][moment].stride() == parameter.stride()
    for group in optimizer.param_groups:
        group["lr"] = 0.01
    for step in (3, 4):
        torch.manual_seed(step)
        for parameter in again.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    assert hashes(again, optimizer) == hashes(straight, its_optimizer)


def test_pointers(tmp_path: Path) -> None:
    model, optimizer = trained("small", 1)
    assert read_pointer(tmp_path, LAST_POINTER) is None and read_pointer(tmp_path, BEST_POINTER) is None
    first = save_checkpoint(tmp_path, model, optimizer, RunProgress(step=1), best=True)
    assert read_pointer(tmp_path, LAST_POINTER) == read_pointer(tmp_path, BEST_POINTER) == first
    second = save_checkpoint(tmp_path, model, optimizer, RunProgress(step=2), best=False)
    assert read_pointer(tmp_path, LAST_POINTER) == second and read_pointer(tmp_path, BEST_POINTER) == first
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoints", "last.json", "best.json"}


def test_a_checkpoint_that_is_there_is_replaced(tmp_path: Path) -> None:
    model, optimizer = trained("small", 1)
    folder = save_checkpoint(tmp_path, model, optimizer, RunProgress(step=1), best=False)
    model, optimizer = trained("small", 2)
    assert save_checkpoint(tmp_path, model, optimizer, RunProgress(step=1, seconds=5.0), best=False) == folder
    other, its_optimizer = trained("small", 0)
    assert load_checkpoint(folder, other, its_optimizer).seconds == 5.0
    assert hashes(other, its_optimizer) == hashes(model, optimizer)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "training.json", "config.json"])
def test_a_missing_file_is_told_and_changes_nothing(name: str, tmp_path: Path) -> None:
    model, optimizer = trained("small", 3)
    folder = save_checkpoint(tmp_path, model, optimizer, PROGRESS, best=False)
    (folder / name).unlink()
    other, its_optimizer = trained("small", 1, seed=2)
    before = hashes(other, its_optimizer)
    with pytest.raises(FolderError) as caught:
        load_checkpoint(folder, other, its_optimizer)
    assert "\n" not in str(caught.value)
    assert hashes(other, its_optimizer) == before


def test_the_checkpoint_of_another_model(tmp_path: Path) -> None:
    model, optimizer = trained("small", 1)
    folder = save_checkpoint(tmp_path, model, optimizer, PROGRESS, best=False)
    for name in ("small-lstm", "small-tied"):
        other, its_optimizer = trained(name, 1)
        before = hashes(other, its_optimizer)
        with pytest.raises(AttnworksError) as caught:
            load_checkpoint(folder, other, its_optimizer)
        assert "\n" not in str(caught.value)
        assert hashes(other, its_optimizer) == before
