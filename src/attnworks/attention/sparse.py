"""The base of mechanisms over a fixed pattern of positions: table, reference, and FlexAttention on a GPU."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import cache
from typing import ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from attnworks.attention.contract import Attended, AttentionCost, Context, Geometry, Mechanism
from attnworks.attention.dense import explicit, fused
from attnworks.attention.mask import Mask, as_four_axes
from attnworks.attention.patterns import Pattern
from attnworks.attention.reference import softmax_by_loops
from attnworks.attention.softmax import scaled_dot

BatchRule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


class Sparse(Mechanism):
    """Y = softmax(Q K^T / sqrt(k) + M) V with M = -inf wherever the pattern has no edge.

    Source: Conti 2024, eq. 11 (S4.74, S4.75).
    Departs: scaled scores, and no residual: the model adds X.
    With a dense mask, which is a table of all pairs anyway, this is dense attention with the pattern in the mask.
    Second derivatives need `weights=True`.
    """

    softmax: ClassVar[bool] = True
    supports_cross_attention: ClassVar[bool] = False
    pattern: Pattern

    @abstractmethod
    def fast(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, scale: float, context: Context) -> Tensor:
        """Y under padding and causality, in time and memory proportional to the edges."""

    @abstractmethod
    def edges(self, queries: int, keys: int, heads: int, causal: bool) -> int:
        """Edges of all heads, counted without building the graph."""

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        scale = self.scale(Q.shape[-1], context)
        if weights or mask.dense is not None:
            return attend_table(Q, K, V, self.table(Q, K, mask, context), mask, scale, weights)
        if Q.device.type == "cpu":
            return Attended(self.fast(Q, K, V, mask, scale, context))
        rule = self.rule(context, Q.shape[1], K.shape[2], mask.causal, Q.device)
        alike = mask.real is None and context.global_tokens is None
        return Attended(attend_flex(Q, K, V, rule, mask, scale, alike=alike))

    def rule(self, context: Context, heads: int, n: int, causal: bool, device: torch.device) -> BatchRule:
        """Which pairs are edges: (batch, head, query, key) as index tensors -> booleans."""
        del context
        linked = self.pattern.links(heads, n, causal, device)
        return lambda batch, head, query, key: linked(head, query, key)

    def table(self, Q: Tensor, K: Tensor, mask: Mask, context: Context) -> Bool[Tensor, "#b h i j"]:
        """All pairs of the pattern, without padding."""
        (b, h, i, _), j = Q.shape, K.shape[2]
        batch, head, key = (torch.arange(size, device=Q.device) for size in (b, h, j))
        query = key[j - i :, None]
        linked = self.rule(context, h, j, mask.causal, Q.device)
        seen = linked(batch[:, None, None, None], head[:, None, None], query, key)
        seen = seen & (key <= query) if mask.causal else seen
        return as_four_axes(seen).expand(-1, h, i, j)

    def linked(self, context: Context, batch: int, head: int, query: int, key: int, n: int, causal: bool) -> bool:
        """One pair of positions, for the reference."""
        del context, batch
        return self.pattern.sees(head, query, key, n, causal)

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        scale = self.scale(Q.shape[-1], context)
        n, offset = K.shape[2], K.shape[2] - Q.shape[2]

        def linked(batch: int, head: int, query: int, key: int) -> bool:
            return self.linked(context, batch, head, query + offset, key, n, mask.causal)

        return softmax_by_loops(lambda _, q, k: scale * (q * k).sum(), Q, K, V, mask, linked)

    def cost(self, queries: int, keys: int, geometry: Geometry, *, causal: bool = False) -> AttentionCost:
        h, d_k, d_v = geometry
        edges = self.edges(queries, keys, h, causal)
        return AttentionCost(edges, flops=2 * edges * (d_k + d_v), bytes=4 * h * queries * (d_v + 1))


def hidden_keys(mask: Mask, b: int) -> Bool[Tensor, "b j"] | None:
    """True at padding, a row for every sentence."""
    return None if mask.real is None else ~mask.real.expand(b, -1)


def attend_table(Q: Tensor, K: Tensor, V: Tensor, table: Tensor, mask: Mask, scale: float, weights: bool) -> Attended:
    """Dense attention over the pairs of a table [b h i j] that the mask allows as well."""
    together = _with_pattern(mask, table)
    if weights:
        return explicit(scaled_dot(Q, K, scale), V, together)
    return Attended(fused(Q, K, V, together, scale))


def _with_pattern(mask: Mask, table: Tensor) -> Mask:
    """The mask and the pattern as one mask."""
    if mask.dense is None:
        return Mask(mask.real, mask.causal, table)
    if mask.dense.is_floating_point():
        return Mask(mask.real, mask.causal, mask.dense.masked_fill(~table, -torch.inf))
    return Mask(mask.real, mask.causal, mask.dense & table)


def attend_flex(
    Q: Tensor, K: Tensor, V: Tensor, linked: Callable[..., Tensor], mask: Mask, scale: float, *, alike: bool = False
) -> Tensor:
    """Y [b h i v] over the pairs where linked(batch, head, query, key); blocks without any edge are never visited.

    alike   whether all sentences have the same pairs, and can share one mask
    On a CPU, where only tests use it, there is no backward pass, and the mask is made from a table of all pairs.
    """
    (b, h, i, _), j = Q.shape, K.shape[2]
    real = torch.ones(b, j, dtype=torch.bool, device=Q.device) if mask.real is None else mask.real.expand(b, -1)
    latest = j - i if mask.causal else j  # the last key that row 0 may see
    blocks = create_block_mask(
        lambda batch, head, row, key: (
            linked(batch, head, row + (j - i), key) & (key <= row + latest) & real[batch, key]
        ),
        B=None if alike else b,
        H=h,
        Q_LEN=i,
        KV_LEN=j,
        device=str(Q.device),
        _compile=Q.device.type != "cpu",
    )
    run = flex_attention if Q.device.type == "cpu" else _compiled()
    Y = run(Q, K, V, block_mask=blocks, scale=scale)
    assert isinstance(Y, Tensor)
    return Y


@cache
def _compiled() -> Callable[..., object]:
    return torch.compile(flex_attention, dynamic=False)
