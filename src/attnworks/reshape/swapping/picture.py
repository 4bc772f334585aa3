"""Draw error against speed of every mechanism in every layer; the best ones are at the upper left."""

from __future__ import annotations

from itertools import cycle
from pathlib import Path

from attnworks.core.folders import disk_errors
from attnworks.core.plotting import PALETTE, check_picture
from attnworks.reshape.swapping.advice import Advice

SHAPES = {"enc": ("o", "encoder"), "dec": ("s", "decoder"), "cross": ("^", "cross-attention")}
MIN_DRAWN_ERROR = 1e-6
"""Smaller errors are drawn here, because a logarithmic axis has no zero."""


def draw_advice(advice: Advice, path: Path) -> None:
    """A colour per mechanism, a shape per kind of layer, the layer's number beside it, rings around the chosen.

    Vertical lines are 95 % intervals of speed.
    """
    check_picture(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    now = {layer.slot: layer.seconds for layer in advice.present}
    colours = dict(zip(dict.fromkeys(trial.spec for trial in advice.trials), cycle(PALETTE), strict=False))
    figure = Figure(figsize=(7.6, 4.6))
    axis = figure.subplots()
    named: set[str] = set()
    for trial in advice.trials:
        if trial.error is None or trial.seconds is None:
            continue
        kind, _, number = trial.slot.partition(".")
        x, y, (shape, _) = max(trial.error, MIN_DRAWN_ERROR), now[trial.slot] / trial.seconds, SHAPES[kind]
        label = None if trial.spec in named else trial.spec
        named.add(trial.spec)
        axis.scatter(x, y, s=26, marker=shape, color=colours[trial.spec], label=label, zorder=3)
        if trial.time_interval is not None:
            slowest, fastest = (1 / share for share in reversed(trial.time_interval))
            axis.plot([x, x], [slowest, fastest], color=colours[trial.spec], linewidth=1.2, zorder=2)
        axis.annotate(number, (x, y), xytext=(4, 3), textcoords="offset points", fontsize=6, color="#555555")
        if advice.chosen.get(trial.slot) == trial.spec:
            axis.scatter(x, y, s=120, marker="o", facecolors="none", edgecolors="#000000", linewidths=1.2, zorder=4)
    for kind in dict.fromkeys(slot.partition(".")[0] for slot in now):
        shape, name = SHAPES[kind]
        axis.scatter([], [], s=26, marker=shape, color="#888888", label=name)
    axis.scatter([], [], s=120, marker="o", facecolors="none", edgecolors="#000000", label="chosen")
    if advice.max_error > 0:
        axis.axvline(advice.max_error, color="#888888", linestyle="--", linewidth=1.0)
    axis.axhline(1.0, color="#888888", linewidth=0.8)
    axis.set(xscale="log", yscale="log", xlabel="relative error of attention")
    axis.set_ylabel(f"times faster at length {advice.length:,}")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        side.set_minor_formatter(NullFormatter())
    axis.grid(color="#dddddd", linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    figure.tight_layout()
    writing = disk_errors(f"draw {path}", remedy="free space or choose another disk")
    with writing, rc_context({"svg.hashsalt": "attnworks"}):  # the same picture twice is the same file
        figure.savefig(path, format="svg", metadata={"Date": None})
