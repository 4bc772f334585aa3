"""How fast the tokens of a random network become the same vector, and the bounds of the theorems on it.

Source: Xie 2021, theorem 2.2 (S0.15-S0.20); the rank post (S1.14-S1.16); the bounds that hold are D5 and D6.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

from jaxtyping import Float
from torch import Tensor

from attnworks.exam.linalg.bounds import (
    HeadSizes,
    diameter_bound,
    head_sizes,
    published_bound,
    published_factor,
    rounding_of_rows,
    row_diameter,
    skip_bounds,
)
from attnworks.exam.linalg.residual import composite, relative_residual, residual
from attnworks.exam.linalg.spectrum import second_ratio, singular_values
from attnworks.theory.experiments import figures
from attnworks.theory.experiments.contract import ResultTable, three_digits
from attnworks.theory.experiments.figures import BLUE, GREEN, GREY, ORANGE, PINK, SKY, YELLOW
from attnworks.theory.experiments.random_network import NetworkExperiment, check_size

ALONE, SKIP = "attention alone", "skip"
WIRINGS: dict[str, tuple[str, ...]] = {
    ALONE: (),
    "MLP": ("mlp",),
    "norm": ("norm",),
    SKIP: ("skip",),
    "skip, MLP": ("skip", "mlp"),
    "skip, MLP, norm": ("skip", "mlp", "norm"),
}

_ROUNDING_FLOOR = 2e-14
"""Below about 100 eps, differences between tokens are rounding (D7)."""


@dataclass(frozen=True)
class CollapseRow:
    """The state after a layer, 0 being the input: how far apart its tokens are, and how far they could be.

    residual        composite residual from the mean row, of which the printed bound speaks
    rounding        100 eps max |Z|: smaller values are noise (D7), and smaller bounds are None
    *_bound         from what was measured one layer before; *_from_input from the input and the weights alone
    printed_size    c rho^2 one layer before: the printed bound falls with depth where it is below 1
    Bounds are given where they apply, those of skip_low and skip_high with skip only, the others for attention alone;
    they are None too where they overflow.
    """

    wiring: str
    layer: int
    relative_residual: float
    diameter: float
    second_ratio: float
    residual: float
    rounding: float
    diameter_bound: float | None = None
    diameter_bound_from_input: float | None = None
    printed_bound: float | None = None
    printed_bound_from_input: float | None = None
    printed_size: float | None = None
    skip_low: float | None = None
    skip_high: float | None = None


@dataclass(frozen=True, kw_only=True)
class CollapseExperiment(NetworkExperiment[CollapseRow]):
    """How the tokens of a random network come together, layer by layer, in six wirings; medians over the seeds."""

    def run(self) -> list[CollapseRow]:
        """Every wiring, layer by layer."""
        rows: list[CollapseRow] = []
        for wiring in WIRINGS:
            seeds = [_one_seed(self, wiring, seed) for seed in range(self.seed, self.seed + self.seeds)]
            rows += [_median(at_layer) for at_layer in zip(*seeds, strict=True)]
        return rows

    def tables(self, rows: Sequence[CollapseRow]) -> list[ResultTable]:
        layers = sorted({row.layer for row in rows})
        shown = layers if len(layers) <= 10 else sorted({*layers[:5], *layers[5 :: len(layers) // 5], layers[-1]})
        seeds = f", median of {self.seeds} seeds" if self.seeds > 1 else ""
        spread = ResultTable(f"Relative residual after each layer{seeds}", "wiring", *map(str, shown))
        for wiring in WIRINGS:
            spread.add_row(wiring, *(_small(row.relative_residual) for row in _of(rows, wiring) if row.layer in shown))
        bounds = ResultTable(
            "What the theorems say", "after layer", "distance", "bound", "from input", "residual", "printed",
            "from input", "skip: at least", "distance", "at most", left=0,
        )  # fmt: skip
        for alone, skip in zip(_of(rows, ALONE), _of(rows, SKIP), strict=True):
            if alone.layer in shown:
                bounds.add_row(
                    str(alone.layer), _small(alone.diameter, alone.rounding), three_digits(alone.diameter_bound),
                    three_digits(alone.diameter_bound_from_input), _small(alone.residual, alone.rounding),
                    three_digits(alone.printed_bound), three_digits(alone.printed_bound_from_input),
                    *map(three_digits, (skip.skip_low, skip.diameter, skip.skip_high)),
                )  # fmt: skip
        return [spread, bounds]

    def sentences(self, rows: Sequence[CollapseRow]) -> list[str]:
        """Which wirings collapse and when, and whether the bounds predict it."""
        gone: list[str] = []
        kept: list[str] = []
        for wiring in WIRINGS:
            found = _of(rows, wiring)
            first = next((row.layer for row in found if row.relative_residual < 1e-6), None)
            last = f"{wiring} {three_digits(found[-1].relative_residual)}"
            kept.append(last) if first is None else gone.append(f"{wiring} after layer {first}")
        sentences = [f"All tokens the same within a millionth: {'; '.join(gone)}." if gone else "No wiring collapses."]
        if kept:
            sentences.append(f"Relative residual at the end of the others: {'; '.join(kept)}.")
        alone = _of(rows, ALONE)
        chained = [row.diameter_bound_from_input for row in alone if row.diameter_bound_from_input is not None]
        falls = not chained or chained[-1] < alone[0].diameter
        does = "falls" if falls else "does not fall"
        sentences.append(
            f"From the input alone, the bound on the distance {does} with depth; the printed one falls where c ρ² is "
            f"below 1, and here it is {three_digits(alone[1].printed_size)}."
        )
        return sentences

    def draw(self, rows: Sequence[CollapseRow], folder: Path) -> None:
        """Above, how far apart tokens are, layer by layer, in six wirings; below, what the theorems promise."""
        figure, ((left, middle, right), below) = figures.panels(2, 3, 4.3, 3.5, folder)
        ends: dict[str, float] = {}
        for axis, field, words in (
            (left, "relative_residual", "relative residual: 0 is all tokens the same"),
            (middle, "diameter", "largest distance of two tokens"),
            (right, "second_ratio", "second over first singular value"),
        ):
            figures.title(axis, words)
            axis.set_yscale("log")
            ends = {name: _fall(axis, _of(rows, name), field, _WIRING_COLOURS[name]) for name in WIRINGS}
            axis.set_xlim(-0.15, self.num_layers + 0.15)
            _shade_noise(axis)
        figures.name_right(right, {name: (end, _WIRING_COLOURS[name]) for name, end in ends.items()})
        for axis, words in zip(
            below,
            (
                "attention alone: distance, and its bounds (D6)",
                "attention alone: residual, and printed bound",
                "with skip: distance, and its bounds",
            ),
            strict=True,
        ):
            figures.title(axis, words)
            axis.set_xlim(-0.15, self.num_layers + 0.15)
            axis.set_xlabel("after layer", fontsize=9.5)
        _draw_bounds(below[0], _of(rows, ALONE), "diameter", "diameter_bound")
        _draw_bounds(below[1], _of(rows, ALONE), "residual", "printed_bound")
        _draw_skip(below[2], _of(rows, SKIP))
        for axis in (left, middle, right, *below):
            axis.xaxis.get_major_locator().set_params(integer=True)
        figures.save_figure(figure, folder)


def _small(value: float, rounding: float = _ROUNDING_FLOOR) -> str:
    return "≈ 0" if value < rounding else three_digits(value)


def _one_seed(experiment: CollapseExperiment, wiring: str, seed: int) -> list[CollapseRow]:
    network = experiment.draw_network(seed, **dict.fromkeys(WIRINGS[wiring], True))
    states = network.states(experiment.draw_input(seed))
    check_size(states[-1])
    sizes = [head_sizes(layer.W_Q, layer.W_K, layer.W_V, layer.W_O) for layer in network.attentions]
    bounds: list[dict[str, float]] = [{}] * len(states)
    if wiring in (ALONE, SKIP):
        bounds = (_of_attention_alone if wiring == ALONE else _of_skip)(states, sizes, experiment.scale)
    return [CollapseRow(wiring, layer, **_measured(Z), **bounds[layer]) for layer, Z in enumerate(states)]


def _measured(Z: Float[Tensor, "1 n e"]) -> dict[str, float]:
    return {
        "relative_residual": relative_residual(Z).item(),
        "diameter": row_diameter(Z).item(),
        "second_ratio": second_ratio(singular_values(Z)).item(),
        "residual": composite(residual(Z)).item(),
        "rounding": rounding_of_rows(Z),
    }


def _of_skip(states: list[Tensor], sizes: list[HeadSizes], scale: float) -> list[dict[str, float]]:
    bounds = [skip_bounds(row_diameter(Z), size, scale) for Z, size in zip(states, sizes, strict=False)]
    return [{}, *({"skip_low": low.item(), "skip_high": high.item()} for low, high in bounds)]


def _of_attention_alone(states: list[Tensor], sizes: list[HeadSizes], scale: float) -> list[dict[str, float]]:
    """The bounds of D6 and the printed one (S0.17, S1.14), each from the layer before and from the input."""
    found: list[dict[str, float]] = [{}]
    chained, rho_0 = row_diameter(states[0]), composite(residual(states[0]))
    largest = max(published_factor(size, scale).item() for size in sizes)
    for layer, (Z, size) in enumerate(zip(states, sizes, strict=False), start=1):
        chained = diameter_bound(chained, size, scale)
        rho, c = composite(residual(Z)), published_factor(size, scale)
        found.append(
            {
                "diameter_bound": diameter_bound(row_diameter(Z), size, scale).item(),
                "diameter_bound_from_input": chained.item(),
                "printed_bound": published_bound(rho, c).item(),
                "printed_bound_from_input": published_bound(rho_0, largest, layer).item(),
                "printed_size": (c * rho.square()).item(),
            }
        )
    return found


def _median(rows: Iterable[CollapseRow]) -> CollapseRow:
    """The median of every number over the seeds. Bounds that hold in each seed also hold in the median."""
    rows = list(rows)
    rounding = median(row.rounding for row in rows)
    values: dict[str, float | None] = {}
    for name in (field.name for field in fields(CollapseRow) if field.name not in ("wiring", "layer")):
        found = [getattr(row, name) for row in rows]
        value = None if None in found else median(found)
        if value is not None and "_bound" in name and (value < rounding or not math.isfinite(value)):
            value = None
        values[name] = value
    return CollapseRow(rows[0].wiring, rows[0].layer, **values)  # pyright: ignore[reportArgumentType]


_WIRING_COLOURS = dict(zip(WIRINGS, (ORANGE, YELLOW, PINK, BLUE, SKY, GREEN), strict=True))


def _of(rows: Sequence[CollapseRow], wiring: str) -> list[CollapseRow]:
    return [row for row in rows if row.wiring == wiring]


def _noise(row: CollapseRow, field: str) -> float:
    """Below this, a number is rounding: of the state it is measured in, or of one where it is a share."""
    return max(_ROUNDING_FLOOR, row.rounding) if field in ("diameter", "residual") else _ROUNDING_FLOOR


def _fall(axis: Any, rows: Sequence[CollapseRow], field: str, colour: str, **more: Any) -> float:
    """A line that ends where it meets rounding; its last height."""
    values = [getattr(row, field) for row in rows]
    last = next((place for place, row in enumerate(rows) if values[place] < _noise(row, field)), len(values) - 1)
    shown = [max(value, _ROUNDING_FLOOR) for value in values[: last + 1]]
    axis.plot([row.layer for row in rows[: last + 1]], shown, color=colour, **figures.LINE_STYLE, **more)
    return shown[-1]


def _shade_noise(axis: Any) -> None:
    from matplotlib.ticker import NullLocator

    axis.set_ylim(_ROUNDING_FLOOR / 20, max(axis.get_ylim()[1], 5.0))
    axis.axhspan(_ROUNDING_FLOOR / 20, _ROUNDING_FLOOR, color="#eeeeee", zorder=0)
    axis.yaxis.set_minor_locator(NullLocator())
    figures.note(
        axis, "rounding", axis.get_xlim()[0], _ROUNDING_FLOOR / 4.5, GREY, (4, 0), va="center", path_effects=[]
    )


def _bound(axis: Any, rows: Sequence[CollapseRow], field: str, colour: str) -> list[tuple[int, float]]:
    """Dashed, where there is a number; its points."""
    points = [(row.layer, value) for row in rows if (value := getattr(row, field)) is not None]
    if points:
        axis.plot(*zip(*points, strict=True), color=colour, **figures.BOUND_STYLE)
    return points


def _draw_bounds(axis: Any, rows: Sequence[CollapseRow], measured: str, bound: str) -> None:
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
        axis.annotate(
            name, (0.02, 0.1 + 0.065 * place), xycoords="axes fraction", color=colour, fontsize=figures.SMALL_FONT
        )


def _draw_skip(axis: Any, rows: Sequence[CollapseRow]) -> None:
    axis.plot([row.layer for row in rows], [row.diameter for row in rows], color=BLUE, **figures.LINE_STYLE)
    low, high = (_bound(axis, rows, field, GREY) for field in ("skip_low", "skip_high"))
    if high[-1][1] > 1e3 * rows[0].diameter:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    ends = {"at most": (high[-1][1], GREY), "measured": (rows[-1].diameter, BLUE), "at least": (low[-1][1], GREY)}
    figures.name_right(axis, ends)
