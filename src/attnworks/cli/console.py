"""Where commands print. Control characters of names, files and models are escaped in everything that is printed.

Error messages (`core/errors.py`) and the log of the server (`page/server/app.py`) escape them too, by the same function
`printable`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

import click

from attnworks.core.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def echo(text: str, *, err: bool = False) -> None:
    """Print one or several lines."""
    click.echo(printable(text, keep="\n\t"), err=err)


def console() -> Console:
    """Results go to standard output; in a pipe without colour, and as wide as COLUMNS says, or 120."""
    told = os.environ.get("COLUMNS", "")
    width = None if sys.stdout.isatty() else int(told) if told.isdigit() and int(told) > 0 else 120
    return _console(width=width)


def progress_console() -> Console:
    """Progress and advice go to standard error, in lines that are never broken."""
    return _console(stderr=True, soft_wrap=True)


def _console(**options: Any) -> Console:
    """A console that escapes the control characters of all text; rich writes its own in segments of their own."""
    from rich.console import Console
    from rich.segment import Segment

    class SafeConsole(Console):
        def render(self, *given: Any, **options: Any) -> Any:
            for segment in super().render(*given, **options):
                text = printable(segment.text, keep="\n")
                yield segment if segment.control or text == segment.text else Segment(text, segment.style)

    return SafeConsole(highlight=False, **options)


def progress_bar(unit: str, screen: Console, *, shown: bool = True) -> Progress:
    """A bar with the number of units done, a description, and the time taken and left."""
    from rich import progress

    return progress.Progress(
        progress.TextColumn(unit),
        progress.MofNCompleteColumn(),
        progress.BarColumn(),
        progress.TextColumn("{task.description}"),
        progress.TimeElapsedColumn(),
        progress.TextColumn("elapsed,"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("left"),
        console=screen,
        disable=not shown,
    )


def print_json(data: object) -> None:
    """One JSON document alone on standard output, for machines, in ASCII."""
    sys.stdout.write(json.dumps(data, indent=2).replace("\x7f", "\\u007f") + "\n")


def print_json_line(data: object) -> None:
    """One JSON document as a line of standard output, with letters as they are and control characters escaped."""
    text = json.dumps(data, ensure_ascii=False)
    safe = (c if printable(c) == c else f"\\u{ord(c):04x}" if ord(c) < 2**16 else json.dumps(c)[1:-1] for c in text)
    sys.stdout.write("".join(safe) + "\n")
