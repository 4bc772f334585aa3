"""Checks and colours of all pictures, and the plot of time against length on logarithmic axes."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping
from itertools import cycle
from pathlib import Path
from typing import Any

from attnworks.core.errors import FolderError, MissingExtraError
from attnworks.core.folders import disk_errors

_Curve = Mapping[int, float]
"""Seconds by length."""
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#11a579", "#80531f", "#6c757d")
_POINTS: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.4}
_BASELINE: dict[str, Any] = {"color": "#888888", "linestyle": "--", "linewidth": 1.2}


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def need_matplotlib(path: Path) -> None:
    """An error if matplotlib is not installed."""
    if not can_draw():
        remedy = "pip install 'attnworks[plot]'"
        raise MissingExtraError(f"draw {path.name}", "matplotlib", "an environment without it", remedy)


def check_picture(path: Path) -> None:
    """An error, before any work is done, for a picture that could not be drawn."""
    need_matplotlib(path)
    asked = f"a picture in {path}"
    if path.suffix != ".svg" or path.is_dir() or not path.parent.is_dir():
        got = path.name if path.parent.is_dir() else f"no folder {path.parent}"
        expected = "a file ending in .svg, in a folder that exists"
        raise FolderError(asked, expected, got, "write for instance --plot times.svg")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        got = "no permission to write there"
        raise FolderError(asked, "a file that can be written", got, "choose another place")


def draw_times(
    panels: Mapping[str, Mapping[str, _Curve]], path: Path, *, baseline: str = "dense", bold: str | None = None
) -> None:
    """One panel per title, one line per name; the baseline is grey, and one line may be bold."""
    check_picture(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

    names = dict.fromkeys(name for curves in panels.values() for name in curves if name != baseline)
    colours = dict(zip(names, cycle(PALETTE), strict=False))
    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.4 * columns, 3.6 * rows))
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat[len(panels) :]:
        axis.set_axis_off()
    for axis, (title, curves) in zip(axes.flat, panels.items(), strict=False):
        for name, curve in curves.items():
            style = _BASELINE if name == baseline else {**_POINTS, "color": colours[name]}
            style = {**style, "linewidth": 2.6} if name == bold else style
            places = sorted(curve)
            axis.plot(places, [1e3 * curve[n] for n in places], label=name, **style)
        lengths = sorted({n for curve in curves.values() for n in curve})
        axis.set(xscale="log", yscale="log", title=title, xlabel="positions n", ylabel="milliseconds")
        axis.xaxis.set_major_locator(FixedLocator(lengths))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda n, _: f"{n:,.0f}"))
        axis.yaxis.set_major_formatter(FuncFormatter(lambda time, _: f"{time:g}"))
        axis.yaxis.set_minor_formatter(NullFormatter())
        axis.grid(color="#dddddd", linewidth=0.6)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
        axis.legend(fontsize=7.5, frameon=False)
    figure.tight_layout()
    writing = disk_errors(f"draw {path}", remedy="free space or choose another disk")
    with writing, rc_context({"svg.hashsalt": "attnworks"}):  # equal pictures become equal files
        figure.savefig(path, format="svg", metadata={"Date": None})
