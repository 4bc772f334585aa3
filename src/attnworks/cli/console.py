"""Where commands print. Control characters of names, files and models are escaped in everything that is printed.

Error messages (`core/errors.py`) and the log of the server (`page/server/app.py`) escape them too, by the same function
`printable`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from attnworks.core.display import Progress as ProgressCallback
from attnworks.core.display import duration, hidden
from attnworks.core.errors import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

PLAIN_EVERY_SECONDS = 10.0


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


def progress_bar(unit: str, screen: Console, *, shown: bool = True, auto_refresh: bool = True) -> Progress:
    """A bar with the number of units done, the time taken and left, and what is being done.

    The description comes last and is the only part that a narrow terminal cuts. The field `left` of a task is the
    number of seconds left; without it, the bar estimates them from its speed. Without `auto_refresh`, the bar is drawn
    only when its method `refresh` is called, and takes no time from measurements.
    """
    from rich import progress
    from rich.table import Column
    from rich.text import Text

    class TimeLeft(progress.ProgressColumn):
        max_refresh = 0.5

        def render(self, task: progress.Task) -> Text:
            seconds = task.fields.get("left", task.time_remaining)
            return Text("" if task.finished or seconds is None else f"{duration(seconds)} left")

    class Description(progress.ProgressColumn):
        def render(self, task: progress.Task) -> Text:
            return Text(task.description, no_wrap=True, overflow="ellipsis")

    return progress.Progress(
        progress.TextColumn(unit),
        progress.BarColumn(bar_width=12),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        TimeLeft(Column(no_wrap=True)),
        Description(Column(no_wrap=False)),
        console=screen,
        disable=not shown,
        auto_refresh=auto_refresh,
    )


@contextmanager
def progress_display(unit: str, *, quiet: bool) -> Iterator[ProgressCallback]:
    """A callback of the public functions that shows a bar on a terminal, and lines elsewhere; nothing if quiet.

    A message, which has a total of 0, is printed and stays. Outside of a terminal each new stage is one line, and long
    stages print how far they are and how long they will take every PLAIN_EVERY_SECONDS.
    """
    if quiet:
        yield hidden
        return
    screen = progress_console()
    with progress_bar(unit, screen, shown=screen.is_terminal) as bar:
        task = bar.add_task("", total=1)
        lines = _PlainLines(screen)

        def show(stage: str, done: int, total: int) -> None:
            if not total:
                screen.print(stage, markup=False)
                return
            bar.update(task, description=stage, completed=done, total=total)
            if not screen.is_terminal:
                lines.show(stage, done, total)

        yield show


class _PlainLines:
    """Progress as lines, for a log."""

    def __init__(self, screen: Console) -> None:
        self.screen, self.stage, self.began, self.printed, self.before = screen, "", 0.0, 0.0, 0

    def show(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage != self.stage:
            self.stage, self.began, self.printed, self.before = stage, now, now, done
            self.screen.print(stage, markup=False)
        elif now - self.printed >= PLAIN_EVERY_SECONDS and self.before < done < total:
            self.printed = now
            left = (now - self.began) * (total - done) / (done - self.before)
            self.screen.print(f"{stage}: {done:,} of {total:,}, about {duration(left)} left", markup=False)


def print_json(data: object) -> None:
    """One JSON document alone on standard output, for machines, in ASCII."""
    sys.stdout.write(json.dumps(data, indent=2).replace("\x7f", "\\u007f") + "\n")


def print_json_line(data: object) -> None:
    """One JSON document as a line of standard output, with letters as they are and control characters escaped."""
    text = json.dumps(data, ensure_ascii=False)
    safe = (c if printable(c) == c else f"\\u{ord(c):04x}" if ord(c) < 2**16 else json.dumps(c)[1:-1] for c in text)
    sys.stdout.write("".join(safe) + "\n")
