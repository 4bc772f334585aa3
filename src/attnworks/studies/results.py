"""The file results.json in the folder of a study: what earlier runs of the study saved."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from attnworks.core.display import rich_html
from attnworks.core.errors import FolderError
from attnworks.core.folders import entries, read_file, write_file

RESULTS_FILE = "results.json"
_T = TypeVar("_T")


class StudyResults:
    """What a study found."""

    has_pictures: ClassVar[bool] = True

    def to_json(self) -> dict[str, Any]:
        raise NotImplementedError

    def draw(self, folder: Path) -> None:
        """Draw the pictures of a study into its folder; needs matplotlib."""
        raise NotImplementedError

    def __rich__(self) -> Any:
        from attnworks.studies.render import study_shown

        return study_shown(self)

    def _repr_html_(self) -> str:
        return rich_html(self)


def read_results(folder: Path, what: str, version: int, read: Callable[[dict[str, Any]], _T]) -> _T | None:
    """`read` of the saved JSON object, which must have this format; None if the folder is new or empty."""
    if not folder.exists() or (folder.is_dir() and not entries(folder)):
        return None
    try:
        table = json.loads(read_file(folder / RESULTS_FILE))
        if table["format"] != version:
            raise ValueError
        return read(table)
    except (OSError, ValueError, KeyError, TypeError) as error:
        asked, expected = f"the {what} in {folder}", f"a new folder, or one with its {RESULTS_FILE}"
        raise FolderError(asked, expected, "something else", "choose another --out") from error


def write_results(folder: Path, table: dict[str, Any]) -> None:
    """Save a JSON object in the folder, which is created if it does not exist."""
    folder.mkdir(parents=True, exist_ok=True)
    write_file(folder / RESULTS_FILE, (json.dumps(table, indent=2) + "\n").encode())
