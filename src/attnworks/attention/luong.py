"""Luong's two product scores: the bare dot product, and one with a matrix in between."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnworks.attention.contract import MECHANISMS, Attended, AttentionCost, Context, Geometry, dense_edges
from attnworks.attention.dense import Dense
from attnworks.attention.mask import Mask
from attnworks.attention.reference import softmax_by_loops


@MECHANISMS.register("luong-dot")
class LuongDot(Dense):
    """Y = softmax(Q K^T) V, without a scale.

    Source: Conti 2024, section 1.1.1 (S4.13-S4.15).
    """

    name = "luong-dot"

    def default_scale(self, d_k: int) -> float:
        return 1.0


@MECHANISMS.register("luong-multiplicative")
class LuongMultiplicative(LuongDot):
    """Y = softmax(Q W_a K^T) V with one learned W_a per head, Luong's "general" score.

    Source: Conti 2024, section 1.1.1 (S4.13-S4.15).
    """

    name = "luong-multiplicative"

    def __init__(self, *, heads: int = 1, d_k: int) -> None:
        super().__init__()
        self.W_a = nn.Parameter(torch.empty(heads, d_k, d_k))
        nn.init.uniform_(self.W_a, -(d_k**-0.5), d_k**-0.5)

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        return super().attend(Q @ self.W_a, K, V, mask, context, weights)

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        scale = self.scale(Q.shape[-1], context)
        return softmax_by_loops(lambda h, q, k: scale * (q @ self.W_a[h] @ k), Q, K, V, mask)

    def dot_scale(self, d_k: int, context: Context) -> float | None:
        return None  # the scores are of Q W_a and K

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        h, d_k, d_v = geometry
        edges = h * dense_edges(queries, keys, causal)
        flops = 2 * edges * (d_k + d_v) + 2 * h * queries * d_k * d_k
        return AttentionCost(edges, flops, bytes=4 * h * queries * (d_k + d_v + 1))
