"""Model folders: config.json, model.safetensors and a manifest with the SHA-256 of everything.

A folder is written under another name, synced to disk and renamed, so that it is complete or absent. Names, shapes,
types and hashes are checked before a model is returned, and pickle is never opened.
"""

from __future__ import annotations

import glob
import math
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from attnworks.core.checks import new_place
from attnworks.core.errors import FolderError, UnsafeFileError
from attnworks.core.folders import (
    TensorTable,
    best_checkpoint,
    canonical_json,
    check_regular,
    describe_tensor,
    disk_errors,
    is_tensor_table,
    load_error,
    new_folder,
    parse_json,
    read_json_bytes,
    read_sealed,
    read_tensors,
    seal,
    sha256,
    write_tensors,
)
from attnworks.core.notation import DTYPES
from attnworks.core.tensors import tensors_of
from attnworks.models.build import Model, build, skeleton
from attnworks.models.config import ModelConfig, config_from_json, config_to_json

MODEL_FILES = CONFIG_FILE, WEIGHTS_FILE, MANIFEST_FILE = "config.json", "model.safetensors", "manifest.json"
FOLDER_FORMAT = 1
PICKLE_SUFFIXES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
STORED_DTYPES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "F16": torch.float16}
HALF_DTYPES = (torch.float16, torch.bfloat16)


def stored_dtype(folder: Path) -> torch.dtype:
    """The type of most numbers in the weights of a model."""
    counts = dict.fromkeys(STORED_DTYPES, 0)
    for path in folder.glob("*.safetensors"):
        check_regular(path)
        with safe_open(path, framework="pt") as file:
            for part in map(file.get_slice, file.keys()):
                if part.get_dtype() in counts:
                    counts[part.get_dtype()] += math.prod(part.get_shape())
    return STORED_DTYPES[max(counts, key=lambda name: counts[name])]


def half_precision_remark(stored: torch.dtype, opened: torch.dtype) -> tuple[str, ...]:
    """A sentence for weights in half precision that were opened in another type; nothing for others."""
    if stored not in HALF_DTYPES or stored == opened:
        return ()
    names = [str(dtype).removeprefix("torch.") for dtype in (stored, opened)]
    return (f"the weights are stored in {names[0]} and were opened in {names[1]}",)


def save_model(model: Model, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the model to `folder`; with `overwrite`, an existing model folder is replaced in one step."""
    folder = Path(folder)
    check_model_place(folder, overwrite)
    with new_folder(folder) as scratch:
        write_model(model, scratch)
    return folder


def write_model(model: Model, folder: Path) -> None:
    """Write the three files of a model into a folder."""
    write_parts(config_to_json(model.config), model, folder)


def write_parts(config: object, model: nn.Module, folder: Path) -> None:
    """Write a config, the tensors of a model, and the manifest of both."""
    text = canonical_json(config)
    (folder / CONFIG_FILE).write_bytes(text)
    table = write_tensors(folder / WEIGHTS_FILE, tensors_of(model))
    manifest = {"format": FOLDER_FORMAT, "config_sha256": sha256(text), "tensors": table}
    (folder / MANIFEST_FILE).write_bytes(seal(manifest))


def load_model(folder: str | os.PathLike[str]) -> Model:
    """The attnworks model saved in `folder`, or the best checkpoint of a run, in evaluation mode."""
    folder = Path(folder)
    with disk_errors(f"load {folder}", remedy="check that you may read it"):
        folder = best_checkpoint(folder) or folder
        _check_files(folder)
        manifest = read_manifest(folder)
        config = config_from_json(read_config(folder, manifest))
        tensors = read_weights(folder, manifest, _skeleton(folder, config))
    model = build(config, seed=0)
    fill(model, tensors)
    return model.eval()


def read_weights(folder: Path, manifest: dict[str, Any], like: nn.Module) -> dict[str, Tensor]:
    """The tensors of a folder, checked to be those of a model like this one."""
    check_expected(folder, like, manifest["tensors"])
    return read_tensors(folder / WEIGHTS_FILE, manifest["tensors"])


def fill(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Set the tensors of a model by name, in the given types."""
    for name, tensor in tensors_of(model).items():
        tensor.data = torch.empty_like(tensor, dtype=tensors[name].dtype).copy_(tensors[name])


def weights_fingerprint(model: nn.Module) -> str:
    """A hash of all tensors of a model with their names: equal for models that are equal bit for bit."""
    return sha256(canonical_json({name: describe_tensor(tensor) for name, tensor in tensors_of(model).items()}))


def read_config_file(path: Path) -> ModelConfig:
    """The config in a JSON file of any origin."""
    with disk_errors(f"read {path}", remedy="check that you may read it"):
        return config_from_json(parse_json(path, read_json_bytes(path), remedy="correct the file"))


def check_model_place(folder: Path, overwrite: bool) -> None:
    """Refuse a path that exists, unless it is a model folder and `overwrite` is given.

    A folder as transformers writes it has no manifest. It is replaced if it has no folders inside, such as .git.
    """
    if not folder.exists():
        return
    if not overwrite:
        new_place(folder, "save to", "choose another place or pass overwrite=True")
    if (folder / "history").is_dir():
        got, remedy = "one with a history of reshapes, which would be lost", "choose another place"
        raise FolderError(f"overwrite {folder}", "a model folder without a history", got, remedy)
    if not all((folder / name).is_file() for name in MODEL_FILES) and not _is_plain(folder):
        raise FolderError(f"overwrite {folder}", "a model folder", "something else", "choose another place")


def _is_plain(folder: Path) -> bool:
    """Whether a folder has a config, safetensors and no folders."""
    if not (folder / CONFIG_FILE).is_file() or not any(folder.glob("*.safetensors")):
        return False
    return all(path.is_file() for path in folder.iterdir())


def _check_files(folder: Path) -> None:
    if folder.suffix in PICKLE_SUFFIXES and folder.is_file():
        raise _pickle(folder)
    if not folder.is_dir():
        kept = sorted(folder.parent.glob(f".{glob.escape(folder.name)}.*.old"), key=lambda path: path.stat().st_mtime)
        remedy = "check the path; Subject.save(folder) writes one"
        remedy = f"an interrupted save left {kept[-1]}: rename it to {folder}" if kept else remedy
        found = "a file" if folder.exists() else "nothing there"
        raise FolderError(f"load {folder}", "a model folder", found, remedy)
    if not (folder / WEIGHTS_FILE).is_file():
        for path in sorted(folder.iterdir()):
            if path.suffix in PICKLE_SUFFIXES:
                raise _pickle(path)
    for name in MODEL_FILES:
        if not (folder / name).is_file():
            raise FolderError(f"load {folder}", ", ".join(MODEL_FILES), f"no {name}", "copy the whole folder again")


def _pickle(path: Path) -> UnsafeFileError:
    return UnsafeFileError(
        f"load {path}", "safetensors", "a pickle, which can run code", "convert it to safetensors, if you trust it"
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST_FILE
    manifest = read_sealed(path)
    if manifest.get("format") != FOLDER_FORMAT:
        found = str(manifest.get("format"))[:20]
        raise FolderError(f"load {folder}", f"folder format {FOLDER_FORMAT}", found, "save the model again")
    if not isinstance(manifest.get("config_sha256"), str) or not is_tensor_table(manifest.get("tensors")):
        raise load_error(path, "config_sha256, and for each tensor its shape, dtype and sha256", "something else")
    return manifest


def read_config(folder: Path, manifest: dict[str, Any]) -> object:
    """The content of config.json, checked to be the file that was saved."""
    path = folder / CONFIG_FILE
    text = read_json_bytes(path)
    if sha256(text) != manifest["config_sha256"]:
        raise load_error(path, "the config that was saved", "one that was changed since")
    return parse_json(path, text)


def _skeleton(folder: Path, config: ModelConfig) -> nn.Module:
    """The model without memory, or an error if a mechanism cannot be built with its options."""
    try:
        return skeleton(config)
    except (TypeError, ValueError, RuntimeError) as error:
        found = f"one that fails: {error}"
        raise load_error(folder / CONFIG_FILE, "a config that a model can be built from", found) from error


def check_expected(folder: Path, empty: nn.Module, described: TensorTable) -> None:
    """Check that the manifest lists the tensors of the config, no more and no fewer, in their shapes."""
    expected, path = tensors_of(empty), folder / MANIFEST_FILE
    if odd := sorted(expected.keys() ^ described.keys()):
        kind = "missing" if odd[0] in expected else "extra"
        raise load_error(path, f"{len(expected)} tensors, as the config says", f"{kind} tensor {odd[0]!r}")
    for name, tensor in expected.items():
        shape, dtype = described[name]["shape"], described[name]["dtype"]
        if shape != list(tensor.shape):
            raise load_error(path, f"{name} of shape {list(tensor.shape)}", f"shape {shape}")
        if (dtype in DTYPES) != tensor.is_floating_point():
            raise load_error(path, f"{name} of a type like {tensor.dtype}", str(dtype))
