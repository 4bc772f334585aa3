"""Attention in a band around the diagonal, plain or dilated, with a few shared keys that every query may see.

A window of dilation d is a plain window over d interleaved sequences: token p of the sequence is token p // d of the
(p mod d)-th of them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attnworks.attention.engines.steps import BlockStep, BlockWalk, operator
from attnworks.attention.patterns import WindowPattern
from attnworks.core.tensors import widened

_Shared = tuple[Tensor, Tensor, Tensor] | None
"""K [b h x k] and V [b h x v] of x shared keys, and [b x] the first query position that sees each of them."""


def _attend_band(
    Q: Tensor, K: Tensor, V: Tensor, before: int, after: int, scale: float, hidden: Tensor | None, shared: _Shared
) -> Tensor:
    """Y [b h i v]: each query over the keys from `before` positions before to `after` positions after its own.

    hidden   [b j], True where a key of the band is not to be seen
    """
    K_shared, V_shared, seen_from = shared or (None, None, None)
    wide = (None if T is None else widened(T) for T in (Q, K, V, K_shared, V_shared))
    return _attend(*wide, seen_from, hidden, before, after, scale).to(Q.dtype)


class BandSteps(BlockWalk):
    """The keys of a step are one slice, read in place. Shared keys are copied beside it: columns [slice, shared]."""

    def __init__(
        self,
        Q: Tensor,
        K: Tensor,
        V: Tensor,
        K_shared: Tensor | None,
        V_shared: Tensor | None,
        seen_from: Tensor | None,
        hidden: Tensor | None,
        before: int,
        after: int,
        scale: float,
    ) -> None:
        self.before, self.after = before, after
        super().__init__(Q, K, V, hidden, _queries_together(before + after), scale)
        self.shared = tuple(T.flatten(0, 1) for T in (K_shared, V_shared) if T is not None)
        self.seen_from = seen_from
        self.latest = int(seen_from.max()) if seen_from is not None and seen_from.numel() else 0
        self.hidden_before = [] if hidden is None else [0, *hidden.any(0).cumsum(0).tolist()]
        self.corners = self._corners()  # [block, before + block + after]
        self.sums: list[Tensor] = []

    def most_keys(self) -> int:
        return min(self.j, self.before + self.block + self.after) + (self.shared[0].shape[1] if self.shared else 0)

    def keys(self, step: BlockStep) -> slice:
        last = step.position + step.queries.stop - step.queries.start
        return slice(max(0, step.position - self.before), min(self.j, last + self.after))

    def fetch(self, step: BlockStep) -> tuple[Tensor, Tensor]:
        K, V = (T[step.heads, self.keys(step)] for T in (self.K, self.V))  # [g width k], [g width v]
        if not self.shared:
            return K, V
        K_shared, V_shared = (T[step.heads] for T in self.shared)
        return self._beside("K", K, K_shared), self._beside("V", V, V_shared)

    def hide(self, S: Tensor, step: BlockStep) -> None:
        keys = self.keys(step)
        width = keys.stop - keys.start
        self._hide_corners(S, step, keys)
        if self.shade is not None and self.hidden_before[keys.stop] > self.hidden_before[keys.start]:
            # [g r width] -> [sentences heads r width], plus -inf [sentences 1 1 width] at hidden keys
            by_sentence = S[..., :width].unflatten(0, (step.sentences.stop - step.sentences.start, -1))
            by_sentence += self.shade[step.sentences, None, None, keys]
        if self.shared and self.latest > step.position:
            assert self.seen_from is not None
            positions = torch.arange(step.position, step.position + S.shape[1], device=S.device)
            unseen = self.seen_from[step.sentences, None, None] > positions[:, None]  # [sentences 1 r x]
            S[..., width:].unflatten(0, (unseen.shape[0], -1)).masked_fill_(unseen, -torch.inf)

    def add_gradients(self, step: BlockStep, dS: Tensor, Q: Tensor, P: Tensor, dY: Tensor) -> None:
        if not self.sums:
            self.sums = [T.new_zeros(T.shape) for T in (self.K, self.V, *self.shared)]
        keys = self.keys(step)
        width = keys.stop - keys.start
        for place, (weights, rows) in enumerate(((dS, Q), (P, dY))):
            self.sums[place][step.heads, keys].baddbmm_(weights[..., :width].mT, rows)
            if self.shared:
                self.sums[2 + place][step.heads].baddbmm_(weights[..., width:].mT, rows)

    def gradients(self) -> list[Tensor]:
        return self.sums

    def _beside(self, name: str, own: Tensor, shared: Tensor) -> Tensor:
        out = self.buffer(name, len(own), own.shape[1] + shared.shape[1], own.shape[2])
        return torch.cat([own, shared], 1, out=out)

    def _corners(self) -> Tensor:
        """0 where row r of a block sees column c, -inf where not; c is the key at `first position - before + c`."""
        row = torch.arange(self.block, device=self.Q.device)[:, None]
        away = torch.arange(self.before + self.block + self.after, device=self.Q.device) - self.before - row
        seen = (away >= -self.before) & (away <= self.after)
        return self.Q.new_zeros(seen.shape).masked_fill_(~seen, -torch.inf)

    def _hide_corners(self, S: Tensor, step: BlockStep, keys: slice) -> None:
        """Add -inf outside of the band. All rows see the columns in the middle: only the two ends are touched."""
        start, rows = step.block * self.block, S.shape[1]
        first = step.position - start  # row of `corners` of the first query, if the block begins before it
        left = keys.start - start + self.before
        width = keys.stop - keys.start
        corners = self.corners[first : first + rows, left : left + width]
        ahead = min(width, first + rows - 1 - left)  # columns that lie before the band of the last row
        if ahead > 0:
            S[..., :ahead] += corners[:, :ahead]
        behind = max(0, first + self.before + self.after + 1 - left)  # columns that lie after the band of the first row
        if behind < width:
            S[..., behind:width] += corners[:, behind:]


def _queries_together(reach: int) -> int:
    """Queries in a block: large blocks make fast matrix products, small ones waste fewer scores outside of the band."""
    return 128 if reach >= 256 else 64 if reach >= 64 else 32


_attend = operator(
    "band",
    BandSteps,
    "Tensor Q, Tensor K, Tensor V, Tensor? K_shared, Tensor? V_shared, Tensor? seen_from, Tensor? hidden, "
    "int before, int after, float scale",
    differentiable=5,
)


def attend_window(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    window: WindowPattern,
    causal: bool,
    scale: float,
    hidden: Tensor | None,
    shared: _Shared = None,
) -> Tensor:
    """Y [b h i v]: each query over the keys of its window, with the dilation of its head, and over the shared keys.

    hidden   [b j], True where a key of the window is not to be seen
    """
    steps = window.steps(Q.shape[1])
    if len(set(steps)) == 1:
        return _one_dilation(Q, K, V, window.window, steps[0], causal, scale, hidden, shared)
    parts, order = [], []
    for step in sorted(set(steps)):
        heads = [head for head, own in enumerate(steps) if own == step]
        shared_here = None if shared is None else (shared[0][:, heads], shared[1][:, heads], shared[2])
        some = Q[:, heads], K[:, heads], V[:, heads]
        parts.append(_one_dilation(*some, window.window, step, causal, scale, hidden, shared_here))
        order += heads
    return torch.cat(parts, 1)[:, torch.tensor(order, device=Q.device).argsort()]


def _one_dilation(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    window: int,
    step: int,
    causal: bool,
    scale: float,
    hidden: Tensor | None,
    shared: _Shared,
) -> Tensor:
    """`_attend_band` over every `step`-th key, for heads of one dilation."""
    after = 0 if causal else window
    (b, _, i, _), j = Q.shape, K.shape[2]
    if step == 1 or window == 0:
        return _attend_band(Q, K, V, window, after, scale, hidden, shared)
    if i == 1:  # one query lies in one of the interleaved sequences: take its keys alone
        own = slice((j - 1) % step, None, step)
        K, V, hidden = K[:, :, own], V[:, :, own], None if hidden is None else hidden[:, own]
        shared = None if shared is None else (*shared[:2], (shared[2] >= j) * K.shape[2])
        return _attend_band(Q, K, V, window, after, scale, hidden, shared)
    first = max(0, (j - i) // step - window) * step  # earlier keys are out of reach; a multiple of step
    if first:
        K, V, hidden = K[:, :, first:], V[:, :, first:], None if hidden is None else hidden[:, first:]
        shared = None if shared is None else (*shared[:2], (shared[2] - first).clamp(min=0))
    n = j - first
    Q = F.pad(Q, (0, 0, n - i, 0))
    if n % step:  # pad to whole steps with hidden keys
        tail = -n % step
        hidden = torch.zeros(b, n, dtype=torch.bool, device=Q.device) if hidden is None else hidden
        hidden = F.pad(hidden, (0, tail), value=True)
        Q, K, V = (F.pad(T, (0, 0, 0, tail)) for T in (Q, K, V))
    Q, K, V = (_apart(T, step) for T in (Q, K, V))
    hidden = None if hidden is None else hidden.unflatten(1, (-1, step)).mT.flatten(0, 1)  # [b*d n/d]
    if shared is not None:
        # interleaved sequence s holds the positions s, s + d, ...: the first one from seen_from on, counted in it
        start = torch.arange(step, device=Q.device)[:, None]
        seen_from = ((shared[2][:, None] - start).clamp(min=0) + step - 1) // step
        K_shared, V_shared = (T.repeat_interleave(step, 0) for T in shared[:2])
        shared = K_shared, V_shared, seen_from.flatten(0, 1)
    Y = _attend_band(Q, K, V, window, after, scale, hidden, shared)
    return _together(Y, step)[:, :, n - i : n]


def _apart(T: Tensor, step: int) -> Tensor:
    """[b h n .] -> [b*d h n/d .]: one row of the batch for each interleaved sequence."""
    return T.unflatten(2, (-1, step)).movedim(3, 1).flatten(0, 1)


def _together(T: Tensor, step: int) -> Tensor:
    return T.unflatten(0, (-1, step)).movedim(1, 3).flatten(2, 3)
