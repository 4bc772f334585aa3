"""The size of the gradient of softmax against the width of the keys, with and without a scale.

Source: Conti 2024, section 1.2.3 (S4.46-S4.50), and the scale 1/k of its eq. 5 and 6 (S4.42).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import torch

from attnworks.core.checks import integer
from attnworks.core.errors import UsageError
from attnworks.theory.experiments import figures
from attnworks.theory.experiments.contract import ResultTable, TheoryExperiment, three_digits
from attnworks.theory.experiments.figures import BLUE, GREEN, ORANGE
from attnworks.traces.maps import RowSum as Sums
from attnworks.traces.maps import attend_rows, row_statistics

_SCALES: dict[str, Callable[[int], float]] = {
    "unscaled": lambda k: 1.0,
    "1/sqrt(k)": lambda k: k**-0.5,
    "1/k": lambda k: 1 / k,
}
_LOST_GRADIENT = 0.01
"""A row of attention whose Jacobian is smaller learns next to nothing."""
_MAX_QUERY_NUMBERS = 2**25
"""A quarter of a gigabyte of numbers."""

_SCALE_LINES = {"unscaled": ("no scale", ORANGE), "1/sqrt(k)": ("1/√k", BLUE), "1/k": ("1/k", GREEN)}
"""Scale -> its name and its colour in the figure."""


@dataclass(frozen=True)
class GradientRow:
    """||diag(p) - p p^T||_F over the rows p of attention.

    share_lost     of rows where it is below 0.01
    entropy        mean over the rows, over ln n: 1 is uniform attention, 0 is attention to one key
    """

    width: int
    scale: str
    median: float
    share_lost: float
    entropy: float


@dataclass(frozen=True, kw_only=True)
class GradientExperiment(TheoryExperiment[GradientRow]):
    """Standard normal queries and keys, `tokens` of each, drawn `seeds` times for each width."""

    widths: tuple[int, ...] = (4, 16, 64, 256, 1024, 4096)
    tokens: int = 128
    seeds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.widths:
            raise UsageError("widths of keys", "at least one", "none", "write for instance 16,64,256")
        for width in self.widths:
            integer("width", width, 1, 65_536)
        self.check_integers(tokens=(2, 4096), seeds=(1, 1000), seed=(0, 2**60))
        if (numbers := max(self.widths) * self.tokens) > _MAX_QUERY_NUMBERS:
            asked, most = f"{self.tokens:,} tokens with keys of width {max(self.widths):,}", f"{_MAX_QUERY_NUMBERS:,}"
            raise UsageError(asked, f"at most {most} numbers", f"{numbers:,}", "take fewer tokens or narrower keys")

    def run(self) -> list[GradientRow]:
        """Every scale at every width."""
        rows: list[GradientRow] = []
        for width in sorted(set(self.widths)):
            source = torch.Generator().manual_seed(self.seed)
            shape = (2, self.seeds, self.tokens, width)
            Q, K = torch.randn(shape, generator=source, dtype=torch.float64)
            S = Q @ K.mT
            rows += [_row(width, name, scale(width) * S) for name, scale in _SCALES.items()]
        return rows

    def tables(self, rows: Sequence[GradientRow]) -> list[ResultTable]:
        scales = list(_SCALES)
        table = ResultTable(
            f"Jacobian of softmax over {self.tokens} keys: median norm, and share of rows below {_LOST_GRADIENT:g}",
            "k", *(f"{scale}: {what}" for scale in scales for what in ("norm", "lost")), left=0,
        )  # fmt: skip
        for width in sorted({row.width for row in rows}):
            found = {row.scale: row for row in rows if row.width == width}
            pairs = ((three_digits(found[scale].median), f"{found[scale].share_lost:.1%}") for scale in scales)
            table.add_row(str(width), *chain.from_iterable(pairs))
        return [table]

    def sentences(self, rows: Sequence[GradientRow]) -> list[str]:
        by = {scale: [row for row in rows if row.scale == scale] for scale in _SCALES}
        bare, root = by["unscaled"], by["1/sqrt(k)"]
        less = [plain.width for plain, scaled in zip(bare, root, strict=True) if plain.median < scaled.median]
        spread = max(row.median for row in root) / min(row.median for row in root)
        return [
            f"Unscaled softmax lets less through than 1/sqrt(k) at k = {', '.join(map(str, less))}."
            if less
            else "Unscaled softmax lets no less through than 1/sqrt(k) at these widths.",
            f"With 1/sqrt(k) the median norm changes by a factor of {spread:.2f} over all widths; with 1/k attention "
            f"at k = {bare[-1].width} has {by['1/k'][-1].entropy:.3%} of the entropy of uniform attention.",
        ]

    def draw(self, rows: Sequence[GradientRow], folder: Path) -> None:
        """The norm of the gradient, the share of rows without one, and the entropy of attention."""
        figure, (axes,) = figures.panels(1, 3, 4.2, 3.7, folder)
        widths = sorted({row.width for row in rows})
        titles = {
            "median": "gradient of softmax, median",
            "share_lost": "rows with a gradient below 0.01",
            "entropy": "entropy: 1 is uniform attention",
        }
        for axis, (field, text) in zip(axes, titles.items(), strict=True):
            figures.title(axis, text)
            axis.set_xscale("log")
            ends: dict[str, tuple[float, str]] = {}
            for scale, (name, colour) in _SCALE_LINES.items():
                values = [getattr(row, field) for row in rows if row.scale == scale]
                axis.plot(widths, values, color=colour, **figures.LINE_STYLE)
                ends[name] = (values[-1], colour)
            if field == "median":
                axis.set_yscale("log")
            else:
                axis.set_ylim(-0.03, 1.03)
            figures.plain_ticks(axis.xaxis, widths)
            axis.set_xlabel("width k of the keys", fontsize=9.5)
            figures.name_right(axis, ends)
        figures.save_figure(figure, folder)


def _row(width: int, name: str, S: torch.Tensor) -> GradientRow:
    sums = S.new_empty(len(Sums), *S.shape[:-1])
    attend_rows(S, sums=sums)
    found = row_statistics(sums)
    norms = found.jacobian_norm
    return GradientRow(
        width,
        name,
        norms.median().item(),
        (norms < _LOST_GRADIENT).double().mean().item(),
        found.entropy.mean().item() / math.log(S.shape[-1]),
    )
