"""JSON that carries its own SHA-256, safetensors checked against a table, and pointers to one folder of several."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from attnworks.core.errors import AttnworksError, FolderError, UsageError
from attnworks.core.folders import check_regular, read_file, write_file
from attnworks.core.notation import DTYPES

LARGEST_JSON = 64 * 2**20
STORABLE = (*DTYPES, "bool", "int32", "int64")
COPY_AGAIN = "copy the folder again from where it was whole"

Table = dict[str, dict[str, Any]]
"""Name of a tensor -> its shape, dtype and SHA-256."""

CHECKPOINTS, LAST, BEST, TRAINING = "checkpoints", "last.json", "best.json", "training.json"


def seal(data: dict[str, Any]) -> bytes:
    """Canonical JSON with one more key, the SHA-256 of the rest."""
    return canonical(with_sha256(data))


def with_sha256(data: dict[str, Any]) -> dict[str, Any]:
    """The data with one more key, the SHA-256 of its canonical JSON."""
    try:
        return data | {"sha256": sha256(canonical(data))}
    except UnicodeEncodeError as error:
        raise UsageError(
            asked="write JSON", expected="text in Unicode", got=repr(error.object[error.start : error.end]),
            remedy="rename the file, or correct the text",
        ) from None  # fmt: skip


def read_sealed(path: Path) -> dict[str, Any]:
    """What was sealed, byte for byte, without the seal."""
    text = read_json_bytes(path)
    inner = unsealed(path, text)
    if text != seal(inner):
        raise changed(path, "the file that was saved", "one that was changed since")
    return inner


def unsealed(path: Path, text: bytes, remedy: str = COPY_AGAIN) -> dict[str, Any]:
    """What a sealed text says, without the seal. White space and the order of keys may differ from `seal`."""
    data = parse_json(path, text, remedy)
    if not isinstance(data, dict) or "sha256" not in data:
        raise changed(path, "JSON with its own sha256", "something else", remedy)
    inner = {key: value for key, value in data.items() if key != "sha256"}
    try:
        same = data["sha256"] == sha256(canonical(inner))
    except (ValueError, RecursionError):
        same = False
    if not same:
        raise changed(path, "the content that was saved", "content that was changed since", remedy)
    return inner


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> Table:
    """Save as safetensors; the table that `read_tensors` will ask for."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(ready, path)
    return {name: describe(tensor) for name, tensor in ready.items()}


def read_tensors(path: Path, table: Table) -> dict[str, Tensor]:
    """Just the tensors of the table, each with the shape, dtype and bytes that it says."""
    tensors: dict[str, Tensor] = {}
    check_regular(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            if odd := sorted(set(file.keys()) ^ table.keys()):
                kind = "missing" if odd[0] in table else "extra"
                raise changed(path, "the tensors of the manifest", f"{kind} tensor {odd[0]!r}")
            for name, row in table.items():
                tensors[name] = file.get_tensor(name)
                if (got := describe(tensors[name])) != row:
                    what = next(key for key in got if got[key] != row.get(key))
                    raise changed(path, f"{what} of {name} {_short(row.get(what))}", f"{what} {_short(got[what])}")
    except AttnworksError:
        raise
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise changed(path, "a whole safetensors file", f"one that cannot be read ({error})") from error
    return tensors


def describe(tensor: Tensor) -> dict[str, Any]:
    """A tensor's row in a table: shape, dtype and the SHA-256 of its little-endian bytes."""
    whole = tensor.detach().cpu().contiguous()
    data = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)  # one number or none may have any stride
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "sha256": hashlib.sha256(data.numpy().data).hexdigest(),
    }


def is_table(table: object) -> bool:
    return isinstance(table, dict) and all(
        isinstance(row, dict) and row.keys() == {"shape", "dtype", "sha256"} and row["dtype"] in STORABLE
        for row in table.values()
    )


def read_json_bytes(path: Path, largest: int | None = None, remedy: str = COPY_AGAIN) -> bytes:
    return read_file(path, LARGEST_JSON if largest is None else largest, remedy)


def parse_json(path: Path, text: bytes, remedy: str = COPY_AGAIN) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise changed(path, "JSON", f"something else ({error})", remedy) from error


def changed(path: Path, expected: str, got: str, remedy: str = COPY_AGAIN) -> FolderError:
    return FolderError(asked=f"load {path}", expected=expected, got=got, remedy=remedy)


def canonical(data: object) -> bytes:
    return (json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _short(value: object) -> str:
    return str(value) if len(str(value)) <= 24 else f"{str(value)[:12]}..."


def point(run: Path, pointer: str, checkpoint: Path) -> None:
    """Let `last.json` or `best.json` name this checkpoint from now on."""
    write_file(run / pointer, seal({"checkpoint": checkpoint.name}))


def pointed_at(run: Path, pointer: str) -> Path | None:
    """The checkpoint that `last.json` or `best.json` names, if there is one."""
    if not os.path.lexists(run / pointer):
        return None
    name = read_sealed(run / pointer).get("checkpoint")
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".."):
        raise changed(run / pointer, "the name of a checkpoint", repr(name)[:60])
    return run / CHECKPOINTS / name


def best_of(run: Path) -> Path | None:
    """The best checkpoint of a run, or the last if none was ever compared.

    Without best.json the last checkpoint says which one was best, so that no other model is opened in its place.
    """
    best, last = pointed_at(run, BEST), pointed_at(run, LAST)
    if best is not None or last is None or not os.path.lexists(last / TRAINING):
        return best or last
    progress = read_sealed(last / TRAINING).get("progress")
    step = progress.get("best_step") if isinstance(progress, dict) else None
    return last if type(step) is not int else run / CHECKPOINTS / f"step-{step:08d}"
