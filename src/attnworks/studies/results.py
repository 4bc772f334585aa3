"""The results that an earlier run of a study saved in its folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from attnworks.core.errors import FolderError
from attnworks.core.folders import entries, read_file

T = TypeVar("T")


def read_results(folder: Path, name: str, what: str, version: int, read: Callable[[dict[str, Any]], T]) -> T | None:
    """`read` of the JSON object in folder/name, which must have this format; None if the folder is new or empty."""
    if not folder.exists() or (folder.is_dir() and not entries(folder)):
        return None
    try:
        table = json.loads(read_file(folder / name))
        if table["format"] != version:
            raise ValueError
        return read(table)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FolderError(
            f"the {what} in {folder}", f"a new folder, or one with its {name}", "something else", "choose another --out"
        ) from error
