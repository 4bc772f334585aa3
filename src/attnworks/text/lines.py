"""The lines of a UTF-8 file, gzipped if its name ends in .gz, numbered from 1."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Protocol

from attnworks.core.errors import AttnworksError, FolderError, UsageError


class Digest(Protocol):
    """A hash that is being computed, such as hashlib.sha256()."""

    def update(self, data: bytes, /) -> None: ...


LONGEST_LINE = 2**20
"""Bytes of the longest line that is read."""
LARGEST_TEXT = 2**32
"""Bytes of the longest text that is read, unpacked: a pipe or a device may have no end."""


def numbered_lines(path: Path, digest: Digest | None = None) -> Iterator[tuple[int, str | None]]:
    """(number, text without its line end) of every line; the text of a line over LONGEST_LINE bytes is None.

    A byte order mark and Windows line ends are taken off. Whatever is wrong with the file is a one-line error. The
    file may be a pipe, which can be read once: `digest`, such as hashlib.sha256(), is given every byte, unpacked.
    """
    for number, offset, line in _raw_lines(path, digest):
        if len(line) > LONGEST_LINE:
            yield number, None
            continue
        try:
            text = line.decode()
        except UnicodeDecodeError as wrong:
            raise UsageError(
                asked=f"read {path}",
                expected="UTF-8 text",
                got=f"byte 0x{line[wrong.start]:02x} at offset {offset + wrong.start:,} (line {number:,})",
                remedy="save the file as UTF-8",
            ) from None
        if number == 1:
            text = text.removeprefix("\ufeff")
        yield number, text.rstrip("\r\n")


def _raw_lines(path: Path, digest: Digest | None) -> Iterator[tuple[int, int, bytes]]:
    """(number, offset, bytes) of every line; of an overlong one only its beginning."""
    number = offset = 0
    try:
        with path.open("rb") as file, _unpacked(path, file) as stream:
            for number in count(1):
                line = stream.readline(LONGEST_LINE + 1)
                if not line:
                    break
                yield number, offset, line
                offset += _counted(path, offset, line, digest)
                while len(line) > LONGEST_LINE and not line.endswith(b"\n"):
                    line = stream.readline(LONGEST_LINE + 1)
                    offset += _counted(path, offset, line, digest)
    except AttnworksError:
        raise
    except FileNotFoundError:
        raise _unreadable(path, "nothing there", "check the name") from None
    except IsADirectoryError:
        raise _unreadable(path, "a folder", "name a file in it") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as wrong:
        raise _unreadable(path, f"a broken gzip file ({wrong})", "make or fetch the file again") from None
    except (OSError, ValueError) as wrong:
        got = wrong.strerror if isinstance(wrong, OSError) and wrong.strerror else str(wrong)
        raise _unreadable(path, got, "choose a file that can be read") from None
    if number == 1:
        raise _unreadable(path, "an empty file", "choose a file with text in it")


def _counted(path: Path, offset: int, data: bytes, digest: Digest | None) -> int:
    """The number of these bytes, which are given to the digest; an error if the text gets too long with them."""
    if digest is not None:
        digest.update(data)
    if offset + len(data) > LARGEST_TEXT:
        raise UsageError(
            asked=f"read {path}",
            expected=f"at most {LARGEST_TEXT:,} bytes of text",
            got="more",
            remedy="split the text into several files",
        )
    return len(data)


def _unpacked(path: Path, file: io.BufferedReader) -> io.BufferedReader:
    if path.suffix == ".gz":
        return io.BufferedReader(gzip.GzipFile(fileobj=file, mode="rb"))
    return file


def _unreadable(path: Path, got: str, remedy: str) -> FolderError:
    return FolderError(asked=f"read {path}", expected="a text file", got=got, remedy=remedy)
