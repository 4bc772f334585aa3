"""The folder of a run: recipe, vocabularies, and checkpoints from which training resumes exactly."""

from __future__ import annotations

import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from attnworks.core.errors import AttnworksError, FolderError
from attnworks.core.folders import disk_errors, new_folder, set_aside
from attnworks.core.json_records import parse
from attnworks.core.sealed import (
    BEST,
    CHECKPOINTS,
    LAST,
    TRAINING,
    changed,
    is_table,
    point,
    pointed_at,
    read_json_bytes,
    read_sealed,
    read_tensors,
    seal,
    sha256,
    write_tensors,
)
from attnworks.core.tensors import parameters_of, tensors_of
from attnworks.models import Model
from attnworks.models.folder import load, write_model
from attnworks.text.vocabulary import Vocabulary
from attnworks.training.recipe import Recipe

OPTIMISER = "optimiser.safetensors"
NAME = re.compile(r"step-([0-9]{8,})")

RECIPE, SOURCE, TARGET = "run.json", "source.json", "target.json"


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

    Killed in between, the run resumes from this checkpoint all the same (`resume_point`). A damaged folder of the same
    name is renamed, not replaced.
    """
    folder = run / CHECKPOINTS / f"step-{progress.step:08d}"
    if folder.exists() and not is_whole(folder):
        set_aside(folder)
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


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints of a run by their step, the newest first."""
    home = run / CHECKPOINTS
    named = [(NAME.fullmatch(folder.name), folder) for folder in home.iterdir()] if home.is_dir() else []
    return dict(sorted(((int(name[1]), folder) for name, folder in named if name), reverse=True))


def is_whole(folder: Path) -> bool:
    """Whether everything in a checkpoint can be read and is what was saved."""
    try:
        read_progress(folder)
        read_optimiser(folder)
        load(folder)
    except AttnworksError:
        return False
    return True


class ResumePoint(NamedTuple):
    """The checkpoint to resume from (None before the first), newer ones that are damaged, and a remark about both."""

    checkpoint: Path | None
    damaged: list[Path]
    remark: str | None


def resume_point(run: Path) -> ResumePoint:
    """Where to resume: at the checkpoint that last.json names, or at the newest whole one that is newer.

    A checkpoint that last.json names and that is damaged is not replaced by an older one: loading it is an error.
    """
    try:
        last, damaged_pointer = pointed_at(run, LAST), False
    except FolderError:
        last, damaged_pointer = None, True
    step = -1 if last is None or (name := NAME.fullmatch(last.name)) is None else int(name[1])
    newer = [folder for number, folder in checkpoints(run).items() if number > step]
    named = f"last.json is {'damaged' if damaged_pointer else 'missing'}"
    named = named if last is None else f"last.json names {last.name}"
    damaged: list[Path] = []
    for folder in newer:
        if is_whole(folder):
            last = folder
            break
        damaged.append(folder)
    if last is None and (damaged or damaged_pointer):
        raise FolderError(
            asked=f"resume {run}",
            expected=f"last.json or a whole checkpoint in {CHECKPOINTS}",
            got=f"{named}, and {f'{damaged[0].name} is damaged' if damaged else 'there is no checkpoint'}",
            remedy="copy the run folder again from where it was whole",
        )
    if last is None or not newer:
        return ResumePoint(last, [], None)
    names = "".join(f"{folder.name} is damaged; " for folder in damaged)
    return ResumePoint(last, damaged, f"{names}{named}; resuming from {last.name}, the newest whole checkpoint")


def forget_others(run: Path, keep_every: int | None) -> None:
    """Delete checkpoints older than the last that are neither best nor to be kept, and what interrupted saves left.

    Newer checkpoints and folders with other names stay.
    """
    last, best = pointed_at(run, LAST), pointed_at(run, BEST)
    found = checkpoints(run)
    newest = next((step for step, folder in found.items() if folder == last), -1)
    for step, folder in found.items():
        if step < newest and folder != best and not (keep_every and step % keep_every == 0):
            shutil.rmtree(folder, ignore_errors=True)
    for scratch in (*(run / CHECKPOINTS).glob(".step-*.partial"), *(run / CHECKPOINTS).glob(".step-*.old")):
        shutil.rmtree(scratch, ignore_errors=True)


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


def read_recipe(folder: Path) -> tuple[Recipe, str]:
    """The recipe of a run folder, and the fingerprint of its corpus."""
    path = folder / RECIPE
    if not path.is_file():
        raise FolderError(
            asked=f"open the run {folder}",
            expected=f"a run folder (with {RECIPE})",
            got="a folder without it" if folder.is_dir() else "a file" if folder.exists() else "nothing there",
            remedy="check the path; attnworks train PRESET --out FOLDER makes one",
        )
    saved = _read_saved(folder)
    if not isinstance(saved.get("recipe"), dict) or not isinstance(saved.get("corpus_sha256"), str):
        raise changed(path, "a recipe", "something else")
    return parse(Recipe, saved["recipe"], "recipe"), saved["corpus_sha256"]


def load_vocabularies(folder: Path) -> tuple[Vocabulary, Vocabulary]:
    """Both vocabularies, byte for byte as they were when the run began: other words would mean other weights."""
    saved = _read_saved(folder)
    with disk_errors(f"open the run {folder}", remedy="copy the run folder again from where it was whole"):
        for path in (folder / SOURCE, folder / TARGET):
            if sha256(read_json_bytes(path)) != saved.get(path.name):
                raise changed(path, "the vocabulary that was saved", "one that was changed since")
    return Vocabulary.load(folder / SOURCE), Vocabulary.load(folder / TARGET)


def _read_saved(folder: Path) -> dict[str, Any]:
    with disk_errors(f"open the run {folder}", remedy="check that you may read it"):
        return read_sealed(folder / RECIPE)
