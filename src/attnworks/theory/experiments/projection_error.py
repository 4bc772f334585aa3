"""The error of attention through a random projection of k dimensions, and the k of the printed theorem.

Source: Xie 2021, theorem 2.3 (S0.21, S0.28); D8 for the error that is to be expected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention.sketched import sketch_error_formula
from attnworks.core.checks import number
from attnworks.theory.experiments import figures
from attnworks.theory.experiments.contract import ResultTable, TheoryExperiment
from attnworks.theory.experiments.figures import BLUE, GREEN, GREY, ORANGE, YELLOW
from attnworks.theory.random_projection import published_rows, sketch_error

_SHARP, _DIFFUSE = 4.0, 1.0
"""Standard deviation of the scores."""

_VALUE_MEANS = {"around zero": 0.0, "around one": 1.0}
"""Values are normal numbers of variance one around this."""


@dataclass(frozen=True)
class ProjectionRow:
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


@dataclass(frozen=True, kw_only=True)
class ProjectionExperiment(TheoryExperiment[ProjectionRow]):
    """Square attention matrices of `tokens` tokens.

    values     columns of V
    epsilon    relative error in the theorem
    draws      of the projection
    """

    tokens: int = 128
    values: int = 16
    epsilon: float = 0.5
    draws: int = 40
    seed: int = 0

    def __post_init__(self) -> None:
        self.check_integers(tokens=(2, 1024), values=(1, 1024), draws=(2, 10_000), seed=(0, 2**60))
        number("epsilon", self.epsilon, 0.1, 0.9)

    @property
    def published_k(self) -> int:
        """5 ln n / (epsilon^2 - epsilon^3), rounded up."""
        return published_rows(self.tokens, self.epsilon)

    @property
    def dimensions(self) -> list[int]:
        """Powers of two up to eight times the tokens, and the published k."""
        powers = [2**power for power in range(1, (8 * self.tokens).bit_length())]
        return sorted({*powers, self.published_k})

    def run(self) -> list[ProjectionRow]:
        """Every kind of attention with every kind of values, for every k."""
        source = torch.Generator().manual_seed(self.seed)
        maps = _attention_maps(self.tokens, source)
        V = torch.randn(self.tokens, self.values, generator=source, dtype=torch.float64)
        return [
            _row(name, values, P, V + mean, k, self, source)
            for values, mean in _VALUE_MEANS.items()
            for name, P in maps.items()
            for k in self.dimensions
        ]

    def tables(self, rows: Sequence[ProjectionRow]) -> list[ResultTable]:
        shown = [k for k in self.dimensions if k in (8, 32, self.published_k, 4 * self.tokens, 8 * self.tokens)]
        shown = shown or self.dimensions
        table = ResultTable(
            f"Relative error of P V for {self.tokens} tokens over {self.draws} draws (expected), and how often it is"
            f" at most {self.epsilon:g} at the printed k",
            "values", "attention", *(f"k = {k}" for k in shown), f"k = {self.published_k}", left=2,
        )  # fmt: skip
        for values in _VALUE_MEANS:
            for attention in dict.fromkeys(row.attention for row in rows):
                found = {row.k: row for row in rows if (row.values, row.attention) == (values, attention)}
                cells = [f"{found[k].error:.2f} ({found[k].expected:.2f})" for k in shown]
                table.add_row(values, attention, *cells, f"{found[self.published_k].reached:.0%}")
        return [table]

    def sentences(self, rows: Sequence[ProjectionRow]) -> list[str]:
        at = [row for row in rows if row.k == self.published_k]
        kept = _named(row for row in at if row.reached >= 0.9)
        lost = _named(row for row in at if row.reached <= 0.1)
        sentences = [f"The printed k = 5 ln n / (ε² - ε³) = {self.published_k} promises an error of {self.epsilon:g}."]
        if lost:
            sentences.append(f"It is missed in nine draws of ten or more with {lost}.")
        if kept:
            sentences.append(f"It is kept in nine draws of ten or more with {kept}.")
        return sentences

    def draw(self, rows: Sequence[ProjectionRow], folder: Path) -> None:
        """Relative error against k: dots are measured, bars run from the 10th to 90th percentile, lines are exact."""
        figure, (axes,) = figures.panels(1, 2, 5.4, 4.2, folder, sharey=True)
        for axis, values in zip(axes, _VALUE_MEANS, strict=True):
            figures.title(axis, f"values {values}")
            axis.set(xscale="log", yscale="log")
            for name, colour in _MAP_COLOURS.items():
                found = [row for row in rows if row.values == values and row.attention == name]
                k = [row.k for row in found]
                axis.plot(k, [row.expected for row in found], color=colour, linewidth=1.5)
                axis.plot(k, [row.error for row in found], "o", markersize=4, color=colour)
                axis.vlines(k, [row.low for row in found], [row.high for row in found], color=colour, linewidth=1)
            axis.axhline(self.epsilon, color=GREY, **figures.BOUND_STYLE)
            axis.axvline(self.published_k, color=GREY, **figures.BOUND_STYLE)
            figures.plain_ticks(axis.xaxis, [2**power for power in range(1, (8 * self.tokens).bit_length(), 2)])
            axis.set_xlabel("dimensions k of the projection", fontsize=9.5)
        axes[0].set_ylabel("relative error of P V", fontsize=9.5)
        figures.plain_ticks(axes[0].yaxis, [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10])
        for axis, values in zip(axes, _VALUE_MEANS, strict=True):
            last = [row for row in rows if row.values == values and row.k == max(self.dimensions)]
            ends = {row.attention: (row.expected, _MAP_COLOURS[row.attention]) for row in last}
            figures.name_right(axis, ends, gap=0.055)
        k, top = self.published_k, axes[0].get_ylim()[1]
        figures.note(axes[0], f"the printed k = {k} ", k, top, GREY, (0, 0), ha="right", va="top")
        figures.note(axes[0], f"asked for: {self.epsilon:g}", 2, self.epsilon, GREY, (0, 4))
        figures.save_figure(figure, folder)


def _named(rows: Iterable[ProjectionRow]) -> str:
    by_values: dict[str, list[str]] = {}
    for row in rows:
        by_values.setdefault(row.values, []).append(row.attention)
    return "; ".join(f"values {values}: {', '.join(found)}" for values, found in by_values.items())


def _attention_maps(n: int, source: torch.Generator) -> dict[str, Float[Tensor, "n n"]]:
    """From attention to one token to uniform attention."""
    S = torch.randn(n, n, generator=source, dtype=torch.float64)
    return {
        "identity": torch.eye(n, dtype=torch.float64),
        "sharp softmax": (_SHARP * S).softmax(-1),
        "diffuse softmax": (_DIFFUSE * S).softmax(-1),
        "uniform": torch.full((n, n), 1 / n, dtype=torch.float64),
    }


def _row(
    name: str, values: str, P: Tensor, V: Tensor, k: int, experiment: ProjectionExperiment, source: torch.Generator
) -> ProjectionRow:
    errors = torch.stack([sketch_error(P, V, k, source) for _ in range(experiment.draws)])
    low, high = errors.quantile(torch.tensor([0.1, 0.9], dtype=errors.dtype)).tolist()
    return ProjectionRow(
        name,
        values,
        k,
        errors.square().mean().sqrt().item(),
        low,
        high,
        sketch_error_formula(P, V, k).item(),
        (errors <= experiment.epsilon).double().mean().item(),
    )


_MAP_COLOURS = {"identity": ORANGE, "sharp softmax": YELLOW, "diffuse softmax": BLUE, "uniform": GREEN}
