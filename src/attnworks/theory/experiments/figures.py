"""Pictures of the theory of many layers, rank collapse and paths by length, and what all pictures of theory share."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from attnworks.core.folders import disk_errors
from attnworks.core.plotting import need_matplotlib
from attnworks.theory.experiments import collapse, path_lengths
from attnworks.theory.experiments.collapse import ALONE, SKIP, WIRINGS

BLUE, SKY, GREEN, ORANGE, YELLOW, PINK, GREY = (
    "#0072b2", "#56b4e9", "#009e73", "#d55e00", "#e69f00", "#cc79a7", "#777777",
)  # fmt: skip
LINE: dict[str, Any] = {"marker": "o", "markersize": 4, "linewidth": 1.8}
BOUND: dict[str, Any] = {"linestyle": (0, (4, 2)), "linewidth": 1.4}
SMALL = 8.5
NOISE = 2e-14
"""Below about 100 eps, differences between tokens are rounding (D7)."""

FIGURES = ("figure.svg", "figure.png")


# --- what all of them share -------------------------------------------------------------------------------------------


def panels(rows: int, columns: int, width: float, height: float, folder: Path, **shared: Any) -> tuple[Any, Any]:
    """A figure and its grid of axes, with nothing in them that is not needed."""
    need_matplotlib(folder / FIGURES[0])
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, **shared)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(color="#e4e4e4", linewidth=0.6)
        axis.set_axisbelow(True)
        axis.tick_params(labelsize=SMALL)
    return figure, axes


def title(axis: Any, text: str) -> None:
    axis.set_title(text, fontsize=10.5, loc="left")


def save(figure: Any, folder: Path) -> None:
    """As figure.svg and figure.png; the same picture twice is the same file."""
    from matplotlib import rc_context

    writing = disk_errors(f"draw in {folder}", remedy="free space or choose another disk")
    with writing, rc_context({"svg.hashsalt": "attnworks"}):
        figure.savefig(folder / FIGURES[0], format="svg", metadata={"Date": None})
        figure.savefig(folder / FIGURES[1], format="png", dpi=130)


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
            axis.annotate(name, at, xycoords="axes fraction", color=ends[name][1], fontsize=SMALL, va="center")


def _places(group: Sequence[str], height: Callable[[str], float], gap: float) -> list[float]:
    """A gap apart, around their mean height."""
    first = fmean(height(name) for name in group) - gap * (len(group) - 1) / 2
    return [first + gap * place for place in range(len(group))]


def note(
    axis: Any, text: str, x: float, y: float, colour: str, away: tuple[float, float] = (5, 3), **more: Any
) -> None:
    """A word beside a line, `away` points away from a point of the data."""
    from matplotlib.patheffects import withStroke

    style = {"path_effects": [withStroke(linewidth=2.5, foreground="white")], **more}
    axis.annotate(
        text, (x, y), away, textcoords="offset points", color=colour, fontsize=SMALL, in_layout=False, **style
    )


def plain_ticks(axis: Any, values: Sequence[float]) -> None:
    """A logarithmic axis that names these values as they are."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    axis.set_major_locator(FixedLocator(values))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


# --- rank collapse ----------------------------------------------------------------------------------------------------

WIRING_COLOURS = dict(zip(WIRINGS, (ORANGE, YELLOW, PINK, BLUE, SKY, GREEN), strict=True))


def draw_collapse(rows: Sequence[collapse.Row], options: collapse.Options, folder: Path) -> None:
    """Above, how far apart tokens are, layer by layer, in six wirings; below, what the theorems promise."""
    figure, ((left, middle, right), below) = panels(2, 3, 4.3, 3.5, folder)
    ends: dict[str, float] = {}
    for axis, field, words in (
        (left, "relative_residual", "relative residual: 0 is all tokens the same"),
        (middle, "diameter", "largest distance of two tokens"),
        (right, "second_ratio", "second over first singular value"),
    ):
        title(axis, words)
        axis.set_yscale("log")
        ends = {name: _fall(axis, _of(rows, name), field, WIRING_COLOURS[name]) for name in WIRINGS}
        axis.set_xlim(-0.15, options.layers + 0.15)
        _shade_noise(axis)
    name_right(right, {name: (end, WIRING_COLOURS[name]) for name, end in ends.items()})
    for axis, words in zip(
        below,
        (
            "attention alone: distance, and its bounds (D6)",
            "attention alone: residual, and printed bound",
            "with skip: distance, and its bounds",
        ),
        strict=True,
    ):
        title(axis, words)
        axis.set_xlim(-0.15, options.layers + 0.15)
        axis.set_xlabel("after layer", fontsize=9.5)
    _draw_bounds(below[0], _of(rows, ALONE), "diameter", "diameter_bound")
    _draw_bounds(below[1], _of(rows, ALONE), "residual", "printed_bound")
    _draw_skip(below[2], _of(rows, SKIP))
    for axis in (left, middle, right, *below):
        axis.xaxis.get_major_locator().set_params(integer=True)
    save(figure, folder)


def _of(rows: Sequence[collapse.Row], wiring: str) -> list[collapse.Row]:
    return [row for row in rows if row.wiring == wiring]


def _noise(row: collapse.Row, field: str) -> float:
    """Below this, a number is rounding: of the state it is measured in, or of one where it is a share."""
    return max(NOISE, row.rounding) if field in ("diameter", "residual") else NOISE


def _fall(axis: Any, rows: Sequence[collapse.Row], field: str, colour: str, **more: Any) -> float:
    """A line that ends where it meets rounding; its last height."""
    values = [getattr(row, field) for row in rows]
    last = next((place for place, row in enumerate(rows) if values[place] < _noise(row, field)), len(values) - 1)
    shown = [max(value, NOISE) for value in values[: last + 1]]
    axis.plot([row.layer for row in rows[: last + 1]], shown, color=colour, **LINE, **more)
    return shown[-1]


def _shade_noise(axis: Any) -> None:
    from matplotlib.ticker import NullLocator

    axis.set_ylim(NOISE / 20, max(axis.get_ylim()[1], 5.0))
    axis.axhspan(NOISE / 20, NOISE, color="#eeeeee", zorder=0)
    axis.yaxis.set_minor_locator(NullLocator())
    note(axis, "rounding", axis.get_xlim()[0], NOISE / 4.5, GREY, (4, 0), va="center", path_effects=[])


def _bound(axis: Any, rows: Sequence[collapse.Row], field: str, colour: str) -> list[tuple[int, float]]:
    """Dashed, where there is a number; its points."""
    points = [(row.layer, value) for row in rows if (value := getattr(row, field)) is not None]
    if points:
        axis.plot(*zip(*points, strict=True), color=colour, **BOUND)
    return points


def _draw_bounds(axis: Any, rows: Sequence[collapse.Row], measured: str, bound: str) -> None:
    """What was measured, as far as it is above rounding, with its bounds; that from the input may leave the picture."""
    axis.set_yscale("log")
    _fall(axis, rows, measured, ORANGE)
    before = _bound(axis, rows, bound, BLUE)
    _bound(axis, rows, f"{bound}_from_input", GREY)
    shown = [
        (row.layer, getattr(row, measured)) for row in rows if getattr(row, measured) > _noise(row, measured)
    ] + before
    axis.set_xlim(right=min(max(layer for layer, _ in shown) + 2, rows[-1].layer) + 0.15)
    axis.set_ylim(top=max(value for _, value in shown) * 1e6)
    _shade_noise(axis)
    names = {"measured": ORANGE, "bound from the layer before": BLUE, "bound from the input alone": GREY}
    for place, (name, colour) in enumerate(names.items()):
        axis.annotate(name, (0.02, 0.1 + 0.065 * place), xycoords="axes fraction", color=colour, fontsize=SMALL)


def _draw_skip(axis: Any, rows: Sequence[collapse.Row]) -> None:
    axis.plot([row.layer for row in rows], [row.diameter for row in rows], color=BLUE, **LINE)
    low, high = (_bound(axis, rows, field, GREY) for field in ("skip_low", "skip_high"))
    if high[-1][1] > 1e3 * rows[0].diameter:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    ends = {"at most": (high[-1][1], GREY), "measured": (rows[-1].diameter, BLUE), "at least": (low[-1][1], GREY)}
    name_right(axis, ends)


# --- paths ------------------------------------------------------------------------------------------------------------

MOST_NAMED = 13
"""Most bars that have their numbers above them, and no axis."""


def draw_paths(rows: Sequence[path_lengths.Row], options: path_lengths.Options, folder: Path) -> None:
    """How many paths of each length there are, how much they bring, and how alike they leave the tokens."""
    figure, ((count, size, spread),) = panels(1, 3, 4.0, 3.5, folder)
    lengths = [row.length for row in rows]
    for axis, values, words, colour, form in (
        (count, [float(row.count) for row in rows], "how many paths", GREY, "{:,.0f}"),
        (size, [row.size for row in rows], "size of their sum, over that of the output", BLUE, "{:.2g}"),
        (spread, [row.relative_residual for row in rows], "how different they keep the tokens", ORANGE, "{:.2g}"),
    ):
        title(axis, words)
        bars = axis.bar(lengths, values, color=colour, width=0.72)
        axis.grid(False)
        axis.xaxis.get_major_locator().set_params(integer=True)
        if len(rows) <= MOST_NAMED:
            numbers = [(form if value < 1e5 else "{:.0e}").format(value) for value in values]
            axis.bar_label(bars, numbers, fontsize=8, padding=2, color="#444444")
            axis.set(xticks=lengths, yticks=[])
            axis.spines["left"].set_visible(False)
        axis.set_xlabel("layers of attention on the path", fontsize=9.5)
    save(figure, folder)
