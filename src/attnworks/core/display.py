"""Numbers and counts for people, and the callback that long computations report their progress to."""

from __future__ import annotations

import io
import math
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from attnworks.core.errors import MissingExtraError

Progress = Callable[[str, int, int], None]
"""(stage, steps done, steps in all). A total of 0 marks a message that is shown once."""


def silent(stage: str, done: int, total: int) -> None:
    """A callback that shows nothing."""
    del stage, done, total


def hidden(stage: str, done: int, total: int) -> None:
    """The progress of a quiet command: nothing is shown, and remarks do not become warnings, as with `silent`."""


def tell_remarks(path: object, remarks: Iterable[str], progress: Progress = silent) -> None:
    """Report remarks on a model to the callback; if that is `silent`, warn at the line of the user's own code."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).partition(".")[0] == "attnworks":
        level, frame = level + 1, frame.f_back
    for remark in remarks:
        if progress is silent:
            warnings.warn(f"{path}: {remark}", stacklevel=level)
        else:
            progress(remark, 0, 0)


def overall_progress(tell: Progress, stages: Mapping[str, float]) -> Progress:
    """A callback for several stages that reports the percentage of the whole work to `tell`.

    stages    the expected cost of each stage, in their order; a stage that is not listed costs nothing

    The percentage never falls, even if a stage is left out or repeated. Messages are passed on unchanged.

    >>> whole = overall_progress(print, {"reading": 3.0, "solving": 1.0})
    >>> whole("reading", 1, 2), whole("solving", 0, 2), whole("reading", 0, 1)
    reading 37 100
    solving 75 100
    reading 75 100
    (None, None, None)
    """
    ends = dict(zip(stages, accumulate(stages.values()), strict=True))
    whole, percent = sum(stages.values()), 0

    def tell_percent(stage: str, done: int, total: int) -> None:
        nonlocal percent
        if not total:
            tell(stage, done, total)
            return
        if whole and stage in stages:
            spent = ends[stage] - stages[stage] * (1 - done / total)
            percent = max(percent, min(100, int(100 * spent / whole + 1e-9)))
        tell(stage, percent, 100)

    return tell_percent


def format_number(value: float) -> str:
    """About three digits; - for NaN.

    >>> format_number(0.12345), format_number(1234567.0)
    ('0.123', '1.2e+06')
    """
    if math.isnan(value):
        return "-"
    size = abs(value)
    if size == 0 or math.isinf(value):
        return f"{value:g}"
    if size < 1e-3 or size >= 1e6:
        return f"{value:.1e}"
    return f"{value:,.{3 if size < 1 else 2 if size < 10 else 1 if size < 100 else 0}f}"


def duration(seconds: float) -> str:
    """A length of time for people.

    >>> duration(8.2), duration(200), duration(9000), duration(284_000)
    ('8 s', '3 min', '2.5 hours', '3.3 days')
    """
    for limit, size, unit in ((90, 1, "s"), (5400, 60, "min")):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 3600:.1f} hours" if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"


def byte_size(size: float) -> str:
    """A number of bytes for people.

    >>> byte_size(999), byte_size(2_080_000), byte_size(7e13)
    ('999 B', '2.08 MB', '70 TB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"


def counted(count: int, unit: str) -> str:
    """The count with its noun in the right number.

    >>> counted(1, "head"), counted(1200, "backward pass"), counted(0, "entry")
    ('1 head', '1,200 backward passes', '0 entries')
    """
    if count != 1:
        unit = f"{unit[:-1]}ies" if unit.endswith("y") else f"{unit}es" if unit.endswith("s") else f"{unit}s"
    return f"{count:,} {unit}"


def listed_layers(layers: Sequence[object], most: int = 4) -> str:
    """Their names: "enc.0, enc.1, enc.2, enc.3 and 2 more layers"."""
    more = len(layers) - most
    return ", ".join(map(str, layers[:most])) + (f" and {counted(more, 'more layer')}" if more > 0 else "")


def data_frame(data: Any, **options: Any) -> Any:
    """A pandas DataFrame of this data; an error with a remedy where pandas is not installed."""
    try:
        import pandas
    except ImportError as error:
        raise MissingExtraError(
            "a DataFrame", "the package pandas", "an environment without it", "pip install 'attnworks[frames]'"
        ) from error
    return pandas.DataFrame(data, **options)


class ShownTable:
    """A result that terminals and notebooks show as a table, in packages that know nothing of rich."""

    def _table(self) -> tuple[str, Sequence[str], Iterable[Sequence[str]]]:
        """The title, the headings and the rows."""
        raise NotImplementedError

    def __rich__(self) -> Any:
        from rich.box import SIMPLE_HEAD
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        title, headings, rows = self._table()
        table = Table(box=SIMPLE_HEAD, pad_edge=False)
        for heading in headings:
            table.add_column(Text(heading), overflow="fold")
        for row in rows:
            table.add_row(*map(Text, row))
        return Group(Text(title, "bold"), table)

    def _repr_html_(self) -> str:
        return rich_html(self)


def rich_html(result: Any) -> str:
    """A result as it looks in a terminal, as HTML for a notebook."""
    from rich.console import Console

    console = Console(record=True, width=110, file=io.StringIO(), highlight=False)
    console.print(result)
    return console.export_html(inline_styles=True, code_format="<pre style='line-height:1.2'>{code}</pre>")
