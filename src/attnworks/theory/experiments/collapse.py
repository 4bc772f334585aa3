"""How fast the tokens of a random network become the same vector, and what the theorems promise of it.

Source: Xie 2021, theorem 2.2 (S0.15-S0.20); the rank post (S1.14-S1.16); the bounds that hold are D5 and D6.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.exam.linalg.bounds import (
    HeadSizes,
    diameter,
    diameter_bound,
    head_sizes,
    published_bound,
    published_factor,
    rounding_of_rows,
    skip_bounds,
)
from attnworks.exam.linalg.residual import composite, relative_residual, residual
from attnworks.exam.linalg.spectrum import second_ratio, singular_values
from attnworks.models.build import build
from attnworks.models.config import AttentionConfig, PureConfig, whole, within
from attnworks.models.pure import PureAttention
from attnworks.theory.experiments.figures import (
    BLUE,
    BOUND,
    GREEN,
    GREY,
    LINE,
    ORANGE,
    PINK,
    SKY,
    SMALL,
    YELLOW,
    name_right,
    note,
    panels,
    save,
    title,
)

ALONE, SKIP = "attention alone", "skip"
WIRINGS: dict[str, tuple[str, ...]] = {
    ALONE: (),
    "MLP": ("mlp",),
    "norm": ("norm",),
    SKIP: ("skip",),
    "skip, MLP": ("skip", "mlp"),
    "skip, MLP, norm": ("skip", "mlp", "norm"),
}

NOISE = 2e-14
"""Below about 100 eps, differences between tokens are rounding (D7)."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """A random network on random input.

    weights    factor of all attention weights, which are Glorot-uniform at 1
    seeds      number of networks and inputs; results are medians over them
    """

    layers: int = 8
    heads: int = 4
    width: int = 32
    tokens: int = 24
    weights: float = 0.3
    seeds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least, most in (
            ("layers", 1, 64),
            ("heads", 1, 64),
            ("width", 1, 1024),
            ("tokens", 2, 1024),
            ("seeds", 1, 1000),
        ):
            whole(name, getattr(self, name), least, most)
        whole("seed", self.seed, 0, 2**60)
        within("weights", self.weights, 1e-3, 1e3)
        if self.width % self.heads:
            raise UsageError(
                asked=f"{self.heads} heads of equal width",
                expected=f"a width that {self.heads} divides",
                got=str(self.width),
                remedy="choose another width or number of heads",
            )

    @property
    def scale(self) -> float:
        """Of the scores: 1 / sqrt(d_k)."""
        return (self.width // self.heads) ** -0.5

    def draw(self, seed: int, *, skip: bool = False, mlp: bool = False, norm: bool = False) -> PureAttention:
        """The network of a seed, in float64; whatever its wiring, its attention layers are the same."""
        d = self.width // self.heads
        attention = AttentionConfig(heads=self.heads, d_k=d, d_v=d, bias=False)
        everything = PureConfig(d_e=self.width, layers=self.layers, attention=attention, skip=True, mlp=True, norm=True)
        wired = PureConfig(d_e=self.width, layers=self.layers, attention=attention, skip=skip, mlp=mlp, norm=norm)
        network = build(wired, seed=seed).double()
        network.load_state_dict(build(everything, seed=seed).state_dict(), strict=False)
        assert isinstance(network, PureAttention)
        with torch.no_grad():
            for layer in network.attentions:
                for W in (layer.W_Q, layer.W_K, layer.W_V, layer.W_O):
                    W.mul_(self.weights)
        return network.requires_grad_(False)

    def draw_input(self, seed: int) -> Float[Tensor, "1 n e"]:
        """Standard normal token vectors."""
        source = torch.Generator().manual_seed(seed)
        return torch.randn(1, self.tokens, self.width, generator=source, dtype=torch.float64)


@dataclass(frozen=True)
class Row:
    """The state after a layer, 0 being the input: how far apart its tokens are, and how far they could be.

    residual        composite residual from the mean row, of which the printed bound speaks
    rounding        100 eps max |Z|: what is below is noise (D7), and bounds below are None
    *_bound         from what was measured one layer before; *_from_input from the input and the weights alone
    printed_size    c rho^2 one layer before: the printed bound falls with depth where it is below 1
    Bounds are told where they apply, those of skip_low and skip_high with skip only, the others for attention alone;
    None too where they are beyond all numbers.
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


def run(options: Options) -> list[Row]:
    """Every wiring, layer by layer."""
    rows: list[Row] = []
    for wiring in WIRINGS:
        seeds = [_one_seed(options, wiring, seed) for seed in range(options.seed, options.seed + options.seeds)]
        rows += [_median(at_layer) for at_layer in zip(*seeds, strict=True)]
    return rows


def check_size(output: Float[Tensor, "1 n e"]) -> None:
    """Refuse networks so large that the squares of their numbers overflow."""
    if not bool(output.abs().max() < 1e150):
        raise UsageError(
            asked="the output of the network",
            expected="numbers whose squares float64 can hold",
            got="larger ones",
            remedy="choose smaller weights or fewer layers",
        )


def _one_seed(options: Options, wiring: str, seed: int) -> list[Row]:
    network = options.draw(seed, **dict.fromkeys(WIRINGS[wiring], True))
    states = network.states(options.draw_input(seed))
    check_size(states[-1])
    sizes = [head_sizes(layer.W_Q, layer.W_K, layer.W_V, layer.W_O) for layer in network.attentions]
    bounds = _of_attention_alone if wiring == ALONE else _of_skip if wiring == SKIP else _none
    told = bounds(states, sizes, options.scale)
    return [Row(wiring, layer, **_measured(Z), **told[layer]) for layer, Z in enumerate(states)]


def _measured(Z: Float[Tensor, "1 n e"]) -> dict[str, float]:
    return {
        "relative_residual": relative_residual(Z).item(),
        "diameter": diameter(Z).item(),
        "second_ratio": second_ratio(singular_values(Z)).item(),
        "residual": composite(residual(Z)).item(),
        "rounding": rounding_of_rows(Z),
    }


def _none(states: list[Tensor], sizes: list[HeadSizes], scale: float) -> list[dict[str, float]]:
    return [{} for _ in states]


def _of_skip(states: list[Tensor], sizes: list[HeadSizes], scale: float) -> list[dict[str, float]]:
    told: list[dict[str, float]] = [{}]
    for Z, size in zip(states, sizes, strict=False):
        low, high = skip_bounds(diameter(Z), size, scale)
        told.append({"skip_low": low.item(), "skip_high": high.item()})
    return told


def _of_attention_alone(states: list[Tensor], sizes: list[HeadSizes], scale: float) -> list[dict[str, float]]:
    """The bounds of D6 and the printed one (S0.17, S1.14), each from the layer before and from the input."""
    told: list[dict[str, float]] = [{}]
    chained, rho_0 = diameter(states[0]), composite(residual(states[0]))
    largest = max(published_factor(size, scale).item() for size in sizes)
    for layer, (Z, size) in enumerate(zip(states, sizes, strict=False), start=1):
        chained = diameter_bound(chained, size, scale)
        rho, c = composite(residual(Z)), published_factor(size, scale)
        told.append(
            {
                "diameter_bound": diameter_bound(diameter(Z), size, scale).item(),
                "diameter_bound_from_input": chained.item(),
                "printed_bound": published_bound(rho, c).item(),
                "printed_bound_from_input": published_bound(rho_0, largest, layer).item(),
                "printed_size": (c * rho.square()).item(),
            }
        )
    return told


def _median(rows: Iterable[Row]) -> Row:
    """Of every number over the seeds: what bounds another in each seed does so in the median too."""
    rows = list(rows)
    rounding = median(row.rounding for row in rows)
    values: dict[str, float | None] = {}
    for name in (field.name for field in fields(Row) if field.name not in ("wiring", "layer")):
        found = [getattr(row, name) for row in rows]
        value = None if None in found else median(found)
        if value is not None and "_bound" in name and (value < rounding or not math.isfinite(value)):
            value = None
        values[name] = value
    return Row(rows[0].wiring, rows[0].layer, **values)  # pyright: ignore[reportArgumentType]


# --- rank collapse ----------------------------------------------------------------------------------------------------

WIRING_COLOURS = dict(zip(WIRINGS, (ORANGE, YELLOW, PINK, BLUE, SKY, GREEN), strict=True))


def draw_collapse(rows: Sequence[Row], options: Options, folder: Path) -> None:
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


def _of(rows: Sequence[Row], wiring: str) -> list[Row]:
    return [row for row in rows if row.wiring == wiring]


def _noise(row: Row, field: str) -> float:
    """Below this, a number is rounding: of the state it is measured in, or of one where it is a share."""
    return max(NOISE, row.rounding) if field in ("diameter", "residual") else NOISE


def _fall(axis: Any, rows: Sequence[Row], field: str, colour: str, **more: Any) -> float:
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


def _bound(axis: Any, rows: Sequence[Row], field: str, colour: str) -> list[tuple[int, float]]:
    """Dashed, where there is a number; its points."""
    points = [(row.layer, value) for row in rows if (value := getattr(row, field)) is not None]
    if points:
        axis.plot(*zip(*points, strict=True), color=colour, **BOUND)
    return points


def _draw_bounds(axis: Any, rows: Sequence[Row], measured: str, bound: str) -> None:
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


def _draw_skip(axis: Any, rows: Sequence[Row]) -> None:
    axis.plot([row.layer for row in rows], [row.diameter for row in rows], color=BLUE, **LINE)
    low, high = (_bound(axis, rows, field, GREY) for field in ("skip_low", "skip_high"))
    if high[-1][1] > 1e3 * rows[0].diameter:
        axis.set_yscale("log")
    else:
        axis.set_ylim(bottom=0)
    ends = {"at most": (high[-1][1], GREY), "measured": (rows[-1].diameter, BLUE), "at least": (low[-1][1], GREY)}
    name_right(axis, ends)
