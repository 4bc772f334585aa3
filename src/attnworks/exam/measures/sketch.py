"""What it costs to project keys and values at random: measured, next to the exact expectation."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor

from attnworks.attention.sketched import sketch_error_formula
from attnworks.exam.measure import MEASURES, Declared, Measure, Sample, Samples
from attnworks.traces.layer import Slot
from attnworks.traces.maps import Maps

WIDTHS = (8, 16, 32, 64, 128)
"""Rows k of the random projection."""


@MEASURES.register("sketch")
class Sketch(Measure):
    """||P R^T R V - P V||_F / ||P V||_F with R [k j] from N(0, 1/k), and the root of the mean of its square over all R.

    Source: theorem 2.3 of Xie 2021 (S0.21, S0.28) and its repair D8.
    Departs: R depends on the seed, the layer, the head and the number of keys alone, so that batches may come in any
    order; a smaller k uses the first rows of the same draw. Sentences of one length share R: with few lengths, the
    interval is narrower than that over all R.
    """

    name = "sketch"
    words = "error of attention through k random projections of the keys"
    cost = "per map and k four thin products: about as much as the attention itself"

    def declares(self) -> tuple[Declared, ...]:
        axes, ticks = ("layer", "head", "k"), {"k": tuple(map(float, WIDTHS))}
        return (
            Declared(
                "sketch.error", axes, "error for one random projection, relative to P V", "S0.21, S0.28", ticks=ticks
            ),
            Declared("sketch.formula", axes, "root mean square of that error over all draws", "D8", ticks=ticks),
        )

    def maps(self, maps: Maps) -> Samples:
        P, V = maps.P.detach(), maps.V.detach().to(maps.P.dtype)
        R = self._draws(maps.slot, maps.heads, P)
        Y, PR, RV = P @ V, P @ R.mT, R @ V
        size = torch.linalg.matrix_norm(Y)
        errors = [torch.linalg.matrix_norm(PR[..., :k] @ RV[..., :k, :] / k - Y) / size for k in WIDTHS]
        formula = [sketch_error_formula(P, V, k) for k in WIDTHS]
        valid = (size > 0).unsqueeze(-1)
        return {
            "sketch.error": Sample(torch.stack(errors, -1), valid),
            "sketch.formula": Sample(torch.stack(formula, -1), valid),
        }

    def _draws(self, slot: Slot, heads: slice, P: Tensor) -> Tensor:
        """Standard normal [h k j] for the largest k."""

        def draw(head: int) -> Tensor:
            seed = zlib.crc32(f"{self.setting.seed} {slot} {head} {P.shape[-1]}".encode())
            source = torch.Generator().manual_seed(seed)
            return torch.randn(max(WIDTHS), P.shape[-1], generator=source, dtype=torch.float64)

        return torch.stack([draw(head) for head in range(heads.start, heads.stop)]).to(P)
