"""Folders and files that are written in one step, JSON and tensors with checksums, and pointers to checkpoints."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from attnworks.core.errors import AttnworksError, FolderError, UsageError
from attnworks.core.notation import DTYPES

MAX_FILE_BYTES, MAX_JSON_BYTES = 2**40, 64 * 2**20
COPY_FILE, COPY_FOLDER = "copy it again from where it was whole", "copy the folder again from where it was whole"
CHECKPOINTS_FOLDER, LAST_POINTER, BEST_POINTER, TRAINING_FILE = "checkpoints", "last.json", "best.json", "training.json"
"""Names in the folder of a training run."""

TensorTable = dict[str, dict[str, Any]]
"""Name of a tensor -> its shape, dtype and SHA-256."""

_STORABLE_DTYPES = (*DTYPES, "bool", "int32", "int64")
_CAUSES = {
    errno.ENAMETOOLONG: "a shorter file name",
    errno.ENOENT: "a file or folder that exists",
    errno.EACCES: "permission to read or write there",
    errno.EPERM: "permission to read or write there",
    errno.EROFS: "a disk that can be written to",
    errno.ENOSPC: "free space on the disk",
    errno.EDQUOT: "free space within your quota",
    errno.ENOTDIR: "a folder",
    errno.EISDIR: "a file",
    errno.ELOOP: "a link that does not lead to itself",
}
"""Error number of the system -> what was missing."""
_FILE_KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A scratch folder to fill. At the end it is synced and renamed to `folder`, and replaces an earlier folder.

    If anything fails, the scratch folder is removed, and the earlier folder stays.
    """
    place = Path(os.path.realpath(folder))
    with disk_errors(f"save to {folder}", remedy="free space or choose another disk"):
        place.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".partial", dir=place.parent))
        try:
            yield scratch
            for path in (*scratch.rglob("*"), scratch):
                path.chmod(0o755 if path.is_dir() else 0o644)
                sync(path)
            _put_in_place(scratch, place)
        except BaseException:
            shutil.rmtree(scratch, ignore_errors=True)
            raise


def write_file(path: Path, data: bytes) -> None:
    """Write a file, or the target of a link, in one step, and sync it. Its permissions stay as they were."""
    place = Path(os.path.realpath(path))
    scratch = place.with_name(f".{place.name}.{secrets.token_hex(4)}.partial")
    with disk_errors(f"write {path}", remedy="free space or choose another disk"):
        try:
            with scratch.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if place.exists():
                shutil.copymode(place, scratch)
            scratch.replace(place)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
        sync(place.parent)


def set_aside(path: Path) -> Path:
    """Rename a damaged file or folder to NAME.damaged-1, or the next free number, so that nothing overwrites it."""
    return path.rename(free_name(path))


def free_name(path: Path) -> Path:
    """NAME.damaged-1 beside a path, or the next free number."""
    number = 1
    while os.path.lexists(place := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    return place


def entries(folder: Path) -> list[Path]:
    """The entries of a folder without scratch files and folders that a killed process left there."""
    return [path for path in folder.iterdir() if not (path.name[0] == "." and path.suffix in (".partial", ".old"))]


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path, largest: int = MAX_FILE_BYTES, remedy: str = COPY_FILE) -> bytes:
    """The bytes of a regular file; an error for a pipe, a device or a file of more than `largest` bytes."""
    check_regular(path, largest, remedy)
    return path.read_bytes()


def check_regular(path: Path, largest: int = MAX_FILE_BYTES, remedy: str = COPY_FILE) -> None:
    """An error for anything but a regular file or a link to one: reading others could block or never end."""
    with disk_errors(f"read {path}", remedy):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        got = next((name for is_kind, name in _FILE_KINDS.items() if is_kind(found.st_mode)), "something else")
        raise FolderError(f"read {path}", "a regular file", got, remedy)
    if found.st_size > largest:
        raise FolderError(f"read {path}", f"at most {largest:,} bytes", f"{found.st_size:,} bytes", remedy)


def check_regular_files(folder: Path) -> None:
    """`check_regular` for all files in a folder, before a library opens them."""
    with disk_errors(f"read {folder}", "check the path"):
        paths = [path for path in folder.rglob("*") if not path.is_dir()]
    for path in paths:
        check_regular(path)


@contextmanager
def disk_errors(asked: str, remedy: str) -> Iterator[None]:
    """Errors of the system about files, disks and permissions become a `FolderError` with a remedy."""
    try:
        yield
    except AttnworksError:
        raise
    except (OSError, SafetensorError) as error:
        raise disk_error(error, asked, remedy) from error


def disk_error(error: OSError | SafetensorError, asked: str, remedy: str) -> FolderError:
    """An error of the system with what was missing, the message of the system and a remedy."""
    number, message = getattr(error, "errno", None), getattr(error, "strerror", None)
    expected = _CAUSES.get(number, "a file or folder that the system can use") if number else "a readable file"
    remedy = "choose a shorter name" if number == errno.ENAMETOOLONG else remedy
    return FolderError(asked, expected, message or str(error), remedy)


def _put_in_place(scratch: Path, folder: Path) -> None:
    """Rename scratch to folder. An existing folder is exchanged with it in one step, then removed.

    Without `renameat2` this takes two renames; between them only `.old` and `.partial` exist, both complete.
    """
    if not folder.exists():
        scratch.rename(folder)
    elif not _exchange(scratch, folder):
        old = folder.rename(scratch.with_suffix(".old"))
        try:
            scratch.rename(folder)
        except BaseException:
            old.rename(folder)
            raise
        old.rename(scratch)  # a folder named `.old` is always complete: a removal never starts under this name
    sync(folder.parent)
    shutil.rmtree(scratch, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names in one step by renameat2 of Linux; False where the system cannot."""
    at_working_directory, swap = -100, 2
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return renameat2(at_working_directory, os.fsencode(one), at_working_directory, os.fsencode(other), swap) == 0


def seal(data: dict[str, Any]) -> bytes:
    """Canonical JSON with one more key, the SHA-256 of the rest."""
    return canonical_json(with_sha256(data))


def with_sha256(data: dict[str, Any]) -> dict[str, Any]:
    """The data with one more key, the SHA-256 of its canonical JSON."""
    try:
        return data | {"sha256": sha256(canonical_json(data))}
    except UnicodeEncodeError as error:
        got = repr(error.object[error.start : error.end])
        raise UsageError("write JSON", "text in Unicode", got, "correct the text") from None


def read_sealed(path: Path) -> dict[str, Any]:
    """The data of a file that `seal` wrote, without the checksum; an error if a byte changed."""
    text = read_json_bytes(path)
    inner = unsealed(path, text)
    if text != seal(inner):
        raise load_error(path, "the file that was saved", "one that was changed since")
    return inner


def unsealed(path: Path, text: bytes, remedy: str = COPY_FOLDER) -> dict[str, Any]:
    """The data of sealed JSON without the checksum. White space and the order of keys may differ from `seal`."""
    data = parse_json(path, text, remedy)
    if not isinstance(data, dict) or "sha256" not in data:
        raise load_error(path, "JSON with its own sha256", "something else", remedy)
    inner = {key: value for key, value in data.items() if key != "sha256"}
    try:
        same = data["sha256"] == sha256(canonical_json(inner))
    except (ValueError, RecursionError):
        same = False
    if not same:
        raise load_error(path, "the content that was saved", "content that was changed since", remedy)
    return inner


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> TensorTable:
    """Save tensors as safetensors and return the table that `read_tensors` checks."""
    ready = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    save_file(ready, path)
    return {name: describe_tensor(tensor) for name, tensor in ready.items()}


def read_tensors(path: Path, table: TensorTable) -> dict[str, Tensor]:
    """The tensors of the table; an error if one is missing, or one differs in shape, dtype or bytes."""
    tensors: dict[str, Tensor] = {}
    check_regular(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            if odd := sorted(set(file.keys()) ^ table.keys()):
                kind = "missing" if odd[0] in table else "extra"
                raise load_error(path, "the tensors of the manifest", f"{kind} tensor {odd[0]!r}")
            for name, row in table.items():
                tensors[name] = file.get_tensor(name)
                if (got := describe_tensor(tensors[name])) != row:
                    what = next(key for key in got if got[key] != row.get(key))
                    raise load_error(path, f"{what} of {name} {_short(row.get(what))}", f"{what} {_short(got[what])}")
    except AttnworksError:
        raise
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise load_error(path, "a whole safetensors file", f"one that cannot be read ({error})") from error
    return tensors


def describe_tensor(tensor: Tensor) -> dict[str, Any]:
    """A tensor's row in a table: shape, dtype and the SHA-256 of its little-endian bytes."""
    whole = tensor.detach().cpu().contiguous()
    data = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)  # a tensor of size 1 or 0 may have any stride
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "sha256": hashlib.sha256(data.numpy().data).hexdigest(),
    }


def is_tensor_table(table: object) -> bool:
    return isinstance(table, dict) and all(
        isinstance(row, dict) and row.keys() == {"shape", "dtype", "sha256"} and row["dtype"] in _STORABLE_DTYPES
        for row in table.values()
    )


def read_json_bytes(path: Path, largest: int | None = None, remedy: str = COPY_FOLDER) -> bytes:
    return read_file(path, MAX_JSON_BYTES if largest is None else largest, remedy)


def parse_json(path: Path, text: bytes, remedy: str = COPY_FOLDER) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise load_error(path, "JSON", f"something else ({error})", remedy) from error


def load_error(path: Path, expected: str, got: str, remedy: str = COPY_FOLDER) -> FolderError:
    return FolderError(f"load {path}", expected, got, remedy)


def canonical_json(data: object) -> bytes:
    return (json.dumps(data, indent=2, sort_keys=True, ensure_ascii=False) + "\n").encode()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _short(value: object) -> str:
    return str(value) if len(str(value)) <= 24 else f"{str(value)[:12]}..."


def write_pointer(run: Path, pointer: str, checkpoint: Path) -> None:
    """Let the pointer `last.json` or `best.json` name this checkpoint."""
    write_file(run / pointer, seal({"checkpoint": checkpoint.name}))


def read_pointer(run: Path, pointer: str) -> Path | None:
    """The checkpoint that `last.json` or `best.json` names, if there is one."""
    if not os.path.lexists(run / pointer):
        return None
    name = read_sealed(run / pointer).get("checkpoint")
    if not isinstance(name, str) or Path(name).name != name or name in ("", ".."):
        raise load_error(run / pointer, "the name of a checkpoint", repr(name)[:60])
    return run / CHECKPOINTS_FOLDER / name


def best_checkpoint(run: Path) -> Path | None:
    """The best checkpoint of a run, or the last if no validation compared them.

    Without best.json, the last checkpoint records which step was the best.
    """
    best, last = read_pointer(run, BEST_POINTER), read_pointer(run, LAST_POINTER)
    if best is not None or last is None or not os.path.lexists(last / TRAINING_FILE):
        return best or last
    progress = read_sealed(last / TRAINING_FILE).get("progress")
    step = progress.get("best_step") if isinstance(progress, dict) else None
    return last if type(step) is not int else run / CHECKPOINTS_FOLDER / f"step-{step:08d}"
