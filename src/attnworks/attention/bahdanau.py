"""Bahdanau's additive score: a small network scores query and key together."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnworks.attention.contract import MECHANISMS, Attended, AttentionCost, Context, Geometry, Mechanism, dense_edges
from attnworks.attention.dense import explicit
from attnworks.attention.mask import Mask
from attnworks.attention.reference import softmax_by_loops
from attnworks.attention.softmax import bahdanau_additive
from attnworks.core.checks import integer


@MECHANISMS.register("bahdanau-additive")
class Bahdanau(Mechanism):
    """Y = softmax(S) V with S_ij = v_a^T tanh(W_a [q_i; k_j]); `d_a` is the width of the hidden layer (k by default).

    Source: Conti 2024, section 1.1.1 (S4.13-S4.15).
    Departs: the current decoder state is scored, as in the document; Bahdanau scores the previous one.
    """

    name = "bahdanau-additive"
    softmax = True

    def __init__(self, *, heads: int = 1, d_k: int, d_a: int | None = None) -> None:
        super().__init__()
        d_a = d_k if d_a is None else d_a
        integer(f"{self.name} with d_a", d_a, 1, remedy="write for instance bahdanau-additive:d_a=64")
        self.W_q = nn.Parameter(torch.empty(heads, d_k, d_a))
        self.W_k = nn.Parameter(torch.empty(heads, d_k, d_a))
        self.v_a = nn.Parameter(torch.empty(heads, d_a))
        for weight, fan_in in ((self.W_q, 2 * d_k), (self.W_k, 2 * d_k), (self.v_a, d_a)):
            nn.init.uniform_(weight, -(fan_in**-0.5), fan_in**-0.5)

    def default_scale(self, d_k: int) -> float:
        return 1.0

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        S = bahdanau_additive(Q, K, self.W_q, self.W_k, self.v_a)
        Y, P = explicit(S if context.scale is None else S * context.scale, V, mask)
        return Attended(Y, P if weights else None)

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        scale = self.scale(Q.shape[-1], context)

        def score(h: int, q: Tensor, k: Tensor) -> Tensor:
            W_a = torch.cat([self.W_q[h], self.W_k[h]])
            return scale * (self.v_a[h] * torch.tanh(torch.cat([q, k]) @ W_a)).sum()

        return softmax_by_loops(score, Q, K, V, mask)

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        h, d_k, d_v = geometry
        d_a = self.v_a.shape[-1]
        edges = h * dense_edges(queries, keys, causal)
        scored = h * queries * keys
        flops = 2 * h * (queries + keys) * d_k * d_a + 3 * scored * d_a + 2 * edges * d_v
        return AttentionCost(edges, flops, bytes=4 * (scored * (d_a + 2) + h * queries * d_v))
