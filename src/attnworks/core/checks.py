"""Checks of arguments. Each raises an error for a value that cannot be used, and returns or accepts any other."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from attnworks.core.errors import FolderError, UsageError
from attnworks.core.folders import disk_errors, entries
from attnworks.core.registry import unknown_name

LARGEST_FLOAT = 1e30
"""The largest value of any argument."""
IN_RANGE = "choose a value in that range"


def integer(what: str, value: object, low: int, high: int | None = None, remedy: str = IN_RANGE) -> int:
    """A whole number from `low` to `high`. True and False do not count as numbers."""
    if type(value) is not int or value < low or (high is not None and value > high):
        expected = f"a whole number from {low:,}" + (f" to {high:,}" if high is not None else "")
        raise _wrong_value(what, value, expected, remedy)
    return value


def number(
    what: str,
    value: object,
    low: float,
    high: float = LARGEST_FLOAT,
    *,
    above: bool = False,
    below: bool = False,
    remedy: str = IN_RANGE,
) -> float:
    """A number from `low` to `high`; `above` excludes `low` itself, and `below` excludes `high` itself."""
    if (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and (low < value if above else low <= value)
        and (value < high if below else value <= high)
    ):
        return value
    expected = f"a number {'above' if above else 'from'} {low:g}"
    if high != LARGEST_FLOAT:
        expected += f" and below {high:g}" if below else f" and at most {high:g}" if above else f" to {high:g}"
    raise _wrong_value(what, value, expected, remedy)


def choice(kind: str, value: str, known: Iterable[str]) -> str:
    """One of the names `known`; the error for another one names the closest."""
    if value not in (known := list(known)):
        raise unknown_name(kind, str(value), known)
    return value


def text(what: str, value: object, remedy: str) -> str:
    """A string."""
    if not isinstance(value, str):
        raise UsageError(what, "text", type(value).__name__, remedy)
    return value


def each(what: str, count: int, wanted: int, unit: str) -> None:
    """As many values as there are heads."""
    if count != wanted:
        raise UsageError(what, f"{wanted} {unit}", str(count), "give one for all heads, or as many as there are heads")


def one_of_options(asked: str, given: Mapping[str, object], remedy: str, *, optional: bool = False) -> None:
    """Exactly one of the named options is set, to other than None and False; with `optional`, at most one."""
    found = [name for name, value in given.items() if value is not None and value is not False]
    if len(found) > 1 or not (found or optional):
        none, all_of_them = ("neither", "both") if len(given) == 2 else ("none of them", " and ".join(found))
        raise UsageError(asked, " or ".join(given), all_of_them if found else none, remedy)


def new_place(path: Path, verb: str = "write to", remedy: str = "choose another --out") -> None:
    """A path that does not exist yet, in a folder that can be written to, or that does not exist yet either."""
    asked = f"{verb} {path}"
    with disk_errors(asked, remedy):
        if path.exists():
            raise FolderError(asked, "a path that does not exist yet", "an existing file or folder", remedy)
        home = next(parent for parent in path.absolute().parents if parent.exists())
    if not home.is_dir() or not os.access(home, os.W_OK):
        raise FolderError(asked, "a folder that can be written to", f"{home}, which cannot", remedy)


def own_folder(folder: Path, what: str, files: Collection[str]) -> bool:
    """True of a folder that holds some of these files and no others, False of one that is new or empty."""
    names = {path.name for path in entries(folder)} if folder.is_dir() else set()
    others = names.difference(files)
    if others or (folder.exists() and not folder.is_dir()):
        found = f"a folder with {min(others)}" if others else "a file"
        raise FolderError(f"{what} in {folder}", f"a new folder, or one with {what}", found, "choose another --out")
    return bool(names)


def _wrong_value(what: str, value: object, expected: str, remedy: str) -> UsageError:
    shown = repr(value) if len(repr(value)) <= 60 else f"{repr(value)[:57]}..."
    return UsageError(f"{what}{' ' if what.startswith('--') else '='}{shown}", expected, shown, remedy)
