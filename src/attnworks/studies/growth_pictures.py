"""Pictures of the study of growth: the loss against steps after growth, parameters and training time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from attnworks.core.folders import disk_errors
from attnworks.core.plotting import need_matplotlib
from attnworks.studies.growth import (
    ALL_WAYS,
    FINAL_WIDTH,
    FROM_SCRATCH,
    NO_GROWTH,
    START_WIDTH,
    WAYS_ALONG,
    GrowthRun,
    GrowthStudySettings,
    runs_of_way,
)

_STYLES: dict[str, dict[str, Any]] = {
    "fisher": {"color": "#0072b2", "linewidth": 2.4},
    "whitened": {"color": "#56b4e9", "linewidth": 1.8},
    "random": {"color": "#e69f00"},
    "zero": {"color": "#009e73"},
    "split": {"color": "#80531f"},
    "gradmax": {"color": "#cc79a7"},
    "document": {"color": "#d55e00", "linestyle": (0, (1, 1.2))},
    "document-descending": {"color": "#d55e00", "linestyle": (0, (4, 1.5))},
    NO_GROWTH: {"color": "#888888", "linestyle": (0, (1, 1.2))},
    FROM_SCRATCH: {"color": "#333333", "linestyle": (0, (4, 1.5))},
}
_SHORT_NAMES = {NO_GROWTH: "no growth", FROM_SCRATCH: "from scratch, same size and steps"}
_LINE: dict[str, Any] = {"linewidth": 1.5}
_BAND: dict[str, Any] = {"alpha": 0.13, "linewidth": 0}
_LEADER: dict[str, Any] = {
    "arrowstyle": "-", "linewidth": 0.6, "alpha": 0.6, "shrinkA": 1, "shrinkB": 2, "relpos": (0, 0.5),
}  # fmt: skip
_LABEL_GAP = 0.052
"""The smallest distance between two labels, as a share of the height of a panel."""


class _Curve(NamedTuple):
    """Means over seeds, and the range of the losses."""

    x: Sequence[float]
    loss: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]


def draw_growth(runs: Sequence[GrowthRun], path: Path) -> None:
    """Loss after growth against steps, one panel for each number of columns added."""
    adds = sorted({run.add for run in runs if run.part == "once" and run.add})
    figure, axes = _panels(len(adds), path)
    for axis, add in zip(axes, adds, strict=True):
        runs_by_way = {way: runs_of_way(runs, "once", add, way) for way in ALL_WAYS}
        curves = {way: _by_step(found) for way, found in runs_by_way.items() if found}
        axis.set(title=f"d_k {START_WIDTH} → {START_WIDTH + add}", xlabel="steps after growth", ylabel="held-out loss")
        _draw(axis, curves)
    _save(figure, path)


def draw_parameters(runs: Sequence[GrowthRun], settings: GrowthStudySettings, path: Path) -> None:
    """Loss against parameters: at the last step of each width, and of models that had this width from the start."""
    figure, (axis,) = _panels(1, path)
    curves: dict[str, _Curve] = {}
    sizes: dict[int, int] = {}
    for way in (way for way in WAYS_ALONG if any(run.part == "along" and run.way == way for run in runs)):
        ends = []
        for width in range(START_WIDTH, FINAL_WIDTH + 1):
            add = width - START_WIDTH if way == FROM_SCRATCH else FINAL_WIDTH - START_WIDTH
            points = [
                next(point for point in run.points if point.step == settings.every * width)
                for run in runs_of_way(runs, "along", add, way)
            ]
            sizes |= {point.d_k: point.parameters for point in points}
            if points:
                ends.append(([point.parameters for point in points], [point.loss for point in points]))
        curves[way] = _curve(ends)
    steps = f"after {settings.every:,} steps for each width"
    axis.set(title=f"growing along the way, {steps}", xlabel="parameters", ylabel="held-out loss")
    _draw(axis, curves, marker="o", markersize=4.5)
    axis.set_xticks([sizes[d_k] for d_k in sorted(sizes)], [f"{sizes[d_k]:,}\nd_k = {d_k}" for d_k in sorted(sizes)])
    _save(figure, path)


def draw_time(runs: Sequence[GrowthRun], path: Path) -> None:
    """Loss against the seconds of training and growing, in part "along"."""
    figure, (axis,) = _panels(1, path)
    curves: dict[str, _Curve] = {}
    for way in WAYS_ALONG:
        found = runs_of_way(runs, "along", FINAL_WIDTH - START_WIDTH, way)
        if found:
            by_step = zip(*(run.points for run in found), strict=True)
            curves[way] = _curve([([one.seconds for one in seeds], [one.loss for one in seeds]) for seeds in by_step])
    axis.set(title=f"growing along the way, d_k {START_WIDTH} → {FINAL_WIDTH}", ylabel="held-out loss")
    axis.set_xlabel("seconds of training and growing, without tests")
    _draw(axis, curves, marker="o", markersize=3)
    _save(figure, path)


def _by_step(runs: Sequence[GrowthRun]) -> _Curve:
    steps = sorted({point.step for point in runs[0].points})
    return _curve([([step], [run.loss(step) for run in runs]) for step in steps])


def _curve(points: Sequence[tuple[Sequence[float], Sequence[float]]]) -> _Curve:
    """A curve from pairs of (x of every seed, loss of every seed)."""
    rows = [(fmean(x), fmean(losses), min(losses), max(losses)) for x, losses in points]
    return _Curve(*zip(*rows, strict=True))


def _panels(number: int, path: Path) -> tuple[Any, Sequence[Any]]:
    need_matplotlib(path)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4 * number, 4.8))
    return figure, figure.subplots(1, number, squeeze=False)[0]


def _draw(axis: Any, curves: Mapping[str, _Curve], **marks: Any) -> None:
    """Lines with bands on a logarithmic axis of losses, each with its name at the end."""
    from matplotlib.ticker import FuncFormatter, LogFormatter

    axis.set_yscale("log")
    for way, curve in curves.items():
        style = {**_LINE, **_STYLES[way]}
        axis.plot(curve.x, curve.loss, **style, **marks)
        if curve.low != curve.high:
            axis.fill_between(curve.x, curve.low, curve.high, color=style["color"], **_BAND)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda loss, _: f"{loss:g}"))
    axis.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.0, 0.5)))
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.margins(x=0.02)
    _name_ends(axis, curves)


def _name_ends(axis: Any, curves: Mapping[str, _Curve]) -> None:
    """Names to the right of the panel at the height of their lines, moved apart where they would overlap."""
    axis.get_ylim()  # computes the limits of the axis
    to_panel = axis.transData + axis.transAxes.inverted()
    heights = {way: float(to_panel.transform((curve.x[-1], curve.loss[-1]))[1]) for way, curve in curves.items()}
    ranked = sorted(heights, key=lambda way: heights[way])
    for way, place in zip(ranked, _spread_apart([heights[way] for way in ranked]), strict=True):
        colour = _STYLES[way]["color"]
        axis.annotate(
            _SHORT_NAMES.get(way, way), (curves[way].x[-1], curves[way].loss[-1]), (1.05, place),
            "data", "axes fraction",
            color=colour, fontsize=8.5, va="center", annotation_clip=False,
            arrowprops={**_LEADER, "color": colour},
        )  # fmt: skip


def _spread_apart(heights: Sequence[float]) -> list[float]:
    """Increasing heights with at least a gap between them; labels that would overlap stay around their mean.

    >>> [round(height, 3) for height in _spread_apart([0.1, 0.5, 0.5])]
    [0.1, 0.474, 0.526]
    """
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _spread(groups[-1])[0] - _spread(groups[-2])[-1] < _LABEL_GAP:
            last = groups.pop()
            groups[-1] += last
    return [place for group in groups for place in _spread(group)]


def _spread(group: Sequence[float]) -> list[float]:
    first = fmean(group) - _LABEL_GAP * (len(group) - 1) / 2
    return [first + _LABEL_GAP * place for place in range(len(group))]


def _save(figure: Any, path: Path) -> None:
    from matplotlib import rc_context

    figure.tight_layout()
    writing = disk_errors(f"draw {path}", remedy="free space or choose another disk")
    with writing, rc_context({"svg.hashsalt": "attnworks"}):  # the same picture twice is the same file
        figure.savefig(path, format="svg", metadata={"Date": None}, bbox_inches="tight")
