"""The folder of a run: recipe, vocabularies, and checkpoints from which training resumes exactly."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from attnworks.core.errors import AttnworksError, FolderError
from attnworks.core.folders import (
    BEST_POINTER,
    CHECKPOINTS_FOLDER,
    COPY_FOLDER,
    LAST_POINTER,
    TRAINING_FILE,
    disk_errors,
    is_tensor_table,
    load_error,
    new_folder,
    read_json_bytes,
    read_pointer,
    read_sealed,
    read_tensors,
    seal,
    set_aside,
    sha256,
    write_pointer,
    write_tensors,
)
from attnworks.core.json_records import parse
from attnworks.core.tensors import parameters_of, tensors_of
from attnworks.models import Model, PureConfig, RecurrentConfig, TransformerConfig
from attnworks.models.config import config_from_json
from attnworks.models.folder import load_model, write_model
from attnworks.text.vocabulary import Vocabulary
from attnworks.training.recipe import Recipe

OPTIMIZER_FILE = "optimizer.safetensors"
CHECKPOINT_NAME = re.compile(r"step-([0-9]{8,})")

RECIPE_FILE, SOURCE_FILE, TARGET_FILE = "run.json", "source.json", "target.json"
MODEL_KEY = "model"
"""Of the config that the model began with, in run.json; older folders do not have it."""


@dataclass(frozen=True, kw_only=True)
class RunProgress:
    """Where a run stands: steps done, seconds spent in them, and the best validation so far.

    losses    held-out loss by step, of the checkpoints that may be averaged
    """

    step: int = 0
    seconds: float = 0.0
    best_loss: float | None = None
    best_step: int | None = None
    validations_since_best: int = 0
    losses: dict[str, float] = field(default_factory=dict)


def save_checkpoint(
    run: Path, model: Model, optimizer: torch.optim.Optimizer, progress: RunProgress, *, best: bool
) -> Path:
    """Write the checkpoint of this step, then its name into best.json (if it is the best) and last.json.

    If the process is killed in between, the run still resumes from this checkpoint (`resume_point`). A damaged folder
    of the same name is renamed, not replaced.
    """
    folder = run / CHECKPOINTS_FOLDER / f"step-{progress.step:08d}"
    if folder.exists() and not is_complete(folder):
        set_aside(folder)
    with new_folder(folder) as scratch:
        write_checkpoint(scratch, model, optimizer, progress)
    write_pointers(run, folder, best=best)
    return folder


def write_checkpoint(folder: Path, model: Model, optimizer: torch.optim.Optimizer, progress: RunProgress) -> None:
    """Write a model folder, and what training continues with, into a folder that is being made."""
    write_model(model, folder)
    table = write_tensors(folder / OPTIMIZER_FILE, optimizer_tensors(model, optimizer))
    (folder / TRAINING_FILE).write_bytes(seal({"progress": asdict(progress), "tensors": table}))


def write_pointers(run: Path, checkpoint: Path, *, best: bool) -> None:
    """Write the name of a checkpoint into best.json, if it is the best, and then into last.json."""
    for pointer in (BEST_POINTER, LAST_POINTER) if best else (LAST_POINTER,):
        write_pointer(run, pointer, checkpoint)


def load_checkpoint(folder: Path, model: Model, optimizer: torch.optim.Optimizer) -> RunProgress:
    """Load the weights and the optimizer state of a checkpoint. All files are checked before anything changes."""
    progress, tensors = read_progress(folder), read_optimizer(folder)
    weights = tensors_of(load_model(folder))
    if {name: T.shape for name, T in weights.items()} != {name: T.shape for name, T in tensors_of(model).items()}:
        raise load_error(folder, "the weights of this run's model", "those of another")
    with torch.no_grad():
        for name, tensor in tensors_of(model).items():
            tensor.copy_(weights[name])
    restore_optimizer(model, optimizer, tensors)
    return progress


def read_progress(folder: Path) -> RunProgress:
    """Where the run stood at this checkpoint."""
    with disk_errors(f"load {folder}", remedy="check that you may read it"):
        return parse(RunProgress, read_sealed(folder / TRAINING_FILE).get("progress", {}), "progress")


def read_optimizer(folder: Path) -> dict[str, Tensor]:
    """The state of the optimizer at this checkpoint, by the names of parameters."""
    with disk_errors(f"load {folder}", remedy="check that you may read it"):
        saved = read_sealed(folder / TRAINING_FILE)
        if not is_tensor_table(saved.get("tensors")):
            raise load_error(folder / TRAINING_FILE, "a table of tensors", "something else")
        return read_tensors(folder / OPTIMIZER_FILE, saved["tensors"])


def checkpoints(run: Path) -> dict[int, Path]:
    """The checkpoints of a run by their step, the newest first."""
    home = run / CHECKPOINTS_FOLDER
    named = [(CHECKPOINT_NAME.fullmatch(folder.name), folder) for folder in home.iterdir()] if home.is_dir() else []
    return dict(sorted(((int(name[1]), folder) for name, folder in named if name), reverse=True))


def is_complete(folder: Path) -> bool:
    """Whether all files of a checkpoint can be read and are unchanged."""
    try:
        read_progress(folder)
        read_optimizer(folder)
        load_model(folder)
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
        last, damaged_pointer = read_pointer(run, LAST_POINTER), False
        pointer = "last.json is missing" if last is None else f"last.json names {last.name}"
    except FolderError:
        last, damaged_pointer, pointer = None, True, "last.json is damaged"
    step = -1 if last is None or (name := CHECKPOINT_NAME.fullmatch(last.name)) is None else int(name[1])
    newer = [folder for number, folder in checkpoints(run).items() if number > step]
    damaged = list(takewhile(lambda folder: not is_complete(folder), newer))
    last = next(iter(newer[len(damaged) :]), last)
    if last is None and (damaged or damaged_pointer):
        got = f"{pointer}, and {f'{damaged[0].name} is damaged' if damaged else 'there is no checkpoint'}"
        raise FolderError(f"resume {run}", f"last.json or a whole checkpoint in {CHECKPOINTS_FOLDER}", got, COPY_FOLDER)
    if last is None or not newer:
        return ResumePoint(last, [], None)
    names = "".join(f"{folder.name} is damaged; " for folder in damaged)
    return ResumePoint(last, damaged, f"{names}{pointer}; resuming from {last.name}, the newest whole checkpoint")


def delete_checkpoints(run: Path, keep_every: int | None, keep: Collection[int] = ()) -> None:
    """Delete checkpoints before the last that are neither the best nor to be kept, and files of interrupted saves.

    keep    further steps to be kept

    Newer checkpoints and folders with other names stay.
    """
    last, best = read_pointer(run, LAST_POINTER), read_pointer(run, BEST_POINTER)
    found = checkpoints(run)
    newest = next((step for step, folder in found.items() if folder == last), -1)
    for step, folder in found.items():
        if step < newest and folder != best and step not in keep and not (keep_every and step % keep_every == 0):
            shutil.rmtree(folder, ignore_errors=True)
    for scratch in (run / CHECKPOINTS_FOLDER).glob(".*-*"):
        if scratch.suffix in (".partial", ".old"):
            shutil.rmtree(scratch, ignore_errors=True)


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state by the names of parameters: `encoder.0.mlp.W_1/exp_avg` and so on."""
    return {
        f"{name}/{key}": value
        for name, parameter in parameters_of(model).items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def restore_optimizer(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Give the optimizer the state that `optimizer_tensors` returned."""
    for name, parameter in parameters_of(model).items():
        state = {key.rpartition("/")[2]: value for key, value in tensors.items() if key.rpartition("/")[0] == name}
        if state:
            optimizer.state[parameter] = {key: _like(parameter, value) for key, value in state.items()}


def _like(parameter: nn.Parameter, value: Tensor) -> Tensor:
    """Moments get the parameter's memory layout and device; counters stay as they are."""
    if value.shape != parameter.shape:
        return value
    return cast(Tensor, torch.empty_like(parameter, requires_grad=False).copy_(value))


def read_recipe(folder: Path) -> tuple[Recipe, str]:
    """The recipe of a run folder, and the fingerprint of its corpus."""
    path = folder / RECIPE_FILE
    if not path.is_file():
        got = "a folder without it" if folder.is_dir() else "a file" if folder.exists() else "nothing there"
        remedy = "check the path; attnworks train PRESET --out FOLDER makes one"
        raise FolderError(f"open the run {folder}", f"a run folder (with {RECIPE_FILE})", got, remedy)
    saved = _read_saved(folder)
    if not isinstance(saved.get("recipe"), dict) or not isinstance(saved.get("corpus_sha256"), str):
        raise load_error(path, "a recipe", "something else")
    return parse(Recipe, saved["recipe"], "recipe"), saved["corpus_sha256"]


def read_first_config(folder: Path) -> TransformerConfig | RecurrentConfig | None:
    """The config that the model of a run began with; None in a folder that does not say it."""
    saved = _read_saved(folder)
    if MODEL_KEY not in saved:
        return None
    config = config_from_json(saved[MODEL_KEY])
    if isinstance(config, PureConfig):
        raise load_error(folder / RECIPE_FILE, "the config of an encoder-decoder", "another")
    return config


def load_vocabularies(folder: Path) -> tuple[Vocabulary, Vocabulary]:
    """Both vocabularies of a run, byte for byte as they were when it began: other words would mean other weights."""
    return check_vocabularies(folder, _read_saved(folder))


def check_vocabularies(folder: Path, hashes: Mapping[str, Any]) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of source and target in a folder, if their files have these SHA-256."""
    with disk_errors(f"open {folder}", remedy="copy the folder again from where it was whole"):
        for path in (folder / SOURCE_FILE, folder / TARGET_FILE):
            if sha256(read_json_bytes(path)) != hashes.get(path.name):
                raise load_error(path, "the vocabulary that was saved", "one that was changed since")
    return Vocabulary.load(folder / SOURCE_FILE), Vocabulary.load(folder / TARGET_FILE)


def _read_saved(folder: Path) -> dict[str, Any]:
    with disk_errors(f"open the run {folder}", remedy="check that you may read it"):
        return read_sealed(folder / RECIPE_FILE)
