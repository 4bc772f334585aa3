"""Where commands print."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def console() -> Console:
    """Results go to standard output; in a pipe without colour, and as wide as COLUMNS says, or 120."""
    from rich.console import Console

    told = os.environ.get("COLUMNS", "")
    width = None if sys.stdout.isatty() else int(told) if told.isdigit() and int(told) > 0 else 120
    return Console(highlight=False, width=width)


def progress_console() -> Console:
    """Progress and advice go to standard error, in lines that are never broken."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def progress_bar(unit: str, screen: Console, *, shown: bool = True) -> Progress:
    """A bar with the number of units done, a description, and the time taken and left."""
    from rich import progress

    return progress.Progress(
        progress.TextColumn(unit),
        progress.MofNCompleteColumn(),
        progress.BarColumn(),
        progress.TextColumn("{task.description}"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left"),
        progress.TimeRemainingColumn(),
        console=screen,
        disable=not shown,
    )


def print_json(data: object) -> None:
    """One JSON document alone on standard output, for machines."""
    sys.stdout.write(json.dumps(data, indent=2) + "\n")
