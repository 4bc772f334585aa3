"""How much gradient softmax lets through, against the width of the keys, with and without a scale.

Source: Conti 2024, section 1.2.3 (S4.46-S4.50), and the scale 1/k of its eq. 5 and 6 (S4.42).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from attnworks.core.errors import UsageError
from attnworks.models.config import whole
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
