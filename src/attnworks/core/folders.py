"""Folders and files that appear in one step, synced to disk; files that are read only if they are regular files."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from attnworks.core.errors import AttnworksError, FolderError

LARGEST_FILE = 2**40
"""Bytes of the largest file that is opened at all."""
CAUSES = {
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
"""What was missing when the system answers with this error number."""
KINDS = {
    stat.S_ISDIR: "a folder",
    stat.S_ISFIFO: "a named pipe",
    stat.S_ISSOCK: "a socket",
    stat.S_ISCHR: "a device",
    stat.S_ISBLK: "a device",
}


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


def set_aside(path: Path) -> Path:
    """Give a damaged file or folder another name beside its place, so that nothing overwrites it."""
    return path.rename(free_name(path))


def free_name(path: Path) -> Path:
    """NAME.damaged-1 beside a path, or the next number that is not taken."""
    number = 1
    while os.path.lexists(place := path.with_name(f"{path.name}.damaged-{number}")):
        number += 1
    return place


def entries(folder: Path) -> list[Path]:
    """What is in a folder, without the scratch files and folders that a killed process left there."""
    return [path for path in folder.iterdir() if not (path.name[0] == "." and path.suffix in (".partial", ".old"))]


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_file(path: Path, largest: int = LARGEST_FILE, remedy: str = "copy it again from where it was whole") -> bytes:
    """The bytes of a regular file. A pipe, a device or a file of more than `largest` bytes is refused, not read."""
    check_regular(path, largest, remedy)
    return path.read_bytes()


def check_regular(
    path: Path, largest: int = LARGEST_FILE, remedy: str = "copy it again from where it was whole"
) -> None:
    """Refuse what could block or never end when it is read: only regular files pass, or links to one."""
    with disk_errors(f"read {path}", remedy):
        found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        got = next((name for is_kind, name in KINDS.items() if is_kind(found.st_mode)), "something else")
        raise FolderError(asked=f"read {path}", expected="a regular file", got=got, remedy=remedy)
    if found.st_size > largest:
        got = f"{found.st_size:,} bytes"
        raise FolderError(asked=f"read {path}", expected=f"at most {largest:,} bytes", got=got, remedy=remedy)


def check_regular_files(folder: Path) -> None:
    """The same for everything in a folder, for libraries that open its files themselves."""
    with disk_errors(f"read {folder}", "check the path"):
        paths = [path for path in folder.rglob("*") if not path.is_dir()]
    for path in paths:
        check_regular(path)


@contextmanager
def disk_errors(asked: str, remedy: str) -> Iterator[None]:
    """What the system says about files, disks and permissions, as one line with a remedy."""
    try:
        yield
    except AttnworksError:
        raise
    except (OSError, SafetensorError) as error:
        raise disk_error(error, asked, remedy) from error


def disk_error(error: OSError | SafetensorError, asked: str, remedy: str) -> FolderError:
    """An error of the system in plain words: what was missing, and what the system said."""
    number, said = getattr(error, "errno", None), getattr(error, "strerror", None)
    expected = CAUSES.get(number, "a file or folder that the system can use") if number else "a readable file"
    remedy = "choose a shorter name" if number == errno.ENAMETOOLONG else remedy
    return FolderError(asked=asked, expected=expected, got=said or str(error), remedy=remedy)


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
