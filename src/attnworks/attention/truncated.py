"""Dense attention with its map cut down to the best one of a given rank, by singular values: exact, and heavy."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from attnworks.attention.contract import MECHANISMS, Attended, Context, Cost, Geometry
from attnworks.attention.dense import Dense
from attnworks.attention.leading import leading
from attnworks.attention.mask import Mask
from attnworks.attention.reference import softmax_by_loops
from attnworks.attention.scores import scaled_dot
from attnworks.attention.softmax import masked_softmax
from attnworks.core.checks import whole
from attnworks.core.tensors import widened


@MECHANISMS.register("truncated")
class Truncated(Dense):
    """Y = P_r V with P_r the matrix of rank r nearest to P = softmax(Q K^T / sqrt(k)); dense where r >= j.

    Source: Conti 2024, section 2.1.3 (S4.105, S4.116); Xie 2021, theorem 2.3 (S0.25): an SVD per head and layer costs
    more than it saves, so this is for study.
    Departs: P_r depends on all queries and keys together. So causal and dense masks are refused, and other sequences
    too: in the cross-attention of a decoder it would show words that are still to come. Padded queries give zeros,
    and have no part in the approximation. The rows of P_r need not be positive, nor sum to one.
    """

    name = "truncated"
    stochastic: ClassVar[bool] = False
    softmax: ClassVar[bool] = False
    masks = frozenset({"padding"})
    crosses = False

    def __init__(self, *, rank: int = 32) -> None:
        super().__init__()
        self.rank = whole(self.name, "rank", rank, 1, "write for instance truncated:rank=16")

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        scale = self.scale(Q.shape[-1], context)
        real = None if mask.padding is None else mask.padding[:, None, :, None] & mask.padding[:, None, None, :]
        with torch.autocast(Q.device.type, enabled=False):
            P = leading(masked_softmax(scaled_dot(widened(Q), widened(K), scale), real), self.rank).to(Q.dtype)
        P = P if real is None else P.masked_fill(~real, 0.0)
        return Attended(P @ V, P if weights else None)

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        scale = self.scale(Q.shape[-1], context)
        P = softmax_by_loops(lambda _, q, k: scale * (q * k).sum(), Q, K, V, mask).P
        assert P is not None
        b, h, n, _ = P.shape
        P_r = torch.zeros_like(P)
        for batch in range(b):
            real = range(n)
            if mask.padding is not None:
                real = [key for key in real if mask.padding[batch % len(mask.padding), key]]
            for head in range(h if real else 0):
                rows = torch.stack([P[batch, head, query, real] for query in real])
                for query, row in zip(real, _nearest(rows, self.rank), strict=True):
                    P_r[batch, head, query, real] = row
        return Attended(torch.einsum("bhij,bhjv->bhiv", P_r, V), P_r)

    def dot_scale(self, d_k: int, context: Context) -> float | None:
        return None  # P_r is no softmax

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> Cost:
        """With 22 n^3 for the SVD of a square matrix (Golub and Van Loan), whatever the rank."""
        h, _, d_v = geometry
        edges, flops, _ = super().cost(queries, keys, geometry)
        flops += h * (22 * keys**3 + 2 * queries * keys * self.rank)
        return Cost(edges, flops, bytes=4 * h * queries * (4 * keys + d_v))


def _nearest(P: Tensor, rank: int) -> Tensor:
    """P_r = P (I + sign(P^T P - tau I)) / 2 with tau between s_r^2 and s_{r+1}^2; Newton's iteration gives the sign.

    It needs neither singular vectors nor their gradients, and the result does not change with tau.
    """
    s = torch.linalg.svdvals(P.detach())
    if rank >= len(s) or s[rank] <= 1e-14 * s[0]:
        return P
    one = torch.eye(len(s), dtype=P.dtype)
    sign = P.mT @ P - (s[rank - 1] ** 2 + s[rank] ** 2) / 2 * one
    for _ in range(30):
        sign = (sign + torch.linalg.inv(sign)) / 2
    return P @ (one + sign) / 2
