"""Pictures of the theory of one layer: two keys for one query, random projections, gradients, a word in its context."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from attnworks.theory.experiments import projection_error, softmax_gradient, two_keys, word_in_context
from attnworks.theory.experiments.figures import (  # fmt: skip
    BLUE,
    BOUND,
    GREEN,
    GREY,
    LINE,
    ORANGE,
    SMALL,
    YELLOW,
    name_right,
    note,
    panels,
    plain_ticks,
    save,
    title,
)
from attnworks.theory.experiments.word_in_context import WORD

# --- two keys ---------------------------------------------------------------------------------------------------------


def draw_two_keys(rows: Sequence[two_keys.Row], options: two_keys.Options, folder: Path) -> None:
    """Dots are simulated, bands hold eight of ten draws, lines are closed forms."""
    figure, ((one, two, variance),) = panels(1, 3, 4.5, 3.8, folder)
    betas = [row.beta for row in rows]
    title(one, "one head asks for a and b: their weights")
    title(two, "two heads ask for one each: their weights")
    title(variance, "variance of the output, over |v_a - v_b|²")
    for axis in (one, two, variance):
        axis.set_xscale("log")
        plain_ticks(axis.xaxis, [beta for beta in (0.5, 1, 2, 4, 8, 16, 32, 64, 128) if betas[0] <= beta <= betas[-1]])
        axis.set_xlim(betas[0] / 1.1, betas[-1] * 1.1)
        axis.set_xlabel("length β of the query", fontsize=9.5)
    for axis, a, b in ((one, "one_a", "one_b"), (two, "two_a", "two_b")):
        axis.set_ylim(-0.02, 1.02)
        ends = {}
        for field, colour, name in ((b, BLUE, "b"), (a, ORANGE, "a, its key varies")):
            weights = [getattr(row, field) for row in rows]
            axis.plot(betas, [weight.mean for weight in weights], "o", markersize=4, color=colour)
            axis.plot(betas, [weight.expected for weight in weights], color=colour, linewidth=1.5)
            ends[name] = (weights[-1].expected, colour)
        low, high = ([getattr(getattr(row, a), end) for row in rows] for end in ("low", "high"))
        axis.fill_between(betas, low, high, color=ORANGE, alpha=0.15, linewidth=0)
        name_right(axis, ends)
    note(one, "a in eight of ten draws", betas[-1], 0.0, ORANGE, (-4, 22), ha="right", path_effects=[])
    spreads = {"one head": ("one_variance", ORANGE), "two heads": ("two_variance", GREEN)}
    for field, colour in spreads.values():
        variance.plot(betas, [getattr(row, field) for row in rows], "o", markersize=4, color=colour)
        variance.plot(betas, [getattr(row, f"{field}_expected") for row in rows], color=colour, linewidth=1.5)
    variance.axhline(0.25, color=GREY, **BOUND)
    variance.set_ylim(0, 0.28)
    ends = {name: (getattr(rows[-1], f"{field}_expected"), colour) for name, (field, colour) in spreads.items()}
    name_right(variance, {**ends, "a or b by chance": (0.25, GREY)})
    save(figure, folder)


# --- random projection ------------------------------------------------------------------------------------------------

MAP_COLOURS = {"identity": ORANGE, "sharp softmax": YELLOW, "diffuse softmax": BLUE, "uniform": GREEN}


def draw_projection(rows: Sequence[projection_error.Row], options: projection_error.Options, folder: Path) -> None:
    """Relative error against k: dots are measured, with bars from the tenth to the ninetieth percent; lines exact."""
    figure, (axes,) = panels(1, 2, 5.4, 4.2, folder, sharey=True)
    for axis, values in zip(axes, projection_error.MEANS, strict=True):
        title(axis, f"values {values}")
        axis.set(xscale="log", yscale="log")
        for name, colour in MAP_COLOURS.items():
            found = [row for row in rows if row.values == values and row.attention == name]
            k = [row.k for row in found]
            axis.plot(k, [row.expected for row in found], color=colour, linewidth=1.5)
            axis.plot(k, [row.error for row in found], "o", markersize=4, color=colour)
            axis.vlines(k, [row.low for row in found], [row.high for row in found], color=colour, linewidth=1)
        axis.axhline(options.epsilon, color=GREY, **BOUND)
        axis.axvline(options.published_k, color=GREY, **BOUND)
        plain_ticks(axis.xaxis, [2**power for power in range(1, (8 * options.tokens).bit_length(), 2)])
        axis.set_xlabel("dimensions k of the projection", fontsize=9.5)
    axes[0].set_ylabel("relative error of P V", fontsize=9.5)
    plain_ticks(axes[0].yaxis, [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10])
    for axis, values in zip(axes, projection_error.MEANS, strict=True):
        last = [row for row in rows if row.values == values and row.k == max(options.dimensions)]
        name_right(axis, {row.attention: (row.expected, MAP_COLOURS[row.attention]) for row in last}, gap=0.055)
    top = axes[0].get_ylim()[1]
    note(
        axes[0], f"the printed k = {options.published_k} ", options.published_k, top, GREY, (0, 0), ha="right", va="top"
    )
    note(axes[0], f"asked for: {options.epsilon:g}", 2, options.epsilon, GREY, (0, 4))
    save(figure, folder)


# --- gradient of softmax ----------------------------------------------------------------------------------------------

SCALE_STYLES = {"unscaled": ORANGE, "1/sqrt(k)": BLUE, "1/k": GREEN}
SCALE_NAMES = {"unscaled": "no scale", "1/sqrt(k)": "1/√k", "1/k": "1/k"}


def draw_gradient(rows: Sequence[softmax_gradient.Row], options: softmax_gradient.Options, folder: Path) -> None:
    """What softmax lets through, how many rows let nothing through, and how even attention is."""
    figure, (axes,) = panels(1, 3, 4.2, 3.7, folder)
    widths = sorted({row.width for row in rows})
    for axis, field, words in zip(
        axes,
        ("median", "share_lost", "entropy"),
        ("gradient of softmax, median", "rows with a gradient below 0.01", "entropy: 1 is uniform attention"),
        strict=True,
    ):
        title(axis, words)
        axis.set_xscale("log")
        ends: dict[str, tuple[float, str]] = {}
        for scale, colour in SCALE_STYLES.items():
            values = [getattr(row, field) for row in rows if row.scale == scale]
            axis.plot(widths, values, color=colour, **LINE)
            ends[SCALE_NAMES[scale]] = (values[-1], colour)
        if field == "median":
            axis.set_yscale("log")
        else:
            axis.set_ylim(-0.03, 1.03)
        plain_ticks(axis.xaxis, widths)
        axis.set_xlabel("width k of the keys", fontsize=9.5)
        name_right(axis, ends)
    save(figure, folder)


# --- a word in its context --------------------------------------------------------------------------------------------

SENTENCE_COLOURS = (BLUE, ORANGE, "#555555")
SPACE_TITLES = {
    "no maps": "no maps",
    "W_q and W_k": "W_q and W_k: at whom to look",
    "W_q, W_k and W_v": "W_v: where to be taken",
}


def draw_context(rows: Sequence[word_in_context.Row], options: word_in_context.Options, folder: Path) -> None:
    """The words as points, the hull that the word cannot leave, and where each sentence takes it."""
    figure, (axes,) = panels(1, len(SPACE_TITLES), 4.6, 2.9, folder)
    for axis, (space, words) in zip(axes, SPACE_TITLES.items(), strict=True):
        title(axis, words)
        axis.set(xlim=(-1.65, 1.65), ylim=(-0.7, 1.2), aspect="equal", xticks=[], yticks=[])
        axis.grid(False)
        axis.spines[:].set_visible(False)
        _draw_space(axis, [row for row in rows if row.space == space])
    note(axes[0], "it cannot leave this triangle", 0.0, 0.2, GREY, (0, 5), ha="center")
    save(figure, folder)


def _draw_space(axis: Any, rows: Sequence[word_in_context.Row]) -> None:
    points = {word: point for row in rows for word, point in row.values.items()}
    x, y = points[WORD]
    middle = fmean(point[0] for point in points.values()), fmean(point[1] for point in points.values())
    axis.fill(*zip(*points.values(), strict=True), facecolor="#f2f2f2", edgecolor="#cccccc", linewidth=1.0, zorder=0)
    for word, point in points.items():
        axis.plot(*point, "o", color="#222222", markersize=6)
        _beside(axis, word, point, (point[0] - middle[0], point[1] - middle[1]), fontsize=10.5)
    for row, colour in zip(rows, SENTENCE_COLOURS, strict=True):
        arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8, "shrinkA": 5, "shrinkB": 0}
        axis.annotate("", row.lands, points[WORD], arrowprops=arrow)
        taken = " + ".join(f"{weight:.0%} {word}" for word, weight in row.weights.items() if word != WORD)
        if len(row.weights) == 2:
            along, down = row.lands[0] - x, row.lands[1] - y
            outwards = (-down, along) if along * (middle[1] - y) - down * (middle[0] - x) < 0 else (down, -along)
            _beside(axis, f"“{row.sentence}”\n{taken}", row.lands, outwards, fontsize=SMALL, color=colour)
        else:
            words = f"“{row.sentence}”: {taken}"
            axis.annotate(words, (0.5, 0.0), xycoords="axes fraction", fontsize=SMALL, color=colour, ha="center")


def _beside(axis: Any, text: str, point: Any, direction: tuple[float, float], **style: Any) -> None:
    """Text some way from a point, in a direction."""
    x, y = (9 * part / (math.hypot(*direction) or 1.0) for part in direction)
    sideways = "center" if abs(x) < 4 else "left" if x > 0 else "right"
    upright = "center" if abs(y) < 4 else "bottom" if y > 0 else "top"
    axis.annotate(text, point, (x, y), textcoords="offset points", ha=sideways, va=upright, in_layout=False, **style)
