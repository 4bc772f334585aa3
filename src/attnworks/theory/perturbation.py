"""What attention is left with once its rows are nearly equal: scores that are the same for all rows, and the rest."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from attnworks.attention.softmax import score_range

LARGEST_LEMMA_RANGE = 1.25643
"""The D with exp(D) = 1 + 2 D, rounded down: up to it lemma A.3 of Xie 2021 holds on its upper side (S0.34)."""


class SplitLogits(NamedTuple):
    """softmax(1 r^T + E) is the attention of X = 1 x^T + R; r is what all rows share.

    r    scale (R W_QK^T x + R W_K b_Q)
    E    scale R W_QK R^T
    R    X - 1 x^T
    """

    r: Float[Tensor, "*a n"]
    E: Float[Tensor, "*a n n"]
    R: Float[Tensor, "*a n e"]

    @property
    def P(self) -> Float[Tensor, "*a n n"]:
        return (self.r.unsqueeze(-2) + self.E).softmax(-1)


def split_logits(
    X: Float[Tensor, "*a n e"],
    W_QK: Float[Tensor, "*#a e e"],
    x: Float[Tensor, "*a e"],
    scale: float = 1.0,
    key_of_bias: Float[Tensor, " e"] | None = None,
) -> SplitLogits:
    """The scores scale X W_QK X^T, up to a number per row that softmax does not see, as 1 r^T + E.

    Of the terms of (x + R_i)^T W (x + R_j), two do not depend on j; x^T W R_j is r_j and R_i^T W R_j is E_ij.
    key_of_bias    W_K b_Q, all that biases do to the softmax; b_K adds the same to a whole row
    Source: Xie 2021, (8) (S0.31).
    """
    R = X - x.unsqueeze(-2)
    pull = (x.unsqueeze(-2) @ W_QK).squeeze(-2)
    pull = pull if key_of_bias is None else pull + key_of_bias
    return SplitLogits(scale * (R @ pull.unsqueeze(-1)).squeeze(-1), scale * R @ W_QK @ R.mT, R)


class RowChange(NamedTuple):
    """How far the rows of P = softmax(1 r^T + E) are from softmax(r).

    range           D_i = max_j E_ij - min_j E_ij
    least, most     of P_ij / softmax(r)_j over j; between exp(-D_i) and exp(D_i)
    variation       1/2 sum_j |P_ij - softmax(r)_j|; at most tanh(D_i / 4)
    """

    range: Float[Tensor, "*a n"]
    least: Float[Tensor, "*a n"]
    most: Float[Tensor, "*a n"]
    variation: Float[Tensor, "*a n"]


def row_change(r: Float[Tensor, "*a j"], E: Float[Tensor, "*a n j"]) -> RowChange:
    """Ratios and total variation between softmax(1 r^T + E) and softmax(r), row by row.

    Source: Xie 2021, lemma A.3 (S0.34): 1 - D <= ratio always; ratio <= 1 + 2 D for D <= LARGEST_LEMMA_RANGE.
    """
    shared = r.unsqueeze(-2)
    log_ratio = (shared + E).log_softmax(-1) - shared.log_softmax(-1)
    variation = ((shared + E).softmax(-1) - shared.softmax(-1)).abs().sum(-1) / 2
    return RowChange(score_range(E), log_ratio.amin(-1).exp(), log_ratio.amax(-1).exp(), variation)


class EntrywiseGap(NamedTuple):
    """|P X - 1 y^T| with y = x + R^T softmax(r), and two things that it is never above, entry by entry.

    by_lemma        2 D_i (softmax(r)^T |R|)_j, where D_i <= LARGEST_LEMMA_RANGE
    by_variation    tanh(D_i / 4) (max_i X_ij - min_i X_ij), always
    """

    gap: Float[Tensor, "*a n e"]
    by_lemma: Float[Tensor, "*a n e"]
    by_variation: Float[Tensor, "*a n e"]


def entrywise_gap(
    X: Float[Tensor, "*a n e"], W_QK: Float[Tensor, "*#a e e"], x: Float[Tensor, "*a e"], scale: float = 1.0
) -> EntrywiseGap:
    """How far the rows that attention mixes are from one row y.

    sum_k (P_ik - p_k) R_kj with p = softmax(r): |P_ik - p_k| <= 2 D_i p_k gives the first. The differences sum to zero
    and their positive part to at most tanh(D_i / 4), which gives the second.
    Source: in place of (9)-(10) of Xie 2021, where |.| is missing around R (S0.32, S0.33).
    """
    r, E, R = split = split_logits(X, W_QK, x, scale)
    p = r.softmax(-1).unsqueeze(-2)
    D = score_range(E).unsqueeze(-1)
    spread = (X.amax(-2) - X.amin(-2)).unsqueeze(-2)
    return EntrywiseGap((split.P @ R - p @ R).abs(), 2 * D * (p @ R.abs()), (D / 4).tanh() * spread)
