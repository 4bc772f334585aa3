"""Attention where each block of queries sees a list of blocks of keys."""

from __future__ import annotations

import torch
from torch import Tensor

from attnworks.attention.engines.steps import BlockStep, BlockWalk, operator
from attnworks.core.tensors import widened


def attend_blocks(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    seen: Tensor,
    block: int,
    scale: float,
    *,
    hidden: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """Y [b h i v]: each query over the blocks of keys that its block sees.

    seen     [h m c], the blocks that each block of queries sees, its own last, then -1; as many in all heads
    hidden   [b j], True where a key is not to be seen
    causal   no query sees a later key of its own block; other blocks that it sees are earlier ones
    """
    wide = (widened(T) for T in (Q, K, V))
    return _attend(*wide, seen, hidden, block, causal, scale).to(Q.dtype)


class BlockSteps(BlockWalk):
    """The key blocks of a step are copied side by side: one large product is faster than many small ones in place."""

    def __init__(
        self,
        Q: Tensor,
        K: Tensor,
        V: Tensor,
        seen: Tensor,
        hidden: Tensor | None,
        block: int,
        causal: bool,
        scale: float,
    ) -> None:
        self.length, self.causal = K.shape[2], causal
        K, V, hidden = _whole_blocks(K, V, hidden, block)
        super().__init__(Q, K, V, hidden, block, scale)
        self.j = self.length
        self.counts = (seen[0] >= 0).sum(-1).tolist()
        self.seen = seen
        # [b*h*m block*k], [b*h*m block*v]: a row is one block of one head
        self.sources = tuple(T.reshape(-1, block * T.shape[-1]) for T in (self.K, self.V))
        self.later = self.Q.new_full((block, block), -torch.inf).triu_(1) if causal else None
        self.sums: list[Tensor] = []

    def most_keys(self) -> int:
        return self.block * max(self.counts)

    def fetch(self, step: BlockStep) -> tuple[Tensor, Tensor]:
        index = self._rows(step)
        K, V = (
            torch.index_select(source, 0, index, out=self.buffer(name, len(index), source.shape[1]))
            for name, source in zip("KV", self.sources, strict=True)
        )
        return tuple(T.view(step.count, -1, T.shape[1] // self.block) for T in (K, V))  # pyright: ignore[reportReturnType]

    def hide(self, S: Tensor, step: BlockStep) -> None:
        if self.later is not None:
            first = step.position - step.block * self.block
            S[..., -self.block :] += self.later[first : first + S.shape[1]]
        if self.shade is not None:
            blocks = self.seen[:, step.block, : self.counts[step.block]]
            shade = self.shade.unflatten(1, (-1, self.block))[step.sentences]  # [sentences m block]; blocks is [h c]
            by_head = shade[:, blocks].flatten(0, 1).flatten(1)  # [sentences*h c*block]
            start = step.heads.start - step.sentences.start * self.h
            S += by_head[start : start + step.count, None]

    def add_gradients(self, step: BlockStep, dS: Tensor, Q: Tensor, P: Tensor, dY: Tensor) -> None:
        if not self.sums:
            self.sums = [torch.zeros_like(T) for T in self.sources]
        index = self._rows(step)
        for sums, weights, rows in zip(self.sums, (dS, P), (Q, dY), strict=True):
            found = torch.bmm(weights.mT, rows, out=self.buffer("found", *weights.mT.shape[:2], rows.shape[-1]))
            sums.index_add_(0, index, found.view(len(index), -1))

    def gradients(self) -> list[Tensor]:
        shaped = (sums.view(self.b * self.h, -1, sums.shape[1] // self.block) for sums in self.sums)
        return [sums[:, : self.length] for sums in shaped]

    def _rows(self, step: BlockStep) -> Tensor:
        """The step's blocks as rows of the sources [b*h*m .]: g times c of them."""
        heads = torch.arange(step.heads.start, step.heads.stop, device=self.seen.device)
        own = self.seen[heads % self.h, step.block, : self.counts[step.block]]
        return (own + heads[:, None] * (self.K.shape[1] // self.block)).flatten()


def _whole_blocks(K: Tensor, V: Tensor, hidden: Tensor | None, block: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Keys and values padded to whole blocks; the padding is hidden."""
    missing = -K.shape[2] % block
    if not missing:
        return K, V, hidden
    pad = torch.nn.functional.pad
    hidden = torch.zeros(K.shape[0], K.shape[2], dtype=torch.bool, device=K.device) if hidden is None else hidden
    return pad(K, (0, 0, 0, missing)), pad(V, (0, 0, 0, missing)), pad(hidden, (0, missing), value=True)


_attend = operator(
    "blocks",
    BlockSteps,
    "Tensor Q, Tensor K, Tensor V, Tensor seen, Tensor? hidden, int block, bool causal, float scale",
    differentiable=3,
)
