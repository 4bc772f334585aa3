"""Checkpoints: a model folder that also holds what training needs to go on exactly where it was."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from attnworks.models import Model
from attnworks.models.folder import load, parameters_of, tensors_of, write_model
from attnworks.models.strict import parse
from attnworks.storage.disk import disk_errors, new_folder
from attnworks.storage.pointer import BEST, CHECKPOINTS, LAST, point, pointed_at
from attnworks.storage.sealed import changed, is_table, read_sealed, read_tensors, seal, write_tensors

OPTIMISER, TRAINING = "optimiser.safetensors", "training.json"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Where a run stands: steps done, seconds spent in them, and the best validation so far."""

    step: int = 0
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int | None = None
    validations_since_best: int = 0


def save_checkpoint(
    run: Path, model: Model, optimiser: torch.optim.Optimizer, progress: Progress, *, best: bool
) -> Path:
    """Write the checkpoint of this step, then point `last` (before it `best`) at it.

    Killed in between, the run goes on from the last checkpoint of before and makes this one again.
    """
    folder = run / CHECKPOINTS / f"step-{progress.step:08d}"
    with new_folder(folder) as scratch:
        write_model(model, scratch)
        table = write_tensors(scratch / OPTIMISER, optimiser_tensors(model, optimiser))
        (scratch / TRAINING).write_bytes(seal({"progress": asdict(progress), "tensors": table}))
    for pointer in (BEST, LAST) if best else (LAST,):
        point(run, pointer, folder)
    return folder


def load_checkpoint(folder: Path, model: Model, optimiser: torch.optim.Optimizer) -> Progress:
    """Put a checkpoint's weights and optimiser state into place; everything is checked before anything changes."""
    progress, tensors = read_progress(folder), read_optimiser(folder)
    weights = tensors_of(load(folder))
    if {name: T.shape for name, T in weights.items()} != {name: T.shape for name, T in tensors_of(model).items()}:
        raise changed(folder, "the weights of this run's model", "those of another")
    with torch.no_grad():
        for name, tensor in tensors_of(model).items():
            tensor.copy_(weights[name])
    restore_optimiser(model, optimiser, tensors)
    return progress


def read_progress(folder: Path) -> Progress:
    """Where the run stood at this checkpoint."""
    with disk_errors(f"load {folder}", remedy="check that you may read it"):
        return parse(Progress, read_sealed(folder / TRAINING).get("progress", {}), "progress")


def read_optimiser(folder: Path) -> dict[str, Tensor]:
    """What the optimiser remembered at this checkpoint, by the names of parameters."""
    with disk_errors(f"load {folder}", remedy="check that you may read it"):
        saved = read_sealed(folder / TRAINING)
        if not is_table(saved.get("tensors")):
            raise changed(folder / TRAINING, "a table of tensors", "something else")
        return read_tensors(folder / OPTIMISER, saved["tensors"])


def forget_others(run: Path, keep_every: int | None) -> None:
    """Delete checkpoints that are neither last nor best nor to be kept, and what interrupted saves left behind."""
    wanted = {folder for pointer in (LAST, BEST) if (folder := pointed_at(run, pointer)) is not None}
    for folder in (run / CHECKPOINTS).iterdir():
        kept = keep_every is not None and folder.name[5:].isdigit() and int(folder.name[5:]) % keep_every == 0
        if folder not in wanted and not kept:
            shutil.rmtree(folder, ignore_errors=True)


def optimiser_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimiser's state by the names of parameters: `encoder.0.mlp.W_1/exp_avg` and so on."""
    return {
        f"{name}/{key}": value
        for name, parameter in parameters_of(model).items()
        for key, value in optimiser.state.get(parameter, {}).items()
    }


def restore_optimiser(model: nn.Module, optimiser: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    for name, parameter in parameters_of(model).items():
        state = {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}
        if state:
            optimiser.state[parameter] = {key: _like(parameter, value) for key, value in state.items()}


def _like(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """Moments get the parameter's memory layout and device; counters stay as they are."""
    if value.shape != parameter.shape:
        return value
    return cast(Tensor, torch.empty_like(parameter, requires_grad=False).copy_(value))
