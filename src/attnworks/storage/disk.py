"""Folders and files that appear in one step, synced to disk."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from attnworks.errors import AttnworksError, FolderError


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A scratch folder to fill; afterwards it is synced and takes the place, and a folder that was there goes.

    If anything fails on the way, the scratch folder is removed and what was there stays.
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
    """Replace a file, or what a link leads to, in one step, synced. Who may read it stays as it was."""
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


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_errors(asked: str, remedy: str) -> Iterator[None]:
    """What the system says about disks and permissions, as one line with a remedy."""
    try:
        yield
    except AttnworksError:
        raise
    except (OSError, SafetensorError) as error:
        raise FolderError(asked=asked, expected="a disk that plays along", got=str(error), remedy=remedy) from error


def _put_in_place(scratch: Path, folder: Path) -> None:
    """Rename scratch to folder; a folder that is there changes places with it in one step, then goes.

    Where the system has no such step, two renames: between them only `.old` and `.partial`, both whole, are there.
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
        old.rename(scratch)  # so that an `.old` is always whole
    sync(folder.parent)
    shutil.rmtree(scratch, ignore_errors=True)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names at once by Linux's renameat2; False where that cannot be done."""
    at_working_directory, swap = -100, 2
    try:
        renameat2 = ctypes.CDLL(None).renameat2
    except (AttributeError, OSError, TypeError):
        return False
    return renameat2(at_working_directory, os.fsencode(one), at_working_directory, os.fsencode(other), swap) == 0
