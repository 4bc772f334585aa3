"""Dense softmax attention: every query scores every key it may see."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attnworks.attention.contract import MECHANISMS, Attended, AttentionCost, Context, Geometry, Mechanism, dense_edges
from attnworks.attention.mask import Mask, as_four_axes
from attnworks.attention.reference import softmax_by_loops
from attnworks.attention.softmax import masked_softmax, scaled_dot


@MECHANISMS.register("dense")
class Dense(Mechanism):
    """Y = softmax(Q K^T / sqrt(k) + M) V.

    Source: Conti 2024, eq. 5 and 10 (S4.42, S4.57); Xie 2021, section 1 (S0.1).
    Departs: scale 1/sqrt(k) throughout; queries without keys give zero rows.
    Without `weights=True`, torch's fused kernel runs; second derivatives need `weights=True`.
    """

    name = "dense"
    softmax = True

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        scale = self.scale(Q.shape[-1], context)
        return explicit(scaled_dot(Q, K, scale), V, mask) if weights else Attended(fused(Q, K, V, mask, scale))

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        scale = self.scale(Q.shape[-1], context)
        return softmax_by_loops(lambda _, q, k: scale * (q * k).sum(), Q, K, V, mask)

    def dot_scale(self, d_k: int, context: Context) -> float | None:
        return self.scale(d_k, context)

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        h, d_k, d_v = geometry
        edges = h * dense_edges(queries, keys, causal)
        return AttentionCost(edges=edges, flops=2 * edges * (d_k + d_v), bytes=4 * h * queries * (d_v + 1))


EXPLICIT_BELOW_QUERIES = 128
"""Up to this many queries at the end of a longer sequence, causal attention takes a table of queries by keys."""


def explicit(S: Tensor, V: Tensor, mask: Mask) -> Attended:
    """Masked softmax of given scores, with its weights P [b h i j]."""
    added = mask.additive()
    if added is not None:
        S = S + added
    P = masked_softmax(S, mask.allowed(*S.shape[-2:], device=S.device))
    return Attended(P @ V, P)


def fused(Q: Tensor, K: Tensor, V: Tensor, mask: Mask, scale: float) -> Tensor:
    """The same outputs through torch's fused kernel, which stores no i x j table.

    The kernel takes a causal flag or a table, never both, and one width for Q, K and V. So padding under causality
    becomes one more coordinate of the keys, and a narrower tensor is widened with zeros; both leave Y unchanged.
    """
    i, (j, d_v) = Q.shape[-2], V.shape[-2:]
    causal = mask.causal and i > 1
    if mask.dense is not None or (causal and i < j and i <= EXPLICIT_BELOW_QUERIES):
        Y = F.scaled_dot_product_attention(Q, K, V, attn_mask=_table(mask, Q, j), scale=scale)
        return Y.masked_fill(~_allowed(mask, Q, j).any(-1, keepdim=True), 0.0)
    if causal:
        Q, scale = scale * Q, 1.0  # the kernel would also multiply hidden scores, -inf: NaN for scale 0, +inf below 0
        if mask.real is not None:
            Q, K = _padding_as_coordinate(Q, K, mask.real)
    width = max(Q.shape[-1], d_v)
    Q, K, V = (F.pad(T, (0, width - T.shape[-1])) if T.shape[-1] < width else T for T in (Q, K, V))
    if not causal:
        table = None if mask.real is None else mask.real[:, None, None, :]
        return F.scaled_dot_product_attention(Q, K, V, attn_mask=table, scale=scale)[..., :d_v]
    if i < j:
        Q = F.pad(Q, (0, 0, j - i, 0))
    Y = F.scaled_dot_product_attention(Q, K, V, is_causal=True, scale=scale)[..., j - i :, :d_v]
    seeing = mask.rows_with_keys(i, j)
    return Y if seeing is None else Y.masked_fill(~seeing[:, None, :, None], 0.0)


def _padding_as_coordinate(Q: Tensor, K: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """Queries get the coordinate 1, padded keys a very negative one and zeros, so that q.k hides them exactly."""
    K = K.masked_fill(~real[:, None, :, None], 0.0)
    penalty = torch.zeros_like(real, dtype=K.dtype).masked_fill(~real, torch.finfo(K.dtype).min / 4)
    return F.pad(Q, (0, 1), value=1.0), torch.cat([K, penalty[:, None, :, None].expand(*K.shape[:3], 1)], -1)


def _allowed(mask: Mask, Q: Tensor, j: int) -> Tensor:
    allowed = mask.allowed(Q.shape[-2], j, device=Q.device)
    assert allowed is not None
    return allowed


def _table(mask: Mask, Q: Tensor, j: int) -> Tensor:
    """All conditions of a mask with a dense part, in the form that the kernel takes."""
    added, allowed = mask.additive(), _allowed(mask, Q, j)
    if added is None:
        return allowed
    return as_four_axes(added).masked_fill(~allowed, -torch.inf)
