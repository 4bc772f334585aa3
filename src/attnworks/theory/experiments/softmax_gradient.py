"""The size of the gradient of softmax against the width of the keys, with and without a scale.

Source: Conti 2024, section 1.2.3 (S4.46-S4.50), and the scale 1/k of its eq. 5 and 6 (S4.42).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from attnworks.core.checks import integer
from attnworks.core.errors import UsageError
from attnworks.theory.experiments import figures
from attnworks.theory.experiments.contract import ResultTable, TheoryExperiment, three_digits
from attnworks.traces.maps import Row as Sums
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

_SCALE_NAMES = {"unscaled": "no scale", "1/sqrt(k)": "1/√k", "1/k": "1/k"}


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
        integer("tokens", self.tokens, 2, 4096)
        integer("seeds", self.seeds, 1, 1000)
        integer("seed", self.seed, 0, 2**60)
        if max(self.widths) * self.tokens > _MAX_QUERY_NUMBERS:
            raise UsageError(
                f"{self.tokens:,} tokens with keys of width {max(self.widths):,}",
                f"at most {_MAX_QUERY_NUMBERS:,} numbers",
                f"{max(self.widths) * self.tokens:,}",
                "take fewer tokens or narrower keys",
            )

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
            cells = [
                cell
                for scale in scales
                for cell in (three_digits(found[scale].median), f"{found[scale].share_lost:.1%}")
            ]
            table.add_row(str(width), *cells)
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
        for axis, field, words in zip(
            axes,
            ("median", "share_lost", "entropy"),
            ("gradient of softmax, median", "rows with a gradient below 0.01", "entropy: 1 is uniform attention"),
            strict=True,
        ):
            figures.title(axis, words)
            axis.set_xscale("log")
            ends: dict[str, tuple[float, str]] = {}
            for scale, colour in _SCALE_COLOURS.items():
                values = [getattr(row, field) for row in rows if row.scale == scale]
                axis.plot(widths, values, color=colour, **figures.LINE_STYLE)
                ends[_SCALE_NAMES[scale]] = (values[-1], colour)
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


_SCALE_COLOURS = {"unscaled": figures.ORANGE, "1/sqrt(k)": figures.BLUE, "1/k": figures.GREEN}
