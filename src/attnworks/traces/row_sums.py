"""Everything that is asked of single rows of an attention matrix, in few passes over it."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.core.tensors import FRESH, Scratch

HIDDEN = -1e30
"""The score of a key that may not be seen: far below all others, and finite, so that 0 times it is 0."""


class Row(IntEnum):
    """What is summed up of a row, with d_j = S_j - max S, in this order along the first axis of the sums.

    TOP, LOW     largest and smallest score of the keys that may be seen
    TIES, PLACE  how many keys share the largest score, and the sum of their positions
    R1, R2, R3   sum of exp(k d_j) over the other keys, k = 1, 2, 3
    DROP         sum of d_j exp(d_j)
    SINK         the sink logit less the largest score of the keys, HIDDEN where the row has no sink
    """

    TOP = 0
    LOW = 1
    TIES = 2
    PLACE = 3
    R1 = 4
    R2 = 5
    R3 = 6
    DROP = 7
    SINK = 8


class RowStatistics(NamedTuple):
    """How near each row of P is to a unit vector; all zero for a row that sees no key.

    A sink logit is one more entry of the row's softmax, without a key and without a value. Entropy and Jacobian norm
    are those of the whole softmax, with the sink as an entry. All others are about keys.

    max_weight    of the keys
    score_range   of the keys
    argmax        the key with the largest weight; -1 where several share it, and where no key is seen
    sink_weight   the weight of the sink: what the weights of the keys lack to one; 0 where there is no sink
    key_entropy   of the weights of the keys divided by their sum; the same as `entropy` where there is no sink
    """

    entropy: Float[Tensor, "*a i"]
    max_weight: Float[Tensor, "*a i"]
    jacobian_norm: Float[Tensor, "*a i"]
    score_range: Float[Tensor, "*a i"]
    argmax: Int[Tensor, "*a i"]
    sink_weight: Float[Tensor, "*a i"]
    key_entropy: Float[Tensor, "*a i"]


def attend_rows(
    S: Float[Tensor, "*a i j"],
    allowed: Bool[Tensor, "*#a #i #j"] | None = None,
    sums: Float[Tensor, "r *a i"] | None = None,
    scratch: Scratch = FRESH,
    sink: Float[Tensor, "*#a #i"] | None = None,
) -> Float[Tensor, "*a i j"]:
    """P = softmax(S) over the allowed keys, and the sums that `row_statistics` needs, in few passes over S.

        P_ij = exp(S_ij) / (sum_{j' allowed} exp(S_ij') + exp(sink_i)),   the last term only where a sink is given
    Source: the sink logit of gpt-oss (OpenAI 2025), which takes weight and adds nothing to the output.
    Departs: S is overwritten, P is scratch memory. A row that sees no key has weights zero.
    """
    sums = S.new_empty(len(Row), *S.shape[:-1]) if sums is None else sums
    hidden = None if allowed is None else ~allowed
    lowest = S if hidden is None else S.masked_fill(hidden, torch.inf)
    torch.amin(lowest, -1, out=sums[Row.LOW])
    if hidden is not None:
        S.masked_fill_(hidden, HIDDEN)
    torch.amax(S, -1, out=sums[Row.TOP])
    D = S.sub_(sums[Row.TOP].unsqueeze(-1))
    largest, E = scratch.like("largest", D), scratch.like("E", D)
    torch.eq(D, 0.0, out=largest)
    torch.sum(largest, -1, out=sums[Row.TIES])
    sums[Row.PLACE] = largest @ torch.arange(S.shape[-1], dtype=S.dtype, device=S.device)
    top = sums[Row.PLACE].long().unsqueeze(-1) if bool((sums[Row.TIES] == 1).all()) else None
    torch.exp(D, out=E)
    E.sub_(largest) if top is None else E.scatter_(-1, top, 0.0)
    torch.sum(E, -1, out=sums[Row.R1])
    torch.sum(D.mul_(E), -1, out=sums[Row.DROP])
    torch.sum(torch.mul(E, E, out=D), -1, out=sums[Row.R2])
    torch.sum(D.mul_(E), -1, out=sums[Row.R3])
    E.add_(largest) if top is None else E.scatter_(-1, top, 1.0)
    Z = sums[Row.TIES] + sums[Row.R1]
    if sink is None:
        sums[Row.SINK] = HIDDEN
    else:
        sums[Row.SINK] = sink - sums[Row.TOP]
        Z += sums[Row.SINK].exp()
    P = E.div_(Z.unsqueeze(-1))
    return P if hidden is None else P.masked_fill_(hidden, 0.0)


def row_statistics(sums: Float[Tensor, "r *a i"]) -> RowStatistics:
    """Entropy, largest weight, Jacobian norm, range of scores and argmax of every row, from its sums.

        Z = c + r_1,   H = ln Z - sum_j d_j exp(d_j) / Z,   max P = 1 / Z,
        ||diag(p) - p p^T||_F^2 = sum p^2 - 2 sum p^3 + (sum p^2)^2
    Let t be the sink logit minus the largest score (t may be negative). The sink is one more entry: Z becomes
    c + r_1 + exp(t), its weight is exp(t) / (c + r_1 + exp(t)), and H = h + (1 - sink weight) H(keys), h being the
    entropy of sink against keys.
    Source: S4.46-S4.50 and S0.34; the same numbers as `linalg.softmax`.
    Rows that see no key read zero, and so do those whose sums are all zero; a sink has all weight where no key is seen.
    """
    top, low, c, place, r1, r2, r3, drop, t = sums
    there = (sums != 0).any(0)
    seeing = there & ~(top <= HIDDEN / 2)
    keys = torch.where(seeing, c + r1, 1.0)
    sink_weight = torch.where(there, (t - keys.log()).sigmoid(), 0.0)
    entries = _with_sink(c, r1, r2, r3, drop, torch.where(seeing, t, HIDDEN))
    Z = torch.where(seeing, entries.c + entries.r1, 1.0)
    return RowStatistics(
        entropy=torch.where(seeing, Z.log() - entries.drop / Z, 0.0),
        max_weight=torch.where(seeing, 1 / (keys + t.exp()), 0.0),
        jacobian_norm=torch.where(seeing, _jacobian_norm(Z, *entries[:4]), 0.0),
        score_range=torch.where(seeing, top - low, 0.0),
        argmax=torch.where(seeing & (c == 1), place, -1.0).long(),
        sink_weight=sink_weight,
        key_entropy=torch.where(seeing, keys.log() - drop / keys, 0.0),
    )


class _Entries(NamedTuple):
    """TIES, R1, R2, R3 and DROP of all entries of rows of a softmax."""

    c: Tensor
    r1: Tensor
    r2: Tensor
    r3: Tensor
    drop: Tensor


def _with_sink(c: Tensor, r1: Tensor, r2: Tensor, r3: Tensor, drop: Tensor, t: Tensor) -> _Entries:
    """The sums with an entry at distance t from the largest key; above it, that entry is the largest and c is 1."""
    below, above = t.clamp_max(0.0).exp(), (-t).clamp_max(0.0).exp()
    larger = t > 0
    return _Entries(
        torch.where(larger, 1.0, c),
        torch.where(larger, (c + r1) * above, r1 + below),
        torch.where(larger, (c + r2) * above**2, r2 + below**2),
        torch.where(larger, (c + r3) * above**3, r3 + below**3),
        torch.where(larger, (drop - t * (c + r1)) * above, drop + t * below),
    )


def _jacobian_norm(Z: Tensor, c: Tensor, r1: Tensor, r2: Tensor, r3: Tensor) -> Tensor:
    """Z^4 ||J||^2 = (c + r2) Z^2 - 2 (c + r3) Z + (c + r2)^2, which is near zero only if c = 1 and Z is near 1.

    There Z^2 - 2 Z + 1 = r1^2 is put in by hand; what is left has no negative term, as r3 <= r2 exp(second d).
    """
    one = r1.square() + 2 * r2 + (r2 * Z - 2 * r3) * Z + r2.square()
    second, third = c + r2, c + r3
    several = second * Z.square() - 2 * third * Z + second.square()
    return torch.where(c == 1, one, several).clamp_min(0.0).sqrt() / Z.square()


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
