"""Model folders: config.json, model.safetensors and a manifest with the SHA-256 of everything.

A folder is written beside its place, synced to disk and renamed, so that it is there whole or not at all. It is read
with suspicion: names, shapes, types and hashes are checked before a model is returned, and pickle is never opened.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.core.errors import FolderError, UnsafeFileError
from attnworks.core.folders import disk_errors, new_folder
from attnworks.core.notation import DTYPES
from attnworks.core.sealed import (
    Table,
    best_of,
    canonical,
    changed,
    describe,
    is_table,
    parse_json,
    read_json_bytes,
    read_sealed,
    read_tensors,
    seal,
    sha256,
    write_tensors,
)
from attnworks.core.tensors import tensors_of
from attnworks.models.build import Model, build, skeleton
from attnworks.models.config import ModelConfig, config_from_json, config_to_json

CONFIG, WEIGHTS, MANIFEST = "config.json", "model.safetensors", "manifest.json"
FORMAT = 1
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}


def save(model: Model, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the model to `folder`, whole or not at all.

    With `overwrite`, an existing model folder is replaced in one step once the new one is safely on disk.
    """
    folder = Path(folder)
    check_place(folder, overwrite)
    with new_folder(folder) as scratch:
        write_model(model, scratch)
    return folder


def write_model(model: Model, folder: Path) -> None:
    """The three files of a model, into a folder that is being filled."""
    write_parts(config_to_json(model.config), model, folder)


def write_parts(config: object, model: nn.Module, folder: Path) -> None:
    """A config, the tensors of a model, and the manifest of both."""
    text = canonical(config)
    (folder / CONFIG).write_bytes(text)
    table = write_tensors(folder / WEIGHTS, tensors_of(model))
    manifest = {"format": FORMAT, "config_sha256": sha256(text), "tensors": table}
    (folder / MANIFEST).write_bytes(seal(manifest))


def load(folder: str | os.PathLike[str]) -> Model:
    """The own model saved in `folder`, or the best checkpoint of a run, in evaluation mode."""
    folder = Path(folder)
    with disk_errors(f"load {folder}", remedy="check that you may read it"):
        folder = best_of(folder) or folder
        _refuse_other_things(folder)
        manifest = read_manifest(folder)
        config = config_from_json(read_config(folder, manifest))
        tensors = read_weights(folder, manifest, _skeleton(folder, config))
    model = build(config, seed=0)
    fill(model, tensors)
    return model.eval()


def read_weights(folder: Path, manifest: dict[str, Any], like: nn.Module) -> dict[str, Tensor]:
    """The tensors of a folder, if they are just those of a model like this one."""
    check_expected(folder, like, manifest["tensors"])
    return read_tensors(folder / WEIGHTS, manifest["tensors"])


def fill(model: nn.Module, tensors: dict[str, Tensor]) -> None:
    """Put tensors into their places, in their own types."""
    for name, tensor in tensors_of(model).items():
        tensor.data = torch.empty_like(tensor, dtype=tensors[name].dtype).copy_(tensors[name])


def fingerprint(model: nn.Module) -> str:
    """A hash of all tensors of a model, by name: equal for models that are equal bit for bit."""
    return sha256(canonical({name: describe(tensor) for name, tensor in tensors_of(model).items()}))


def read_config_file(path: Path) -> ModelConfig:
    """The config that a JSON file describes, whoever wrote it."""
    with disk_errors(f"read {path}", remedy="check that you may read it"):
        return config_from_json(parse_json(path, read_json_bytes(path), remedy="correct the file"))


def check_place(folder: Path, overwrite: bool) -> None:
    """Refuse a place where something is, unless it is a model that may be replaced."""
    if not folder.exists():
        return
    if not overwrite:
        raise FolderError(
            asked=f"save to {folder}",
            expected="a place where nothing is",
            got="an existing file or folder",
            remedy="choose another place or pass overwrite=True",
        )
    if not all((folder / name).is_file() for name in (CONFIG, WEIGHTS, MANIFEST)):
        raise FolderError(
            asked=f"overwrite {folder}",
            expected=f"a model folder (with {CONFIG}, {WEIGHTS} and {MANIFEST})",
            got="something else",
            remedy="choose another place; only model folders are replaced",
        )


def _refuse_other_things(folder: Path) -> None:
    if folder.suffix in PICKLES and folder.is_file():
        raise _pickle(folder)
    if not folder.is_dir():
        kept = sorted(folder.parent.glob(f".{glob.escape(folder.name)}.*.old"), key=lambda path: path.stat().st_mtime)
        raise FolderError(
            asked=f"load {folder}",
            expected="a model folder",
            got="a file" if folder.exists() else "nothing there",
            remedy=f"an interrupted save left {kept[-1]}: rename it to {folder}"
            if kept
            else "check the path; attnworks.save(model, folder) writes one",
        )
    if not (folder / WEIGHTS).is_file():
        for path in sorted(folder.iterdir()):
            if path.suffix in PICKLES:
                raise _pickle(path)
    for name in (CONFIG, WEIGHTS, MANIFEST):
        if not (folder / name).is_file():
            raise FolderError(
                asked=f"load {folder}",
                expected=f"{CONFIG}, {WEIGHTS} and {MANIFEST}",
                got=f"no {name}",
                remedy="copy the whole folder again, or save the model anew",
            )


def _pickle(path: Path) -> UnsafeFileError:
    return UnsafeFileError(
        asked=f"load {path}",
        expected="safetensors",
        got="a pickle, which can run any code when opened",
        remedy="convert it to safetensors where you trust it, then load that",
    )


def read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    manifest = read_sealed(path)
    if manifest.get("format") != FORMAT:
        raise FolderError(
            asked=f"load {folder}",
            expected=f"folder format {FORMAT}",
            got=f"format {str(manifest.get('format'))[:20]}",
            remedy="use the version of attnworks that wrote it",
        )
    if not isinstance(manifest.get("config_sha256"), str) or not is_table(manifest.get("tensors")):
        raise changed(path, "config_sha256, and for each tensor its shape, dtype and sha256", "something else")
    return manifest


def read_config(folder: Path, manifest: dict[str, Any]) -> object:
    """What config.json says, if it is the file that was saved."""
    path = folder / CONFIG
    text = read_json_bytes(path)
    if sha256(text) != manifest["config_sha256"]:
        raise changed(path, "the config that was saved", "one that was changed since")
    return parse_json(path, text)


def _skeleton(folder: Path, config: ModelConfig) -> nn.Module:
    """The model without memory, or an error if some mechanism cannot be built with the options it is given."""
    try:
        return skeleton(config)
    except (TypeError, ValueError, RuntimeError) as error:
        raise changed(folder / CONFIG, "a config that a model can be built from", f"one that fails: {error}") from error


def check_expected(folder: Path, empty: nn.Module, described: Table) -> None:
    """The manifest lists just the tensors that the config calls for, in their shapes."""
    expected = tensors_of(empty)
    if odd := sorted(expected.keys() ^ described.keys()):
        kind = "missing" if odd[0] in expected else "extra"
        raise changed(folder / MANIFEST, f"{len(expected)} tensors, as the config says", f"{kind} tensor {odd[0]!r}")
    for name, tensor in expected.items():
        if described[name]["shape"] != list(tensor.shape):
            raise changed(
                folder / MANIFEST, f"{name} of shape {list(tensor.shape)}", f"shape {described[name]['shape']}"
            )
        if (described[name]["dtype"] in DTYPES) != tensor.is_floating_point():
            raise changed(folder / MANIFEST, f"{name} of a type like {tensor.dtype}", str(described[name]["dtype"]))
