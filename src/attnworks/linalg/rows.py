"""Everything that is asked of single rows of an attention matrix, in few passes over it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.linalg.scratch import FRESH, Scratch

HIDDEN = -1e30
"""The score of a key that may not be seen: far below all others, and finite, so that 0 times it is 0."""


class WeighedRows(NamedTuple):
    """P = softmax(S) and, for each of its rows, how near it is to a unit vector.

    argmax    the key with the largest weight; -1 where several share it, and where no key is seen
    """

    P: Float[Tensor, "*a i j"]
    entropy: Float[Tensor, "*a i"]
    max_weight: Float[Tensor, "*a i"]
    jacobian_norm: Float[Tensor, "*a i"]
    score_range: Float[Tensor, "*a i"]
    argmax: Int[Tensor, "*a i"]


def weigh_rows(
    S: Float[Tensor, "*a i j"], allowed: Bool[Tensor, "*#a #i #j"] | None = None, scratch: Scratch = FRESH
) -> WeighedRows:
    """Masked softmax of S with entropy, largest weight, Jacobian norm, range of scores and argmax of every row.

    With d_j = S_j - max S, and r_k = sum of exp(k d_j) over all keys below the maximum, which c keys share,
        Z = c + r_1,   H = ln Z - sum_j d_j exp(d_j) / Z,   max P = 1 / Z,
        ||diag(p) - p p^T||_F^2 = sum p^2 - 2 sum p^3 + (sum p^2)^2, written for c = 1 so that no digits cancel.
    Source: S4.46-S4.50 and S0.34; the same numbers as `linalg.softmax`, four times as fast.
    Departs: S is overwritten; P is scratch memory. A row that sees no key has zero weights, entropy, range, Jacobian.
    """
    blind = None
    if allowed is None:
        lowest = S.amin(-1)
    else:
        hidden = ~allowed
        blind = ~allowed.any(-1).expand(S.shape[:-1])
        lowest = S.masked_fill(hidden, torch.inf).amin(-1)
        S.masked_fill_(hidden, HIDDEN)
    top = S.amax(-1)
    D = S.sub_(top.unsqueeze(-1))
    largest, E, T = (scratch.like(name, D) for name in ("largest", "E", "T"))
    torch.eq(D, 0.0, out=largest)
    torch.exp(D, out=E).sub_(largest)
    drop = torch.mul(E, D, out=T).sum(-1)
    torch.mul(E, E, out=T)
    r1, r2, r3 = E.sum(-1), T.sum(-1), T.mul_(E).sum(-1)
    position = torch.arange(S.shape[-1], dtype=S.dtype, device=S.device)
    c, where = largest.sum(-1), largest @ position
    Z = c + r1
    P = E.add_(largest).div_(Z.unsqueeze(-1))
    rows = WeighedRows(
        P,
        entropy=Z.log() - drop / Z,
        max_weight=1 / Z,
        jacobian_norm=_jacobian_norm(Z, c, r1, r2, r3),
        score_range=top - lowest,
        argmax=torch.where(c == 1, where, -1.0).long(),
    )
    return rows if blind is None or not blind.any() else _without(rows, blind)


def _jacobian_norm(Z: Tensor, c: Tensor, r1: Tensor, r2: Tensor, r3: Tensor) -> Tensor:
    """Z^4 ||J||^2 = (c + r2) Z^2 - 2 (c + r3) Z + (c + r2)^2, which is near zero only if c = 1 and Z is near 1.

    There Z^2 - 2 Z + 1 = r1^2 is put in by hand; what is left has no negative term, as r3 <= r2 exp(second d).
    """
    one = r1.square() + 2 * r2 + (r2 * Z - 2 * r3) * Z + r2.square()
    second, third = c + r2, c + r3
    several = second * Z.square() - 2 * third * Z + second.square()
    return torch.where(c == 1, one, several).clamp_min(0.0).sqrt() / Z.square()


def _without(rows: WeighedRows, blind: Tensor) -> WeighedRows:
    P = rows.P.masked_fill(blind.unsqueeze(-1), 0.0)
    entropy, max_weight, jacobian_norm, score_range = (x.masked_fill(blind, 0.0) for x in rows[1:5])
    return WeighedRows(P, entropy, max_weight, jacobian_norm, score_range, rows.argmax.masked_fill(blind, -1))


def diagonal_sums(P: Float[Tensor, "m i j"], scratch: Scratch = FRESH) -> Float[Tensor, "m o"]:
    """sum_i P[i, i + o] for every offset o from -(i - 1) to j - 1.

    Rows are copied behind i zeros each and read again one further to the right per row, so that diagonals are columns.
    """
    m, i, j = P.shape
    width = i + j
    wide = scratch.zeros((m, i * width + i), P)
    wide[:, : i * width].view(m, i, width)[..., i:] = P
    skewed = wide.as_strided((m, i, width - 1), (wide.shape[1], width + 1, 1), storage_offset=1)
    return skewed.sum(-2)
