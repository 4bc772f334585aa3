"""BigBird: global tokens, a window and random keys, in blocks."""

from __future__ import annotations

from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from attnworks.attention.contract import MECHANISMS, Context
from attnworks.attention.dense import fused
from attnworks.attention.engines.blocks import attend_blocks
from attnworks.attention.engines.edges import EdgeList, attend_edges
from attnworks.attention.mask import Mask
from attnworks.attention.patterns import BlockPattern, GlobalPattern, RandomPattern
from attnworks.attention.sparse import Sparse, hidden_keys
from attnworks.core.checks import integer


@MECHANISMS.register("bigbird")
class BigBird(Sparse):
    """The first `n_global` blocks see all and are seen by all; others see a window and `n_random` blocks besides.

    window     tokens to each side, in whole blocks
    n_global   global blocks: g = n_global * block tokens
    n_random   random blocks for each block of queries and each head, outside of window and global blocks (and earlier,
               if causal); drawn by `seed`
    block      tokens in a block; 1 is the pattern of the document

    Source: Conti 2024, section 2.1.1 and Figure 7 (S4.73-S4.81).
    Departs: global tokens are the first ones, as in the count of S4.81; where fewer blocks are left to draw, all are.
    """

    name = "bigbird"
    smallest_block: ClassVar[int] = 16
    """Below this size, blocks are too small for matrix products, and attention runs edge by edge."""

    def __init__(
        self, *, window: int = 64, n_global: int = 2, n_random: int = 3, block: int = 64, seed: int = 0
    ) -> None:
        super().__init__()
        remedy = "write for instance bigbird:window=64,n_global=2,n_random=3,block=64"
        self.block = integer(f"{self.name} with block", block, 1, remedy=remedy)
        self.window = integer(f"{self.name} with window", window, 0, remedy=remedy)
        self.n_global = integer(f"{self.name} with n_global", n_global, 0, remedy=remedy)
        integer(f"{self.name} with n_random", n_random, 0, remedy=remedy)
        integer(f"{self.name} with seed", seed, 0, remedy=remedy)
        self.random = RandomPattern(n_random, block, seed, apart=window // block, first=n_global)
        self.pattern = BlockPattern(window, block) | GlobalPattern(n_global * block) | self.random

    def fast(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, scale: float, context: Context) -> Tensor:
        del context
        i, j = Q.shape[2], K.shape[2]
        rows = min(i, max(0, self.n_global * self.block - (j - i)))
        if rows == 0:
            return self._by_blocks(Q, K, V, mask, scale)
        last = j - i + rows if mask.causal else j
        real = None if mask.real is None else mask.real[:, :last]
        first, rest = Q.split([rows, i - rows], 2)
        around = fused(first, K[:, :, :last], V[:, :, :last], Mask(real, mask.causal), scale)
        return around if rows == i else torch.cat([around, self._by_blocks(rest, K, V, mask, scale)], 2)

    def _by_blocks(self, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, scale: float) -> Tensor:
        h, i, j = Q.shape[1], Q.shape[2], K.shape[2]
        hidden = hidden_keys(mask, len(Q))
        if self.block < self.smallest_block:
            return attend_edges(Q, K, V, _edges(self.random, h, i, j, mask.causal), scale, hidden)
        seen = torch.as_tensor(blocks_seen(self.random, h, j, mask.causal), device=Q.device)
        return attend_blocks(Q, K, V, seen, self.block, scale, hidden=hidden, causal=mask.causal)

    def edges(self, queries: int, keys: int, heads: int, causal: bool) -> int:
        """h (g n + (n - g)(g + r + 2w + 1) - w (w + 1)) for block = 1 and n large enough (S4.81); counted exactly.

        In blocks: the same formula for n / block blocks, times block^2.
        """
        position = torch.arange(keys - queries, keys)
        block, reach, first = position // self.block, self.window // self.block, self.n_global
        low = (block - reach).clamp(min=first) * self.block
        high = position + 1 if causal else ((block + reach + 1) * self.block).clamp(max=keys)
        drawn = torch.as_tensor((self.random.drawn(1, keys, causal)[0] >= 0).sum(-1))[block]
        local = min(first * self.block, keys) + high - low + drawn * self.block
        everything = position + 1 if causal else torch.full_like(position, keys)
        return heads * int(torch.where(block < first, everything, local).sum())


@lru_cache(maxsize=64)
def blocks_seen(random: RandomPattern, heads: int, n: int, causal: bool) -> np.ndarray:
    """The blocks of keys [h m c] that each block of queries sees: global, window, random, its own last; then -1."""
    own = np.arange(-(-n // random.block))
    reach = [step for step in range(-random.apart, 1 if causal else random.apart + 1) if step]
    around = own[:, None] + np.array(reach, dtype=np.int64)
    around = np.where((around >= random.first) & (around < len(own)), around, -1)
    everywhere = np.broadcast_to(np.arange(random.first), (len(own), random.first))
    shared = np.concatenate([everywhere, around], -1)[None].repeat(heads, 0)
    last = np.broadcast_to(own[:, None], (heads, len(own), 1))
    seen = np.concatenate([shared, random.drawn(heads, n, causal), last], -1)
    return np.take_along_axis(seen, np.argsort(seen < 0, axis=-1, kind="stable"), -1)


@lru_cache(maxsize=8)
def _edges(random: RandomPattern, heads: int, i: int, j: int, causal: bool) -> tuple[EdgeList[np.ndarray], ...]:
    """The same graph token by token, for the last i of j queries."""
    query = np.arange(j - i, j)
    graphs = []
    for seen in blocks_seen(random, heads, j, causal)[:, query // random.block]:
        keys = (seen[..., None] * random.block + np.arange(random.block)).reshape(i, -1)
        keep = (seen >= 0).repeat(random.block, -1) & (keys < j)
        keep &= (keys <= query[:, None]) | (not causal)
        graphs.append(EdgeList.of(keep.sum(-1), keys[keep], j))
    return tuple(graphs)
