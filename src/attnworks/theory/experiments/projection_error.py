"""What attention through a random projection of k dimensions costs, and what k the printed theorem asks for.

Source: Xie 2021, theorem 2.3 (S0.21, S0.28); D8 for the error that is to be expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention.sketched import sketch_error_formula
from attnworks.models.config import whole, within
from attnworks.theory.experiments.figures import (  # fmt: skip
    BLUE,
    BOUND,
    GREEN,
    GREY,
    ORANGE,
    YELLOW,
    name_right,
    note,
    panels,
    plain_ticks,
    save,
    title,
)
from attnworks.theory.random_projection import published_rows, sketch_error

SHARP, DIFFUSE = 4.0, 1.0
"""Standard deviation of the scores."""

MEANS = {"around zero": 0.0, "around one": 1.0}
"""Values are normal numbers of variance one around this."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Square attention matrices of `tokens` tokens.

    values     columns of V
    epsilon    relative error that the theorem is asked for
    draws      of the projection
    """

    tokens: int = 128
    values: int = 16
    epsilon: float = 0.5
    draws: int = 40
    seed: int = 0

    def __post_init__(self) -> None:
        whole("tokens", self.tokens, 2, 1024)
        whole("values", self.values, 1, 1024)
        whole("draws", self.draws, 2, 10_000)
        whole("seed", self.seed, 0, 2**60)
        within("epsilon", self.epsilon, 0.1, 0.9)

    @property
    def published_k(self) -> int:
        """5 ln n / (epsilon^2 - epsilon^3), rounded up."""
        return published_rows(self.tokens, self.epsilon)

    @property
    def dimensions(self) -> list[int]:
        """Powers of two up to eight times the tokens, and the published k."""
        powers = [2**power for power in range(1, (8 * self.tokens).bit_length())]
        return sorted({*powers, self.published_k})


@dataclass(frozen=True)
class Row:
    """||P R^T R V - P V||_F / ||P V||_F over the draws of R [k n]: root mean square, and tenth and ninetieth percent.

    expected    the root of the mean square, exactly
    reached     share of draws with an error of at most epsilon
    """

    attention: str
    values: str
    k: int
    error: float
    low: float
    high: float
    expected: float
    reached: float


def run(options: Options) -> list[Row]:
    """Every kind of attention with every kind of values, for every k."""
    source = torch.Generator().manual_seed(options.seed)
    maps = attention_maps(options.tokens, source)
    V = torch.randn(options.tokens, options.values, generator=source, dtype=torch.float64)
    return [
        _row(name, values, P, V + mean, k, options, source)
        for values, mean in MEANS.items()
        for name, P in maps.items()
        for k in options.dimensions
    ]


def attention_maps(n: int, source: torch.Generator) -> dict[str, Float[Tensor, "n n"]]:
    """From attention that looks at one token to attention that looks at all alike."""
    S = torch.randn(n, n, generator=source, dtype=torch.float64)
    return {
        "identity": torch.eye(n, dtype=torch.float64),
        "sharp softmax": (SHARP * S).softmax(-1),
        "diffuse softmax": (DIFFUSE * S).softmax(-1),
        "uniform": torch.full((n, n), 1 / n, dtype=torch.float64),
    }


def _row(name: str, values: str, P: Tensor, V: Tensor, k: int, options: Options, source: torch.Generator) -> Row:
    errors = torch.stack([sketch_error(P, V, k, source) for _ in range(options.draws)])
    low, high = errors.quantile(torch.tensor([0.1, 0.9], dtype=errors.dtype)).tolist()
    return Row(
        name,
        values,
        k,
        errors.square().mean().sqrt().item(),
        low,
        high,
        sketch_error_formula(P, V, k).item(),
        (errors <= options.epsilon).double().mean().item(),
    )


# --- random projection ------------------------------------------------------------------------------------------------

MAP_COLOURS = {"identity": ORANGE, "sharp softmax": YELLOW, "diffuse softmax": BLUE, "uniform": GREEN}


def draw_projection(rows: Sequence[Row], options: Options, folder: Path) -> None:
    """Relative error against k: dots are measured, with bars from the tenth to the ninetieth percent; lines exact."""
    figure, (axes,) = panels(1, 2, 5.4, 4.2, folder, sharey=True)
    for axis, values in zip(axes, MEANS, strict=True):
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
    for axis, values in zip(axes, MEANS, strict=True):
        last = [row for row in rows if row.values == values and row.k == max(options.dimensions)]
        name_right(axis, {row.attention: (row.expected, MAP_COLOURS[row.attention]) for row in last}, gap=0.055)
    top = axes[0].get_ylim()[1]
    note(
        axes[0], f"the printed k = {options.published_k} ", options.published_k, top, GREY, (0, 0), ha="right", va="top"
    )
    note(axes[0], f"asked for: {options.epsilon:g}", 2, options.epsilon, GREY, (0, 4))
    save(figure, folder)
