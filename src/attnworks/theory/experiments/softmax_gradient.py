"""How much gradient softmax lets through, against the width of the keys, with and without a scale.

Source: Conti 2024, section 1.2.3 (S4.46-S4.50), and the scale 1/k of its eq. 5 and 6 (S4.42).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from attnworks.core.errors import UsageError
from attnworks.models.config import whole
from attnworks.theory.experiments.figures import (  # fmt: skip
    BLUE,
    GREEN,
    LINE,
    ORANGE,
    name_right,
    panels,
    plain_ticks,
    save,
    title,
)
from attnworks.traces.maps import Row as Sums
from attnworks.traces.maps import attend_rows, row_statistics

SCALES: dict[str, Callable[[int], float]] = {
    "unscaled": lambda k: 1.0,
    "1/sqrt(k)": lambda k: k**-0.5,
    "1/k": lambda k: 1 / k,
}
NEARLY_NONE = 0.01
"""A row of attention whose Jacobian is smaller learns next to nothing."""


MOST = 2**25
"""A quarter of a gigabyte of numbers."""

SCALE_NAMES = {"unscaled": "no scale", "1/sqrt(k)": "1/√k", "1/k": "1/k"}


@dataclass(frozen=True, kw_only=True)
class Options:
    """Standard normal queries and keys, `tokens` of each, drawn `seeds` times for each width."""

    widths: tuple[int, ...] = (4, 16, 64, 256, 1024, 4096)
    tokens: int = 128
    seeds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.widths:
            raise UsageError(
                asked="widths of keys", expected="at least one", got="none", remedy="write for instance 16,64,256"
            )
        for width in self.widths:
            whole("width", width, 1, 65_536)
        whole("tokens", self.tokens, 2, 4096)
        whole("seeds", self.seeds, 1, 1000)
        whole("seed", self.seed, 0, 2**60)
        if max(self.widths) * self.tokens > MOST:
            raise UsageError(
                asked=f"{self.tokens:,} tokens with keys of width {max(self.widths):,}",
                expected=f"at most {MOST:,} numbers at once",
                got=f"{max(self.widths) * self.tokens:,}",
                remedy="take fewer tokens or narrower keys",
            )


@dataclass(frozen=True)
class Row:
    """||diag(p) - p p^T||_F over the rows p of attention.

    share_lost     of rows where it is below 0.01
    entropy        mean over the rows, over ln n: 1 is uniform attention, 0 looks at one key
    """

    width: int
    scale: str
    median: float
    share_lost: float
    entropy: float


def run(options: Options) -> list[Row]:
    """Every scale at every width."""
    rows: list[Row] = []
    for width in sorted(set(options.widths)):
        source = torch.Generator().manual_seed(options.seed)
        shape = (2, options.seeds, options.tokens, width)
        Q, K = torch.randn(shape, generator=source, dtype=torch.float64)
        S = Q @ K.mT
        rows += [_row(width, name, scale(width) * S) for name, scale in SCALES.items()]
    return rows


def _row(width: int, name: str, S: torch.Tensor) -> Row:
    sums = S.new_empty(len(Sums), *S.shape[:-1])
    attend_rows(S, sums=sums)
    found = row_statistics(sums)
    norms = found.jacobian_norm
    return Row(
        width,
        name,
        norms.median().item(),
        (norms < NEARLY_NONE).double().mean().item(),
        found.entropy.mean().item() / math.log(S.shape[-1]),
    )


# --- gradient of softmax ----------------------------------------------------------------------------------------------

SCALE_STYLES = {"unscaled": ORANGE, "1/sqrt(k)": BLUE, "1/k": GREEN}


def draw_gradient(rows: Sequence[Row], options: Options, folder: Path) -> None:
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
