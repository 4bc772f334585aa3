"""Longformer: windows with a dilation for each head, and global tokens with projections of their own."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from attnworks.attention.contract import MECHANISMS, Attended, Context
from attnworks.attention.dense import explicit, fused
from attnworks.attention.engines.band import attend_window
from attnworks.attention.mask import Mask
from attnworks.attention.patterns import GlobalPattern, WindowPattern
from attnworks.attention.reference import softmax_by_loops
from attnworks.attention.softmax import scaled_dot
from attnworks.attention.sparse import BatchRule, Sparse, hidden_keys
from attnworks.attention.window import read_dilation, window_edges
from attnworks.core.checks import integer


@MECHANISMS.register("longformer")
class Longformer(Sparse):
    """Keys within the window, and global tokens, which see all tokens and are seen by all.

    window, dilation   as for `window`
    n_global           the first tokens are global, unless Context.global_tokens says which are, sentence by sentence

    Global tokens attend to all tokens with Q_g, K_g, V_g of Context.global_qkv if it is given; all else uses Q, K, V.

    Source: Conti 2024, section 2.1.1 (S4.82-S4.87).
    """

    name = "longformer"
    has_global_projections: ClassVar[bool] = True

    def __init__(self, *, window: int = 64, dilation: int | str | tuple[int, ...] = 1, n_global: int = 1) -> None:
        super().__init__()
        remedy = "write for instance longformer:window=64,n_global=1"
        self.window = WindowPattern(
            integer(f"{self.name} with window", window, 0, remedy=remedy), read_dilation(self.name, dilation)
        )
        self.n_global = integer(f"{self.name} with n_global", n_global, 0, remedy=remedy)
        self.pattern = self.window | GlobalPattern(n_global)

    def attend(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context, weights: bool) -> Attended:
        """All queries attend with Q, K, V; then the rows of global tokens are replaced, with Q_g, K_g, V_g if given."""
        near = super().attend(Q, K, V, mask, context, weights)
        scale, is_global = self.scale(Q.shape[-1], context), self.tokens(context, len(Q), K.shape[2], Q.device)
        if not weights and mask.dense is None:
            return Attended(self._with_global_rows(near.Y, is_global, mask, scale, *(context.global_qkv or (Q, K, V))))
        if context.global_qkv is None:
            return near
        rows, (Q, K, V) = is_global[:, None, -Q.shape[2] :, None], context.global_qkv
        far = explicit(scaled_dot(Q, K, scale), V, mask) if weights else Attended(fused(Q, K, V, mask, scale))
        P = None if near.P is None or far.P is None else torch.where(rows, far.P, near.P)
        return Attended(torch.where(rows, far.Y, near.Y), P)

    def fast(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, scale: float, context: Context) -> Tensor:
        """Y of queries that are not global: over their windows, and over the global tokens as keys that all share."""
        b, j = Q.shape[0], K.shape[2]
        is_global, hidden = self.tokens(context, b, j, Q.device), hidden_keys(mask, b)
        tokens = _Tokens.of(is_global)
        if tokens is None:
            return attend_window(Q, K, V, self.window, mask.causal, scale, hidden)
        seen_from = tokens.position if mask.causal else torch.zeros_like(tokens.position)
        unseen = ~tokens.real if hidden is None else ~tokens.real | hidden.gather(1, tokens.position)
        # K [b h g k], V [b h g v], and [b g] the first query that sees each of them: j, after the last, for none
        shared = (tokens.pick(K), tokens.pick(V), seen_from.masked_fill(unseen, j))
        elsewhere = is_global if hidden is None else is_global | hidden
        return attend_window(Q, K, V, self.window, mask.causal, scale, elsewhere, shared)

    def _with_global_rows(
        self, Y: Tensor, is_global: Tensor, mask: Mask, scale: float, Q: Tensor, K: Tensor, V: Tensor
    ) -> Tensor:
        """Y [b h i v] with the rows of global tokens, which see all keys."""
        i, j = Q.shape[2], K.shape[2]
        tokens = _Tokens.of(is_global)
        if tokens is None:
            return Y
        row = tokens.position - (j - i)  # [b g] rows of Q; negative where the token is not among the queries
        asking = _Tokens(row.clamp(min=0), tokens.real & (row >= 0))
        seen = torch.arange(j, device=Q.device) <= tokens.position[..., None] if mask.causal else None  # [b g j]
        around = fused(asking.pick(Q), K, V, Mask(mask.real, dense=None if seen is None else seen[:, None]), scale)
        return asking.put(Y, around, is_global[:, j - i :])

    def tokens(self, context: Context, b: int, n: int, device: torch.device) -> Bool[Tensor, "b n"]:
        """True at global tokens."""
        if context.global_tokens is not None:
            return context.global_tokens.expand(b, -1)
        return (torch.arange(n, device=device) < self.n_global).expand(b, -1)

    def rule(self, context: Context, heads: int, n: int, causal: bool, device: torch.device) -> BatchRule:
        if context.global_tokens is None:
            return super().rule(context, heads, n, causal, device)
        linked, tokens = self.window.links(heads, n, causal, device), context.global_tokens
        return lambda batch, head, query, key: (
            linked(head, query, key) | tokens[batch % len(tokens), query] | tokens[batch % len(tokens), key]
        )

    def linked(self, context: Context, batch: int, head: int, query: int, key: int, n: int, causal: bool) -> bool:
        tokens = context.global_tokens
        if tokens is None:
            return super().linked(context, batch, head, query, key, n, causal)
        row = tokens[batch % len(tokens)]
        return bool(row[query] or row[key]) or self.window.sees(head, query, key, n, causal)

    def reference(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, context: Context) -> Attended:
        first = super().reference(Q, K, V, mask, context)
        if context.global_qkv is None:
            return first
        scale = self.scale(Q.shape[-1], context)
        again = softmax_by_loops(lambda _, q, k: scale * (q * k).sum(), *context.global_qkv, mask)
        rows = self.tokens(context, len(Q), K.shape[2], Q.device)[:, None, -Q.shape[2] :, None]
        assert first.P is not None and again.P is not None
        return Attended(torch.where(rows, again.Y, first.Y), torch.where(rows, again.P, first.P))

    def edges(self, queries: int, keys: int, heads: int, causal: bool) -> int:
        """Edges of the windows, and of the g (2n - g) edges of global tokens those outside of the windows.

        With a window of w steps of d, query t sees 1 + floor(min(t, w d) / d) keys up to itself, and after it mirrored.
        """
        w, g, offset = self.window.window, min(self.n_global, keys), keys - queries
        token = torch.arange(offset, max(offset, g))
        other = torch.arange(max(offset, g), keys)
        total = 0
        for step, times in Counter(self.window.steps(heads)).items():
            reach = w * step
            before = token.clamp(max=reach) // step
            after = torch.zeros_like(token) if causal else (keys - 1 - token).clamp(max=reach) // step
            beyond = (token + 1 if causal else torch.full_like(token, keys)) - before - after - 1
            near = ((other // step).clamp(max=w) - (other - g).div(step, rounding_mode="floor")).clamp(min=0)
            total += times * (window_edges(queries, keys, w, step, causal) + int(beyond.sum()) + int((g - near).sum()))
        return total


class _Tokens(NamedTuple):
    """Some positions of each sentence, padded to g places; `real` is True where a place is taken."""

    position: Int[Tensor, "b g"]
    real: Bool[Tensor, "b g"]

    @classmethod
    def of(cls, chosen: Bool[Tensor, "b n"]) -> _Tokens | None:
        most = int(chosen.sum(1).max())
        if not most:
            return None
        first = chosen.to(torch.int8).sort(dim=1, descending=True, stable=True).indices[:, :most]
        return cls(first, chosen.gather(1, first))

    def pick(self, T: Tensor) -> Tensor:
        """Rows [b h g .] of T [b h n .]."""
        return T.gather(2, self.position[:, None, :, None].expand(-1, T.shape[1], -1, T.shape[-1]))

    def put(self, Y: Tensor, rows: Tensor, where: Bool[Tensor, "b i"]) -> Tensor:
        """Y with these rows [b h g .] in their places."""
        index = self.position.masked_fill(~self.real, Y.shape[2])[:, None, :, None].expand_as(rows)
        spread = Y.new_zeros(*Y.shape[:2], Y.shape[2] + 1, Y.shape[3]).scatter(2, index, rows.to(Y.dtype))
        return torch.where(where[:, None, :, None], spread[:, :, :-1], Y)
