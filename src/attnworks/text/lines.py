"""The lines of a UTF-8 file, gzipped if its name ends in .gz, and the report of what was left out."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Protocol

from attnworks.core.errors import AttnworksError, FolderError, UsageError
from attnworks.text.pair import Pair
from attnworks.text.words import words

LONGEST_LINE = 2**20
"""Bytes of the longest line that is read."""
LARGEST_TEXT = 2**32
"""Bytes of the longest text that is read, unpacked: a pipe or a device may have no end."""
MOST_WORDS = 1_000
"""A side with more words than this is no sentence but an accident."""
FEW = 5
"""How many numbers are remembered per reason."""


class Digest(Protocol):
    """A hash that is being computed, such as hashlib.sha256()."""

    def update(self, data: bytes, /) -> None: ...


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


@dataclass(frozen=True)
class Report:
    """The usable pairs and the lines (rows, entries) that were left out.

    read         usable pairs
    bad          how many were left out
    reasons      reason -> how many
    first_lines  reason -> the numbers of the first few, from 1, where they are numbered
    unit         what is counted: line, row or entry
    """

    read: int
    bad: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    first_lines: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unit: str = "line"

    def summary(self) -> str:
        """For people, e.g. `151,089 pairs; 3 lines left out: no tab (lines 7, 19), empty side (line 40)`."""
        pairs = _count(self.read, "pair")
        return f"{pairs}; {self.left_out()}" if self.bad else pairs

    def left_out(self) -> str:
        """The second half of the summary."""
        reasons = ", ".join(f"{reason} ({self._where(reason)})" for reason in self.reasons)
        return f"{_count(self.bad, self.unit)} left out: {reasons}" if self.bad else f"nothing but blank {self.unit}s"

    def _where(self, reason: str) -> str:
        count, numbers = self.reasons[reason], self.first_lines.get(reason, ())
        if not numbers:
            return f"{count:,}"
        more = f" and {count - len(numbers):,} more" if count > len(numbers) else ""
        return f"{_plural(count, self.unit)} {', '.join(map(str, numbers))}{more}"


class Tally:
    """Turns texts into pairs and keeps count; its `report` is what it counted so far."""

    def __init__(self, unit: str = "line") -> None:
        self._unit = unit
        self._read = 0
        self._reasons: dict[str, int] = {}
        self._first: dict[str, tuple[int, ...]] = {}

    def pair(self, source: str, target: str, number: int | None = None) -> Pair | None:
        """The pair of two texts, or None (and a reason counted) if it is unusable."""
        if "\0" in source or "\0" in target:
            return self.leave_out("NUL byte", number)
        pair = Pair(words(source), words(target))
        if not pair.source or not pair.target:
            return self.leave_out("empty side", number)
        if max(len(pair.source), len(pair.target)) > MOST_WORDS:
            return self.leave_out(f"more than {MOST_WORDS:,} words", number)
        self._read += 1
        return pair

    def leave_out(self, reason: str, number: int | None = None) -> None:
        """Count something unusable, with its number where it has one."""
        self._reasons[reason] = self._reasons.get(reason, 0) + 1
        first = self._first.get(reason, ())
        if number is not None and len(first) < FEW:
            self._first[reason] = (*first, number)

    def report(self) -> Report:
        return Report(self._read, sum(self._reasons.values()), dict(self._reasons), dict(self._first), self._unit)


def _count(count: int, unit: str) -> str:
    return f"{count:,} {_plural(count, unit)}"


def _plural(count: int, unit: str) -> str:
    if count == 1:
        return unit
    return f"{unit[:-1]}ies" if unit.endswith("y") else f"{unit}s"
