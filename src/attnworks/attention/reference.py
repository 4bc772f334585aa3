"""Softmax attention in loops: the slow reference that the dense family is tested against."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from attnworks.attention.contract import Attended
from attnworks.attention.mask import Mask, as_four_axes


def softmax_by_loops(
    score: Callable[[int, Tensor, Tensor], Tensor],
    Q: Tensor,
    K: Tensor,
    V: Tensor,
    mask: Mask,
    linked: Callable[[int, int, int, int], bool] = lambda batch, head, query, key: True,
) -> Attended:
    """Y_i = sum_j P_ij v_j with P_ij = exp(S_ij) / sum_j' exp(S_ij'), over the keys that query i may see.

    `score(h, q, k)` is S_ij of head h; `linked(b, h, i, j)` says whether the mechanism has this pair at all. Masks
    are read entry by entry, independently of the code that is tested.
    """
    (b, h, i, _), (j, v) = Q.shape, V.shape[2:]
    Y = torch.zeros(b, h, i, v, dtype=V.dtype)
    P = torch.zeros(b, h, i, j, dtype=V.dtype)
    for batch in range(b):
        for head in range(h):
            keys = K[batch, head].unbind()
            for query, q in enumerate(Q[batch, head].unbind()):
                seen = [
                    key
                    for key in range(j)
                    if may_see(mask, batch, head, query, key, i, j) and linked(batch, head, query, key)
                ]
                if not seen:
                    continue
                scores = [score(head, q, keys[key]) + _added(mask, batch, head, query, key) for key in seen]
                exponentials = torch.exp(torch.stack(scores) - max(float(s.detach()) for s in scores))
                weights = exponentials / exponentials.sum()
                P[batch, head, query, seen] = weights
                Y[batch, head, query] = weights @ V[batch, head, seen]
    return Attended(Y, P)


def may_see(mask: Mask, batch: int, head: int, query: int, key: int, queries: int, keys: int) -> bool:
    """Whether the mask lets this query see this key."""
    if mask.real is not None and not mask.real[batch % len(mask.real), key]:
        return False
    if mask.causal and key > query + keys - queries:
        return False
    entry = _dense_entry(mask, batch, head, query, key)
    return entry is None or (bool(entry) if entry.dtype == torch.bool else bool(entry > -torch.inf))


def _added(mask: Mask, batch: int, head: int, query: int, key: int) -> Tensor | float:
    entry = _dense_entry(mask, batch, head, query, key)
    return 0.0 if entry is None or entry.dtype == torch.bool else entry


def _dense_entry(mask: Mask, batch: int, head: int, query: int, key: int) -> Tensor | None:
    if mask.dense is None:
        return None
    table = as_four_axes(mask.dense)
    return table[batch % table.shape[0], head % table.shape[1], query, key]
