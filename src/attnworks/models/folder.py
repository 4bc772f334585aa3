"""Model folders: config.json, model.safetensors and a manifest with the SHA-256 of everything.

A folder is written beside its place, synced to disk and renamed, so that it is there whole or not at all. It is read
with suspicion: names, shapes, types and hashes are checked before a model is returned, and pickle is never opened.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from attnworks.errors import AttnworksError, FolderError, UnsafeFileError
from attnworks.models.build import Model, build, skeleton
from attnworks.models.config import ModelConfig
from attnworks.models.strict import config_from_json, config_to_json

CONFIG, WEIGHTS, MANIFEST = "config.json", "model.safetensors", "manifest.json"
FORMAT = 1
PICKLES = {".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle"}
LARGEST_JSON = 64 * 2**20


def save(model: Model, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
    """Write the model to `folder`, whole or not at all.

    With `overwrite`, an existing model folder is replaced by renames once the new one is safely on disk.
    """
    folder = Path(folder)
    if folder.exists() and not overwrite:
        raise FolderError(
            asked=f"save to {folder}",
            expected="a place where nothing is",
            got="an existing file or folder",
            remedy="choose another place or pass overwrite=True",
        )
    if folder.exists() and not (folder / MANIFEST).is_file():
        raise FolderError(
            asked=f"overwrite {folder}",
            expected=f"a model folder (with {MANIFEST})",
            got="something else",
            remedy="choose another place; only model folders are replaced",
        )
    tensors = tensors_of(model)
    config_text = _canonical(config_to_json(model.config))
    manifest = {
        "format": FORMAT,
        "config_sha256": _sha256(config_text),
        "tensors": {name: describe(tensor) for name, tensor in tensors.items()},
    }
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        save_file(tensors, scratch / WEIGHTS)
        (scratch / CONFIG).write_bytes(config_text)
        (scratch / MANIFEST).write_bytes(_canonical(manifest | {"sha256": _sha256(_canonical(manifest))}))
        for path in scratch.iterdir():
            path.chmod(0o644)
            sync(path)
        scratch.chmod(0o755)
        sync(scratch)
        _put_in_place(scratch, folder)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    sync(folder.parent)
    return folder


def load(folder: str | os.PathLike[str]) -> Model:
    """The model saved in `folder`, checked against its manifest; on any doubt an error, and nothing half-loaded."""
    folder = Path(folder)
    _refuse_other_things(folder)
    manifest = _read_manifest(folder)
    if _sha256(_read_json_bytes(folder / CONFIG)) != manifest["config_sha256"]:
        raise _changed(folder / CONFIG, "the config that was saved", "one that was changed since")
    config = read_config_file(folder / CONFIG)
    _check_expected(folder, skeleton(config), manifest["tensors"])
    tensors = _read_weights(folder, manifest["tensors"])
    model = build(config)
    with torch.no_grad():
        for name, parameter in parameters_of(model).items():
            parameter.data = torch.empty_like(parameter, dtype=tensors[name].dtype).copy_(tensors[name])
    return model


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter once, under its first name: tied ones are stored a single time."""
    return dict(model.named_parameters(remove_duplicate=True))


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters as contiguous tensors on the CPU."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in parameters_of(model).items()}


def describe(tensor: Tensor) -> dict[str, Any]:
    """A tensor's row in a manifest: shape, dtype and the SHA-256 of its little-endian bytes."""
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "sha256": hashlib.sha256(data.numpy().data).hexdigest(),
    }


def read_config_file(path: Path) -> ModelConfig:
    """The config that a JSON file describes, whoever wrote it."""
    return config_from_json(_parse_json(path, _read_json_bytes(path)))


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_in_place(scratch: Path, folder: Path) -> None:
    if not folder.exists():
        scratch.rename(folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", suffix=".old", dir=folder.parent))
    folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old)


def _refuse_other_things(folder: Path) -> None:
    if folder.suffix in PICKLES and folder.is_file():
        raise _pickle(folder)
    if not folder.is_dir():
        raise FolderError(
            asked=f"load {folder}",
            expected="a model folder",
            got="a file" if folder.exists() else "nothing there",
            remedy="check the path; attnworks.save(model, folder) writes one",
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


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    text = _read_json_bytes(path)
    manifest = _parse_json(path, text)
    if not isinstance(manifest, dict) or "sha256" not in manifest:
        raise _changed(path, "a manifest with its own sha256", "something else")
    if manifest.get("format") != FORMAT:
        raise FolderError(
            asked=f"load {folder}",
            expected=f"folder format {FORMAT}",
            got=f"format {str(manifest.get('format'))[:20]}",
            remedy="use the version of attnworks that wrote it",
        )
    inner = {key: value for key, value in manifest.items() if key != "sha256"}
    if manifest["sha256"] != _sha256(_canonical(inner)) or text != _canonical(manifest):
        raise _changed(path, "the manifest that was saved", "one that was changed since")
    return manifest


def _check_expected(folder: Path, empty: nn.Module, described: Mapping[str, Mapping[str, Any]]) -> None:
    """The manifest lists just the tensors that the config calls for, in their shapes."""
    expected = {name: list(parameter.shape) for name, parameter in parameters_of(empty).items()}
    if odd := sorted(expected.keys() ^ described.keys()):
        kind = "missing" if odd[0] in expected else "extra"
        raise _changed(folder / MANIFEST, f"{len(expected)} tensors, as the config says", f"{kind} tensor {odd[0]!r}")
    for name, shape in expected.items():
        if described[name]["shape"] != shape:
            raise _changed(folder / MANIFEST, f"{name} of shape {shape}", f"shape {described[name]['shape']}")


def _read_weights(folder: Path, described: Mapping[str, Mapping[str, Any]]) -> dict[str, Tensor]:
    path = folder / WEIGHTS
    tensors: dict[str, Tensor] = {}
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            if odd := sorted(set(file.keys()) ^ described.keys()):
                kind = "missing" if odd[0] in described else "extra"
                raise _changed(path, "the tensors of the manifest", f"{kind} tensor {odd[0]!r}")
            for name in described:
                tensors[name] = file.get_tensor(name)
                if (got := describe(tensors[name])) != described[name]:
                    what = next(key for key in got if got[key] != described[name].get(key))
                    raise _changed(
                        path, f"{what} of {name} {_short(described[name].get(what))}", f"{what} {_short(got[what])}"
                    )
    except AttnworksError:
        raise
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise _changed(path, "a whole safetensors file", f"one that cannot be read ({error})") from error
    return tensors


def _read_json_bytes(path: Path) -> bytes:
    if (size := path.stat().st_size) > LARGEST_JSON:
        raise _changed(path, f"at most {LARGEST_JSON} bytes", f"{size} bytes")
    return path.read_bytes()


def _parse_json(path: Path, text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _changed(path, "JSON", f"something else ({error})") from error


def _changed(path: Path, expected: str, got: str) -> FolderError:
    return FolderError(
        asked=f"load {path}", expected=expected, got=got, remedy="copy the folder again from where it was whole"
    )


def _canonical(data: object) -> bytes:
    return (json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _short(value: object) -> str:
    return str(value) if len(str(value)) <= 24 else f"{str(value)[:12]}..."
