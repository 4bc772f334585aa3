"""A reshaped model in its folder, with the history of what was done to it.

NEW/                     a run of attnworks, or a model of Hugging Face, as before
  history/0/receipt.json   what was done first, sealed, with the SHA-256 of every file of the model before
  history/0/before/        the model before, as its files were: undoing is putting them back
  history/1/...            what was done next
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from attnworks.core.checks import choice, new_place
from attnworks.core.display import Progress, silent, tell_remarks
from attnworks.core.errors import FolderError, UsageError
from attnworks.core.folders import (
    BEST_POINTER,
    CHECKPOINTS_FOLDER,
    LAST_POINTER,
    best_checkpoint,
    check_regular,
    disk_errors,
    load_error,
    new_folder,
    read_sealed,
    seal,
    write_pointer,
)
from attnworks.core.json_records import parse
from attnworks.core.notation import DTYPES
from attnworks.hf.files.find import ModelPlace, find_weights, is_gguf
from attnworks.hf.folder import README_FILE, save_hf
from attnworks.hf.open import MODEL_FILES, folder_of, is_own_folder, open_tokenizer, stored_dtype_of
from attnworks.models.folder import CONFIG_FILE, MANIFEST_FILE, load_model, stored_dtype
from attnworks.models.transformer import Transformer
from attnworks.reshape.contract import RESHAPES
from attnworks.reshape.growth.apply import stretched_state
from attnworks.reshape.receipt import Receipt, Replayed
from attnworks.reshape.run import ReshapeSettings, run_reshape
from attnworks.reshape.texts import texts_of_receipt
from attnworks.traces.subject import open_subject
from attnworks.training.run_folder import (
    RECIPE_FILE,
    SOURCE_FILE,
    TARGET_FILE,
    load_vocabularies,
    read_optimizer,
    read_progress,
    read_recipe,
    restore_optimizer,
    save_checkpoint,
)

HISTORY_FOLDER, BEFORE_FOLDER, RECEIPT_FILE = "history", "before", "receipt.json"
RUN_FILES = (RECIPE_FILE, SOURCE_FILE, TARGET_FILE)
WEIGHTS = (".safetensors", ".safetensors.index.json")
"""How the names of files with weights end."""


@dataclass(frozen=True)
class ModelFolder:
    """A folder, and the folder in it with the files of the model: for a run, that of its best checkpoint.

    place    where the weights of a Hugging Face model are; None for a run
    """

    folder: Path
    model: Path
    place: ModelPlace | None = None

    @property
    def is_run(self) -> bool:
        return self.place is None

    @classmethod
    def of(cls, path: str) -> ModelFolder:
        folder = Path(path)
        checkpoint = best_checkpoint(folder) if folder.is_dir() else None
        if checkpoint is not None:
            return cls(folder, checkpoint)
        folder = folder_of(path)
        if folder.is_dir() and not (folder / CONFIG_FILE).is_file() and not is_gguf(folder):
            expected = "a training run, or a Hugging Face model"
            raise FolderError(f"open {path}", expected, "a folder that is neither", "check the path")
        place = find_weights(folder)
        return cls(place.file if place.format == "GGUF" else place.folder, place.folder, place)

    def files(self) -> list[Path]:
        """The files of the model itself."""
        if self.place is None:
            return sorted(path for path in self.model.iterdir() if path.is_file())
        if self.place.format == "GGUF":
            return self.place.files
        found = {path for pattern in (*MODEL_FILES, README_FILE, "LICENSE*") for path in self.model.rglob(pattern)}
        found |= {*self.place.files}
        return sorted(p for p in found if HISTORY_FOLDER not in p.relative_to(self.model).parts and p.is_file())

    def has_weights(self, file: Path) -> bool:
        """Whether the model itself has its weights there, and not a module behind it of sentence-transformers."""
        weights = () if self.place is None else self.place.files
        return file in weights or (file.parent == self.model and file.name.endswith(WEIGHTS))


def receipts(folder: Path) -> list[Receipt]:
    """The receipts of the model in this folder, first to last."""
    return [_read(step)[0] for step in _steps(folder)]


def receipts_of(path: str) -> list[Receipt]:
    """The receipts of a model named as on the command line: a run, a folder or an id of Hugging Face."""
    return receipts(ModelFolder.of(path).folder)


def _no_history(asked: str) -> FolderError:
    return FolderError(asked, "a model that was reshaped", "no history", "choose a reshaped model")


def check_history(place: ModelFolder) -> None:
    """Refuse a model whose history was damaged, before the work of a reshape begins."""
    for step in _steps(place.folder):
        _checked(step)


def write_outcome(model: Any, receipt: Receipt, before: ModelFolder, out: Path) -> None:
    """Write a folder with the new model, the history of the old one and the new step; all of it or nothing.

    Weights are stored in the type that they had before. The optimizer state is kept if the model only grew; else
    training continues with a new optimizer.
    """
    new_place(out)
    if (odd := receipt.out_of_range()) is not None:
        remedy = "check the model: attnworks examine MODEL"
        raise FolderError(f"write to {out}", "a receipt that can be read again", odd, remedy)
    model = model.to(stored_dtype(before.model) if before.place is None else stored_dtype_of(before.place))
    with new_folder(out) as scratch:
        steps = _steps(before.folder)
        _copy_steps(steps, scratch)
        _write_step(before, receipt, scratch / HISTORY_FOLDER / str(len(steps)))
        if before.place is None:
            _copy_run(before.folder, scratch)
            progress = replace(read_progress(before.model), best_loss=None, best_step=None, validations_since_best=0)
            assert isinstance(model, Transformer)
            optimizer = torch.optim.Adam(model.parameters())
            if parse(RESHAPES[receipt.reshape], receipt.asked, "asked").keeps_optimizer_state:
                state = stretched_state(read_optimizer(before.model), load_model(before.model), model)
                restore_optimizer(model, optimizer, state)
            save_checkpoint(scratch, model, optimizer, progress, best=True)
        else:
            ours = (MANIFEST_FILE, README_FILE) if is_own_folder(before.place) else ()
            files = [file for file in before.files() if not before.has_weights(file) and file.name not in ours]
            _copy([str(file.relative_to(before.model)) for file in files], before.model, scratch)
            save_hf(model, scratch)
            if before.place.format == "GGUF" and (tokenizer := open_tokenizer(before.place)) is not None:
                tokenizer.save_pretrained(scratch)


def undo(path: str | os.PathLike[str], out: str | os.PathLike[str]) -> Receipt:
    """Write the model before its last reshape to a new folder, file by file.

    Args:
        path: The folder of a reshaped model.
        out: Folder to write the model before to; it must not exist yet.

    Returns:
        The receipt of the reshape that was undone.
    """
    path, out = str(path), Path(out)
    new_place(out)
    place = ModelFolder.of(path)
    steps = _steps(place.folder)
    if not steps:
        raise _no_history(f"undo the last reshape of {path}")
    receipt, hashes, checkpoint = _checked(steps[-1])
    with new_folder(out) as scratch, disk_errors(f"undo {path}", remedy="check that you may read it"):
        _copy_steps(steps[:-1], scratch)
        target = scratch / CHECKPOINTS_FOLDER / checkpoint if place.is_run else scratch
        target.mkdir(parents=True, exist_ok=True)
        _copy(list(hashes), steps[-1] / BEFORE_FOLDER, target)
        if place.is_run:
            _copy_run(place.folder, scratch)
            for pointer in (BEST_POINTER, LAST_POINTER):
                write_pointer(scratch, pointer, target)
    return receipt


def _steps(folder: Path) -> list[Path]:
    """The folders of the steps, in order; an error if one is missing."""
    home = folder / HISTORY_FOLDER
    found = sorted(home.iterdir(), key=lambda path: (len(path.name), path.name)) if home.is_dir() else []
    if [path.name for path in found] != [str(number) for number in range(len(found))]:
        raise load_error(home, "steps numbered from 0", ", ".join(path.name for path in found))
    return found


def _read(step: Path) -> tuple[Receipt, dict[str, str], str]:
    """A receipt, the files of the model before with their hashes, and the name of its checkpoint if it was a run."""
    with disk_errors(f"read {step}", remedy="check that you may read it"):
        sealed = read_sealed(step / RECEIPT_FILE)
    saved, hashes, checkpoint = (sealed.get(key) for key in ("receipt", "files", "checkpoint"))
    if not isinstance(saved, dict) or not isinstance(hashes, dict) or not _plain_name(checkpoint):
        raise load_error(step / RECEIPT_FILE, "a receipt, and the hashes of files", "something else")
    receipt = parse(Receipt, saved, "receipt")
    if (odd := receipt.out_of_range()) is not None:
        raise load_error(step / RECEIPT_FILE, "numbers that a reshape can give", odd)
    return receipt, {str(name): str(of) for name, of in hashes.items()}, str(checkpoint)


def _plain_name(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name and name not in ("", "..")


def _write_step(before: ModelFolder, receipt: Receipt, step: Path) -> None:
    hashes = {str(file.relative_to(before.model)): _hash(file) for file in before.files()}
    _copy(list(hashes), before.model, step / BEFORE_FOLDER)
    record = {"receipt": asdict(receipt), "files": hashes, "checkpoint": before.model.resolve().name}
    (step / RECEIPT_FILE).write_bytes(seal(record))


def _checked(step: Path) -> tuple[Receipt, dict[str, str], str]:
    """What `_read` returns, if the files of the model before the step are exactly those that the receipt lists."""
    receipt, hashes, checkpoint = _read(step)
    home = step / BEFORE_FOLDER
    found = {str(path.relative_to(home)) for path in home.rglob("*") if not path.is_dir()}
    if odd := sorted(found ^ hashes.keys()):
        raise load_error(home, "the files that were kept", f"{'an extra' if odd[0] in found else 'no'} file {odd[0]!r}")
    for name, expected in hashes.items():
        if not all(map(_plain_name, Path(name).parts)):
            raise load_error(step / RECEIPT_FILE, "names of files in the folder", repr(name))
        if _hash(home / name) != expected:
            raise load_error(home / name, "the file that was kept", "one that was changed since")
    return receipt, hashes, checkpoint


def _copy_steps(steps: Sequence[Path], scratch: Path) -> None:
    """Check and copy steps. Files of the history are never changed, so that hard links are enough."""
    for step in steps:
        _, hashes, _ = _checked(step)
        for name in (RECEIPT_FILE, *(f"{BEFORE_FOLDER}/{name}" for name in hashes)):
            target = scratch / HISTORY_FOLDER / step.name / name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(step / name, target)
            except OSError:
                shutil.copyfile(step / name, target)


def _copy_run(source: Path, target: Path) -> None:
    """Check and copy the recipe and the vocabularies."""
    read_recipe(source)
    load_vocabularies(source)
    _copy(RUN_FILES, source, target)


def _copy(names: Sequence[str], source: Path, target: Path) -> None:
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / name, target / name)


def _hash(file: Path) -> str:
    check_regular(file)
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def replay(
    path: str | os.PathLike[str],
    on: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    progress: Progress = silent,
) -> Replayed:
    """Apply all reshapes of one model to another, with the same texts and seeds.

    Args:
        path: The folder of a reshaped model, whose history is repeated.
        on: The model to apply it to: a run or a Hugging Face model.
        out: Folder to write the new model to; it must not exist yet.
        progress: Called with (stage, steps done, steps in all). A total of 0 marks a message. Default: silent.

    Returns:
        A list with, for every reshape, the receipt of then and the receipt of now.
    """
    history, on, out = str(path), str(on), Path(out)
    new_place(out)
    past = receipts_of(history)
    if not past:
        raise _no_history(f"replay the history of {history}")
    check_history(ModelFolder.of(on))
    replayed = Replayed()
    with tempfile.TemporaryDirectory(dir=out.absolute().parent if out.parent.is_dir() else None) as scratch:
        source = on
        for number, receipt in enumerate(past):
            place = out if number == len(past) - 1 else Path(scratch) / str(number)
            replayed.append((receipt, repeat(receipt, source, place, tell=progress, remarks=number == 0)))
            source = str(place)
    return replayed


def repeat(receipt: Receipt, on: str, out: Path, *, tell: Progress = silent, remarks: bool = True) -> Receipt:
    """Apply the reshape of a receipt to another model, and tell remarks on how that model was opened."""
    asked, healing = parse(RESHAPES[receipt.reshape], receipt.asked, "asked"), receipt.healing
    reshape = asked.again(receipt.done, receipt.heads)
    settings = ReshapeSettings(
        receipt.objective, healing.steps, healing.learning_rate, healing.batch_tokens, healing.seed, healing.by
    )
    dtype, device = receipt.numbers
    choice("type of numbers", dtype, DTYPES)
    subject = open_subject(on, dtype=dtype, device=device)
    texts = texts_of_receipt(receipt.text, subject.source)
    tell_remarks(on, subject.remarks if remarks else (), tell)
    try:
        model, new = run_reshape(reshape, subject, texts, settings, tell)
    except UsageError as error:
        asked = f"{receipt.reshape} on {on} as before"
        raise UsageError(asked, "a model like that one", str(error), "choose another --on") from error
    write_outcome(model, new, ModelFolder.of(on), out)
    return new
