"""Colours, panels, labels and files of the figures of all experiments of the theory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from attnworks.core.folders import disk_errors
from attnworks.core.plotting import need_matplotlib

BLUE, SKY, GREEN, ORANGE, YELLOW, PINK, GREY = (
    "#0072b2", "#56b4e9", "#009e73", "#d55e00", "#e69f00", "#cc79a7", "#777777",
)  # fmt: skip
LINE_STYLE: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.8}
BOUND_STYLE: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.4}
SMALL_FONT = 8.5

FIGURE_FILES = ("figure.svg", "figure.png")


def panels(rows: int, columns: int, width: float, height: float, folder: Path, **shared: Any) -> tuple[Any, Any]:
    """A figure and its grid of axes, with nothing in them that is not needed."""
    need_matplotlib(folder / FIGURE_FILES[0])
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#e4e4e4", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=SMALL_FONT)
    return figure, axes


def title(axis: Any, text: str) -> None:
    axis.set_title(text, fontsize=10.5, loc="left")


def save_figure(figure: Any, folder: Path) -> None:
    """As figure.svg and figure.png; the same picture twice is the same file."""
    from matplotlib import rc_context

    writing = disk_errors(f"draw in {folder}", remedy="free space or choose another disk")
    with writing, rc_context({"svg.hashsalt": "attnworks"}):
        figure.savefig(folder / FIGURE_FILES[0], format="svg", metadata={"Date": None})
        figure.savefig(folder / FIGURE_FILES[1], format="png", dpi=130)


def name_right(axis: Any, ends: Mapping[str, tuple[float, str]], gap: float = 0.068) -> None:
    """Names at the right edge at the height of a value, in a colour, moved apart where they would meet.

    To be called last: it reads the limits of the axis.
    """
    low, high = axis.get_ylim()
    to_panel = axis.transData + axis.transAxes.inverted()

    def height(name: str) -> float:
        return float(to_panel.transform((axis.get_xlim()[1], min(max(ends[name][0], low), high)))[1])

    groups: list[list[str]] = []
    for name in sorted(ends, key=height):
        groups.append([name])
        while len(groups) > 1 and _places(groups[-1], height, gap)[0] - _places(groups[-2], height, gap)[-1] < gap:
            groups[-2:] = [groups[-2] + groups[-1]]
    for group in groups:
        for name, place in zip(group, _places(group, height, gap), strict=True):
            at = (1.02, place)
            axis.annotate(name, at, xycoords="axes fraction", color=ends[name][1], fontsize=SMALL_FONT, va="center")


def _places(group: Sequence[str], height: Callable[[str], float], gap: float) -> list[float]:
    """A gap apart, around their mean height."""
    first = fmean(height(name) for name in group) - gap * (len(group) - 1) / 2
    return [first + gap * place for place in range(len(group))]


def note(
    axis: Any, text: str, x: float, y: float, colour: str, away: tuple[float, float] = (5, 3), **more: Any
) -> None:
    """Write text next to a line, `away` points from a point of the data."""
    from matplotlib.patheffects import withStroke

    style = {"path_effects": [withStroke(linewidth=2.5, foreground="white")], **more}
    axis.annotate(
        text, (x, y), away, textcoords="offset points", color=colour, fontsize=SMALL_FONT, in_layout=False, **style
    )


def plain_ticks(axis: Any, values: Sequence[float]) -> None:
    """A logarithmic axis that names these values as they are."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(values))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
