"""Counterexamples to the published bounds on rank collapse, in closed form; softmax of nearly equal rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention.softmax import score_range
from attnworks.core.checks import integer
from attnworks.core.errors import UsageError

LARGEST_LEMMA_RANGE = 1.25643
"""The D with exp(D) = 1 + 2 D, rounded down: up to it lemma A.3 of Xie 2021 holds on its upper side (S0.34)."""


class BrokenBound(NamedTuple):
    """A residual of the output of attention, and its published bound."""

    residual: float
    allowed: float

    @property
    def ratio(self) -> float:
        return self.residual / self.allowed


# --- one head ---------------------------------------------------------------------------------------------------------


class Hub(NamedTuple):
    """A hub that all rows attend to, n // 2 active rows that attend more to themselves, and idle rows.

    X = R + (r / w) 1 e_0^T with R_00 = 1, R_ii = 1 for the active rows i, and zero elsewhere. Scores are w X X^T, that
    is W_QK = w I, and W_V = I. Up to a number per row they are r for the hub, plus w for the hub and every active row
    at itself, and zero. Active rows then have little weight left for the hub, idle ones give it nearly all: column 0 of
    the output takes two values, each on about n / 2 rows.
    Source: the counterexample to theorem 2.2 of Xie 2021 (S0.17).
    """

    n: int
    w: float
    r: float

    @property
    def active(self) -> int:
        return self.n // 2

    @property
    def idle(self) -> int:
        return self.n - 1 - self.active

    @property
    def X(self) -> Float[Tensor, "n e"]:
        """The input itself, of width 1 + n // 2."""
        X = torch.eye(self.n, 1 + self.active, dtype=torch.float64)
        X[:, 0] += self.r / self.w
        return X


def hub(n: int) -> Hub:
    """w = ln n + 5 and r = ln n + 5/2: exp(w) is well above exp(r), and that above n."""
    integer("n", n, 4, remedy="a hub needs itself, two active rows and an idle one")
    return Hub(n, math.log(n) + 5, math.log(n) + 2.5)


class HubWeights(NamedTuple):
    """Attention weights of the three kinds of rows: on the hub, on the row itself, on any other row.

    A row for the hub, an active and an idle one; the hub's weight on itself counts as that on the hub.
    """

    on_hub: Float[Tensor, " 3"]
    on_self: Float[Tensor, " 3"]
    on_other: Float[Tensor, " 3"]


def hub_weights(case: Hub) -> HubWeights:
    """softmax(w X X^T) by kind of row."""
    n, w, r = case
    hub_score, own_score = torch.tensor([[r + w, r, r], [-math.inf, w, 0.0]], dtype=torch.float64)
    others = torch.tensor([n - 1, n - 2, n - 2], dtype=torch.float64)
    largest = torch.maximum(hub_score, own_score)
    total = (hub_score - largest).exp() + (own_score - largest).exp() + others * (-largest).exp()
    on_hub, on_self, on_other = ((score - largest).exp() / total for score in (hub_score, own_score, 0.0 * others))
    return HubWeights(on_hub, on_self, on_other)


def hub_least(case: Hub) -> BrokenBound:
    """A lower bound on min_y ||SA(X) - 1 y^T||_{1,inf}, and the published bound 4 w rho^3 with rho <= 1.

    With gap the difference of column 0 between idle and active rows: for every y_0 each pair of an idle and an active
    row adds at least gap to the sum of column 0, so that ||.||_1 >= pairs gap. Of two rows, one is at least half of
    their distance away from y: ||.||_inf is at least half of the largest distance (`row_distances`). All column sums
    and row sums of R are at most one, so that min_x ||X - 1 x^T||_{1,inf} <= 1.
    Source: S0.17, for residuals that minimise the composite norm.
    """
    _, active, idle = hub_weights(case).on_hub.tolist()
    across = min(case.active, case.idle) * abs(idle - active)
    return BrokenBound(math.sqrt(across * float(row_distances(case).max()) / 2), 4 * case.w)


def row_distances(case: Hub) -> Float[Tensor, " 4"]:
    """||Y_i - Y_k||_1 of the output Y = P X: hub and active, hub and idle, two active ones, active and idle.

    X = R + (r / w) 1 e_0^T, and rows of P sum to one: Y_i - Y_k = (P_i - P_k) R, where R keeps the weights on the hub
    and on the active rows.
    """
    many = case.active
    (hub, active, idle), own, (by_hub, by_active, by_idle) = hub_weights(case)
    of_own = own[1]
    return torch.stack(
        [
            (hub - active).abs() + (of_own - by_hub).abs() + (many - 1) * (by_active - by_hub).abs(),
            (hub - idle).abs() + many * (by_hub - by_idle).abs(),
            2 * (of_own - by_active).abs(),
            (active - idle).abs() + (of_own - by_idle).abs() + (many - 1) * (by_active - by_idle).abs(),
        ]
    )


def hub_mean(case: Hub) -> BrokenBound:
    """||SA(X) - 1 y^T||_{1,inf} with y the mean row, and the published bound 4 w rho^3 with rho from the mean of X.

    Every column of X is a unit vector, up to a shift: column sums 2 (1 - 1/n), row sums at most 1 - 1/n + active / n.
    Source: S0.17, for residuals from the mean row, as Xie 2021 defines them.
    """
    n, active = case.n, case.active
    many = torch.tensor([1, active, case.idle], dtype=torch.float64)
    on_hub, on_self, on_other = hub_weights(case)
    first = (on_hub - (many * on_hub).sum() / n).abs()
    mean = ((many * on_other).sum() - on_other[1] + on_self[1]) / n
    own, other = (on_self[1] - mean).abs(), (on_other - mean).abs()
    columns = max((many * first).sum(), (many * other).sum() - other[1] + own)
    rows = max(first[0] + active * other[0], first[1] + own + (active - 1) * other[1], first[2] + active * other[2])
    rho = math.sqrt(2 * (1 - 1 / n) * (1 - 1 / n + active / n))
    return BrokenBound(math.sqrt(float(columns * rows)), 4 * case.w * rho**3)


# --- rows that attend to themselves -----------------------------------------------------------------------------------


def own_weight_excess(n: int, w: float) -> float:
    """delta of softmax(w I) = delta I + p 1 1^T: the weight of a row on itself less that on another."""
    return -math.expm1(-w) / (1 + (n - 1) * math.exp(-w))


def self_keyed_sharpness(n: int) -> float:
    """w = ln n + 3, with which rows of X = I_n give themselves 95 % of their weight."""
    return math.log(n) + 3


def signed_head(n: int, *, norm_of_value: float = 1.0) -> BrokenBound:
    """min_y ||SA(X) - 1 y^T||_{1,inf} = delta sqrt(n) for X = I_n, scores w X X^T and W_V = s e_0^T, n even.

    P W_V = delta s e_0^T: half of column 0 is delta and half is -delta, so that no y beats zero.
    norm_of_value    what the published bound 4 w ||W_V|| rho^3, rho <= 1, has for W_V: ||W_V||_inf = 1, where the
                     composite norm is sqrt(n)
    Source: the counterexample to the beta of the rank post (S1.13).
    """
    _check_even(n)
    w = self_keyed_sharpness(n)
    return BrokenBound(own_weight_excess(n, w) * math.sqrt(n), 4 * w * norm_of_value)


def two_heads(n: int) -> BrokenBound:
    """A lower bound on min_y ||SA(X) - 1 y^T||_{1,inf} for X = I_n, scores w X X^T and W_1 = e_0 1^T, W_2 = s e_0^T.

    Up to equal rows SA(X) = delta (e_0 1^T + s e_0^T). Column 0 has (n - 2) / 2 pairs of signs without row 0, each of
    which adds 2 delta for every y. Row 0 differs by delta from every other one in n - 1 columns, and one of two rows
    has at least half of that. Allowed are 4 beta H rho^3 with H = 2, beta = w sqrt(n) and rho <= 1.
    Source: the counterexample to the sum over heads in the rank post (S1.14).
    """
    _check_even(n)
    w = self_keyed_sharpness(n)
    return BrokenBound(own_weight_excess(n, w) * math.sqrt((n - 2) * (n - 1) / 2), 8 * w * math.sqrt(n))


def _check_even(n: int) -> None:
    if n < 2 or n % 2:
        remedy = f"ask for {n + 1 if n > 0 else 2} rows"
        raise UsageError(f"{n} rows of both signs", "an even number of rows", str(n), remedy)


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
    """|P X - 1 y^T| with y = x + R^T softmax(r), and two upper bounds, entry by entry.

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
