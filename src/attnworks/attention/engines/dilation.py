"""Dilated windows as plain ones: token p of a sequence is token p // d of the (p mod d)-th interleaved sequence."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attnworks.attention.engines.band import attend_band
from attnworks.attention.patterns import Window

Shared = tuple[Tensor, Tensor, Tensor]


def attend_dilated(
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    window: Window,
    causal: bool,
    scale: float,
    hidden: Tensor | None = None,
    shared: Shared | None = None,
) -> Tensor:
    """attend_band with each head's own dilation; arguments as there."""
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
    shared: Shared | None,
) -> Tensor:
    after = 0 if causal else window
    (b, _, i, _), j = Q.shape, K.shape[2]
    if step == 1 or window == 0:
        return attend_band(Q, K, V, window, after, scale, hidden=hidden, shared=shared)
    if i == 1:  # lies in one of the interleaved sequences
        own = slice((j - 1) % step, None, step)
        K, V, hidden = K[:, :, own], V[:, :, own], None if hidden is None else hidden[:, own]
        shared = None if shared is None else (*shared[:2], (shared[2] >= j) * K.shape[2])
        return attend_band(Q, K, V, window, after, scale, hidden=hidden, shared=shared)
    first = max(0, (j - i) // step - window) * step  # earlier keys are out of reach; whole steps keep the residues
    if first:
        K, V, hidden = K[:, :, first:], V[:, :, first:], None if hidden is None else hidden[:, first:]
        shared = None if shared is None else (*shared[:2], (shared[2] - first).clamp(min=0))
    n = j - first
    Q = F.pad(Q, (0, 0, n - i, 0))
    if n % step:
        tail = -n % step
        hidden = torch.zeros(b, n, dtype=torch.bool, device=Q.device) if hidden is None else hidden
        hidden = F.pad(hidden, (0, tail), value=True)
        Q, K, V = (F.pad(T, (0, 0, 0, tail)) for T in (Q, K, V))
    Q, K, V = (_apart(T, step) for T in (Q, K, V))
    hidden = None if hidden is None else hidden.unflatten(1, (-1, step)).mT.flatten(0, 1)
    if shared is not None:
        start = torch.arange(step, device=Q.device)[:, None]
        seen_from = ((shared[2][:, None] - start).clamp(min=0) + step - 1) // step
        K_shared, V_shared = (T.repeat_interleave(step, 0) for T in shared[:2])
        shared = K_shared, V_shared, seen_from.flatten(0, 1)
    Y = attend_band(Q, K, V, window, after, scale, hidden=hidden, shared=shared)
    return _together(Y, step)[:, :, n - i : n]


def _apart(T: Tensor, step: int) -> Tensor:
    """[b h n .] -> [b*d h n/d .], one row of the batch for each of the interleaved sequences."""
    return T.unflatten(2, (-1, step)).movedim(3, 1).flatten(0, 1)


def _together(T: Tensor, step: int) -> Tensor:
    return T.unflatten(0, (-1, step)).movedim(1, 3).flatten(2, 3)
