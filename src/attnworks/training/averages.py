"""The mean of the weights of several checkpoints of a run, as one more checkpoint."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import torch

from attnworks.core.folders import BEST_POINTER, CHECKPOINTS_FOLDER, new_folder, read_pointer, write_pointer
from attnworks.core.tensors import tensors_of
from attnworks.models import Model
from attnworks.models.folder import fill, load_model
from attnworks.training.recipe import Recipe
from attnworks.training.run_folder import RunProgress, checkpoints, write_checkpoint

AVERAGE_NAME = "average-{:08d}"


def steps_to_average(recipe: Recipe, progress: RunProgress) -> list[int]:
    """The steps of the validated checkpoints whose mean the recipe asks for; none if it does not."""
    chosen = recipe.averaged()
    if chosen is None:
        return []
    which, count = chosen
    steps = sorted(map(int, progress.losses))
    if which == "best":
        steps.sort(key=lambda step: progress.losses[str(step)])
        return sorted(steps[:count])
    return steps[-count:]


def average_model(run: Path, steps: Sequence[int]) -> Model | None:
    """The mean of the weights of these checkpoints, in float64; None if there are fewer than two of the same shapes.

    Checkpoints that differ in their shapes from the last one, before the model grew, are left out.
    """
    found = checkpoints(run)
    models = [load_model(found[step]) for step in steps if step in found]
    if not models:
        return None
    last = models[-1]
    shapes = {name: tensor.shape for name, tensor in tensors_of(last).items()}
    tables = [table for table in map(tensors_of, models) if {name: T.shape for name, T in table.items()} == shapes]
    if len(tables) < 2:
        return None
    means = {
        name: torch.stack([table[name].detach().double() for table in tables]).mean(0).to(tensor.dtype)
        for name, tensor in tables[-1].items()
    }
    fill(last, means)
    return last


def save_average(run: Path, model: Model, optimizer: torch.optim.Optimizer, progress: RunProgress) -> Path:
    """Write the mean as the best checkpoint, with the optimizer of the last step; earlier means are deleted."""
    home = run / CHECKPOINTS_FOLDER
    folder = home / AVERAGE_NAME.format(progress.step)
    if folder.exists():
        shutil.rmtree(folder)
    with new_folder(folder) as scratch:
        write_checkpoint(scratch, model, optimizer, progress)
    write_pointer(run, BEST_POINTER, folder)
    delete_averages(run)
    return folder


def delete_averages(run: Path) -> None:
    """Delete the means that best.json does not name."""
    best = read_pointer(run, BEST_POINTER)
    for folder in (run / CHECKPOINTS_FOLDER).glob("average-*"):
        if folder != best:
            shutil.rmtree(folder, ignore_errors=True)
