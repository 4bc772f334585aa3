"""Bounds of the rank-collapse theorems: how far apart rows can be after a layer of attention."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnworks.core.tensors import widened
from attnworks.exam.linalg.residual import induced_inf, induced_one, minus_first_row

LARGEST_ROW_RANGE = 4.22929
"""The D with exp(D) = 1 + 16 D, rounded down: up to it the factor sqrt((exp(D) - 1) / D) of D5 is at most 4."""


# --- diameter ---------------------------------------------------------------------------------------------------------


def row_diameter(X: Float[Tensor, "*a n e"], real: Bool[Tensor, "*a n"] | None = None) -> Float[Tensor, "*a"]:
    """diam_2(X) = max_{i, i'} ||X_i - X_i'||_2 over the real rows; 0 for one row, and exactly 0 for equal rows.

    Source: D6; a seminorm, unlike the composite residual (S0.35).
    Holds when: one row is subtracted first (D7). No row is then longer than the diameter, so that the squared distances
    |x|^2 + |y|^2 - 2 x y lose no digits of the largest.
    """
    Y, _ = minus_first_row(widened(X), real)
    largest = Y.abs().amax((-2, -1), keepdim=True)
    scale = torch.where(largest > 0, largest, 1.0)
    Y = Y / scale
    squares = Y.square().sum(-1)
    distances = squares.unsqueeze(-1) + squares.unsqueeze(-2) - 2 * Y @ Y.mT
    return distances.amax((-2, -1)).clamp_min(0.0).sqrt() * scale[..., 0, 0]


def rounding_of_rows(*outputs: Float[Tensor, "..."]) -> float:
    """100 eps max |Z|: the largest difference of rows of these outputs that rounding explains.

    Source: D7.
    """
    return max(100 * torch.finfo(Z.dtype).eps * float(Z.abs().max()) for Z in outputs)


# --- sizes of weights -------------------------------------------------------------------------------------------------


def product_singular_values(A: Float[Tensor, "*a e k"], B: Float[Tensor, "*a f k"]) -> Float[Tensor, "*a r"]:
    """The singular values of A B^T, at most k; all others are zero.

    A = Q_A R_A and B = Q_B R_B with orthonormal columns give A B^T = Q_A (R_A R_B^T) Q_B^T: a matrix no larger than
    k x k has the same singular values, and the product e x f is never formed.
    """
    R_A, R_B = (torch.linalg.qr(M, mode="r").R for M in (A, B))
    return torch.linalg.svdvals(R_A @ R_B.mT)


class HeadSizes(NamedTuple):
    """Norms of W_QK,h = W_Q,h W_K,h^T and W_h = W_V,h W_O,h, for each head h of a layer; float64.

    qk, vo            spectral
    qk_one            largest column sum
    vo_one, vo_inf    largest column sum and largest row sum
    """

    qk: Float[Tensor, " h"]
    vo: Float[Tensor, " h"]
    qk_one: Float[Tensor, " h"]
    vo_one: Float[Tensor, " h"]
    vo_inf: Float[Tensor, " h"]


def head_sizes(
    W_Q: Float[Tensor, "h e k"],
    W_K: Float[Tensor, "h f k"],
    W_V: Float[Tensor, "h f v"],
    W_O: Float[Tensor, "h v e"],
) -> HeadSizes:
    """Spectral norms from the small factors; sums of columns and rows from the products, one head at a time."""
    W_Q, W_K, W_V, W_O = (W.detach().double() for W in (W_Q, W_K, W_V, W_O))
    qk, vo = (product_singular_values(A, B)[..., 0] for A, B in ((W_Q, W_K), (W_V, W_O.mT)))
    qk_one = torch.stack([induced_one(Q @ K.mT) for Q, K in zip(W_Q, W_K, strict=True)])
    products = [value @ output for value, output in zip(W_V, W_O, strict=True)]
    vo_one, vo_inf = (torch.stack([norm(W) for W in products]) for norm in (induced_one, induced_inf))
    return HeadSizes(qk, vo, qk_one, vo_one, vo_inf)


# --- diameter after attention -----------------------------------------------------------------------------------------


def contraction(diam: Float[Tensor, "*a"], sizes: HeadSizes, scale: float) -> Float[Tensor, "*a"]:
    """s = sum_h ||W_h||_2 tanh(||W_QK,h||_2 scale diam^2 / 4), so that diam_2(SA(X)) <= s diam_2(X).

    Source: D6. Two rows of P differ by logits of range at most ||W_QK||_2 scale diam^2, hence by tanh(range / 4) in
    total variation.
    Holds when: every query sees the same keys (no causal or window mask), X is what queries, keys and values are
    projected from, and scores are bilinear in it. Biases do not matter.
    Departs: the document has scale = 1 / sqrt(d_qk).
    """
    reach = sizes.qk * abs(scale) / 4 * diam.double().square().unsqueeze(-1)
    return (sizes.vo * reach.tanh()).sum(-1)


def diameter_bound(diam: Float[Tensor, "*a"], sizes: HeadSizes, scale: float) -> Float[Tensor, "*a"]:
    """diam_2(SA(X)) <= sum_h ||W_h||_2 tanh(||W_QK,h||_2 scale diam^2 / 4) diam, diam that of X.

    Source: D6, in place of theorem 2.2 of Xie 2021 (S0.17); sharp, with equality for two rows X = +-a of width one.
    Holds when: as for `contraction`.
    """
    return contraction(diam, sizes, scale) * diam


def cubic_bound(diam: Float[Tensor, "*a"], sizes: HeadSizes, scale: float) -> Float[Tensor, "*a"]:
    """diam_2(SA(X)) <= (sum_h ||W_h||_2 ||W_QK,h||_2 scale / 4) diam^3, never below `diameter_bound`.

    Source: D6; repeated over L layers it gives the exponent 3^L of the published theorems.
    """
    return (sizes.vo * sizes.qk).sum() * abs(scale) / 4 * diam.double() ** 3


def skip_bounds(
    diam: Float[Tensor, "*a"], sizes: HeadSizes, scale: float
) -> tuple[Float[Tensor, "*a"], Float[Tensor, "*a"]]:
    """(1 - s) diam <= diam_2(X + SA(X)) <= (1 + s) diam with s the `contraction`; the lower bound is at least zero.

    Source: S0.19, D6: with a skip connection, rows that are close stay about as far apart, unlike with attention alone.
    """
    s = contraction(diam, sizes, scale)
    return (1 - s).clamp_min(0.0) * diam, (1 + s) * diam


# --- composite residual after attention -------------------------------------------------------------------------------


def logit_row_range(
    R: Float[Tensor, "*a n e"],
    W_Q: Float[Tensor, "h e k"],
    W_K: Float[Tensor, "h e k"],
    scale: float,
    real: Bool[Tensor, "*a n"] | None = None,
) -> Float[Tensor, "*a"]:
    """D = max_{h, i} (max_j E_ij - min_j E_ij) with E = scale R W_QK,h R^T and R = X - 1 x^T, over real rows and keys.

    Source: S0.31: P = softmax(1 r^T + E) for any biases, so that rows of P differ only by E.
    """
    Q, K = ((R.unsqueeze(-3) @ W) for W in (W_Q, W_K))
    E = scale * Q @ K.mT
    if real is None:
        return (E.amax(-1) - E.amin(-1)).amax((-2, -1))
    away = ~real.unsqueeze(-2).unsqueeze(-2)
    ranges = E.masked_fill(away, -torch.inf).amax(-1) - E.masked_fill(away, torch.inf).amin(-1)
    return ranges.masked_fill(~real.unsqueeze(-2), 0.0).amax((-2, -1))


def composite_factor(row_range: Float[Tensor, "*a"]) -> Float[Tensor, "*a"]:
    """f(D) = sqrt((exp(D) - 1) / D), which grows from 1 at D = 0 to 4 at `LARGEST_ROW_RANGE`.

    With p = softmax(r), q = ||W_QK||_1 scale and M = (P - 1 p^T) R: ||M||_{1,inf} <= f(D) q ||R||_{1,inf}^3. Proof:

    - |E_ik| <= scale sum_ab |R_ia| |W_ab| |R_kb| with W = W_QK. As sum_i |R_ia| <= ||R||_1, summing over i first gives
      sum_i |E_ik| <= q ||R||_1 ||R_k||_1 <= q ||R||_1 ||R||_inf. As |R_ia| <= ||R||_1, one entry has the same bound:
      |E_ik| <= q ||R||_1 ||R_k||_1 <= q ||R||_1 ||R||_inf, hence D <= 2 q ||R||_1 ||R||_inf.
    - Rows: P_i and p differ by tanh(D_i / 4) <= D / 4 in total variation, and two rows of R by at most 2 ||R||_inf.
      So ||M||_inf <= D ||R||_inf / 2 <= q ||R||_1 ||R||_inf^2.
    - Columns: let P^s = softmax(1 r^T + s E). By its derivative, M_ij = int_0^1 sum_k P^s_ik E_ik (R_kj - m_ij) ds with
      m_ij = sum_l P^s_il R_lj. Both R_kj and m_ij lie between the least and the largest entry of column j, so that
      |R_kj - m_ij| <= ||R||_1. And P^s_ik <= exp(s D) p_k. Sum over i first, then over k, then integrate:
      ||M||_1 <= ||R||_1 int_0^1 exp(s D) ds max_k sum_i |E_ik| <= f(D)^2 q ||R||_1^2 ||R||_inf.

    The product of the last two lines is the square of the bound.
    Source: D5.
    """
    D = row_range.double()
    positive = torch.where(D > 0, D, 1.0)
    return torch.where(D > 0, positive.expm1() / positive, 1.0).sqrt()


def composite_bound(
    rho: Float[Tensor, "*a"], sizes: HeadSizes, scale: float, factor: float | Float[Tensor, "*a"] = 4.0
) -> Float[Tensor, "*a"]:
    """factor scale sqrt(sum_h q_h ||W_h||_1 sum_h q_h ||W_h||_inf) rho^3 with q_h = ||W_QK,h||_1.

    It bounds min_y ||SA(X) - 1 y^T||_{1,inf} for rho = ||R||_{1,inf} of any R = X - 1 x^T, the least one included.
    Source: D5, the repair of theorem 2.2 of Xie 2021 (S0.17).
    Holds when: queries see the same keys, as for `contraction`, and factor is at least `composite_factor(D)` with D the
    `logit_row_range` of R. The default 4 is, for D <= LARGEST_ROW_RANGE. For the residual of SA(X) from its mean row
    in place of the least one, multiply by 2 (1 - 1/n), which turns 4 into `mean_factor(n)`.
    Departs: over several heads, column sums and row sums are added up apart, since the composite norm obeys no triangle
    inequality (S1.14); D5 has the largest q_h ||W_h|| times the number of heads, which is no less.
    """
    across, along = ((sizes.qk_one * size).sum() for size in (sizes.vo_one, sizes.vo_inf))
    return factor * abs(scale) * (across * along).sqrt() * rho.double() ** 3


def mean_factor(rows: Float[Tensor, "*a"]) -> Float[Tensor, "*a"]:
    """8 (1 - 1/n), which takes the place of 4 where both residuals are those from the mean of n rows.

    Source: D5, S0.14.
    """
    return 8 * (1 - 1 / rows.double().clamp_min(1.0))


# --- bounds as published ----------------------------------------------------------------------------------------------


def published_factor(sizes: HeadSizes, scale: float) -> Float[Tensor, ""]:
    """c = 4 beta H scale with beta = max_h ||W_QK,h||_1 ||W_h||_{1,inf}, for H heads.

    Source: Xie 2021, theorem 2.2, for one head (S0.17); the rank post for several (S1.13, S1.14).
    """
    beta = (sizes.qk_one * (sizes.vo_one * sizes.vo_inf).sqrt()).max()
    return 4 * beta * len(sizes.qk) * abs(scale)


def published_bound(rho: Float[Tensor, "*a"], c: float | Float[Tensor, ""], layers: int = 1) -> Float[Tensor, "*a"]:
    """c^{(3^L - 1) / 2} rho^{3^L}, said to bound ||res SAN(X)||_{1,inf} for rho = ||res X||_{1,inf} and L layers.

    Source: S0.17 and S1.14, as printed.
    Holds when: not always; it is given for comparison. Without a condition on the range of the scores it fails for
    many rows (`hub_least`: by 5 % at n = 9000), and the sum over heads uses a triangle inequality that does not hold.
    """
    bound = rho.double()
    for _ in range(layers):
        bound = c * bound**3
    return bound


def bound_converges(rho: Float[Tensor, "*a"], c: float | Float[Tensor, ""]) -> Bool[Tensor, "*a"]:
    """Whether c rho^2 < 1, the condition under which c^{(3^L - 1) / 2} rho^{3^L} falls to zero with depth L.

    Source: S0.18, S0.36.
    Departs: S1.15 asks for c < 1, which is neither needed nor enough.
    """
    return c * rho.double().square() < 1
