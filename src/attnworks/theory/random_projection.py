"""The error of a random projection along the keys: P R^T R V in place of P V.

The lemma of Johnson and Lindenstrauss with the constant 8: a normal map, shrunk so that both tails are equal.

||f(u)||^2 / ||u||^2 of a map with entries from N(0, s/k) is s chi^2_k / k. It leaves [1 - eps, 1 + eps] on either side
with a probability of at most exp(-k I / 2), I(x) = x - 1 - ln x taken where chi^2_k / k = (1 -+ eps) / s.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from scipy.stats import chi2
from torch import Generator, Tensor

from attnworks.attention.sketched import sketch_error_formula
from attnworks.core.checks import number

_ROWS_ROUNDING = 1e-9
"""Rounding error of a number of rows: one that exceeds a whole number by less is not rounded up."""


def sketch_error(
    P: Float[Tensor, "*a i j"], V: Float[Tensor, "*a j v"], k: int, generator: Generator | None = None
) -> Float[Tensor, "*a"]:
    """||P R^T R V - P V||_F / ||P V||_F for one draw of R [k j] per matrix, its entries from N(0, 1/k).

    Source: the projection of Xie 2021, theorem 2.3 (S0.21, S0.24).
    Holds when: P V is not zero; where it is, the ratio is infinite, or NaN if the error is zero as well.
    """
    R = torch.randn(*P.shape[:-2], k, P.shape[-1], generator=generator, dtype=P.dtype, device=P.device) / k**0.5
    Y = P @ V
    error = (P @ R.mT) @ (R @ V) - Y
    return torch.linalg.matrix_norm(error) / torch.linalg.matrix_norm(Y)


def rows_for_error(P: Float[Tensor, "i j"], V: Float[Tensor, "j v"], eps: float) -> int:
    """The least k for which the root mean square of the relative error is at most eps.

    Source: D8, solved for k: (1 + ||P||_F^2 ||V||_F^2 / ||P V||_F^2) / eps^2. It has no log n in it (S0.21, S0.28).
    """
    return math.ceil(float(sketch_error_formula(P, V, 1).square()) / eps**2 - _ROWS_ROUNDING)


def published_rows(n: int, eps: float) -> int:
    """k = 5 ln n / (eps^2 - eps^3), rounded up, for which the document claims an error of at most eps ||P w||.

    Source: the constant of the proof that theorem 2.3 of Xie 2021 refers to (S0.21).
    """
    _check_eps(eps)
    return math.ceil(5 * math.log(n) / (eps**2 - eps**3))


def jl_inner_dim(rows: int, eps: float, delta: float) -> int:
    """The least k >= 4 ln(4 n / delta) / (eps^2 - eps^3), for the inner products of n vectors u_i with one w.

    With probability 1 - delta then |u_i^T R^T R w - u_i^T w| <= eps ||u_i|| ||w|| for all i: each of them fails with
    probability at most 4 exp(-(eps^2 - eps^3) k / 4), as R changes ||u + w||^2 and ||u - w||^2 by the factor 1 +- eps.
    Source: what is left of theorem 2.3 of Xie 2021 (S0.24), D8.
    """
    _check_eps(eps)
    return math.ceil(4 * math.log(4 * rows / delta) / (eps**2 - eps**3))


def exact_low_rank(P: Float[Tensor, "*a i j"], V: Float[Tensor, "*a j v"]) -> Float[Tensor, "*a i j"]:
    """P V V^+, of rank at most v, which times V is P V exactly.

    Source: D8 (S0.21): that a low-rank matrix can replace P for given values says nothing about softmax.
    """
    return P @ V @ torch.linalg.pinv(V)


def _check_eps(eps: float) -> None:
    number("a random projection with eps", eps, 0, 1, above=True, below=True, remedy="eps is the error that is allowed")


def equal_tails(eps: float) -> float:
    """s = 2 eps / ln((1 + eps) / (1 - eps)), by which I((1 - eps) / s) = I((1 + eps) / s).

    Source: S4.113.
    """
    _check_eps(eps)
    return eps / math.atanh(eps)


def tail_exponent(eps: float, s: float = 1.0) -> float:
    """min of I((1 - eps) / s) and I((1 + eps) / s) with I(x) = x - 1 - ln x; at s = `equal_tails` it is >= eps^2 / 2.

    Source: S4.113; Chernoff's bound of the chi-squared distribution. An end beyond the mean counts as I(1) = 0.
    """
    _check_eps(eps)
    return min(ratio - 1 - math.log(ratio) for ratio in (min((1 - eps) / s, 1.0), max((1 + eps) / s, 1.0)))


def enough_rows(m: int, eps: float) -> int:
    """The least k > 8 ln(m) / eps^2, in which m points can keep all squared distances within the factor 1 +- eps.

    Source: Conti 2024, lemma 2.1 (S4.113), where k is called n; for a map scaled by `equal_tails`.
    """
    _check_eps(eps)
    return math.floor(8 * math.log(m) / eps**2) + 1


def union_failure(m: int, k: int, eps: float, s: float = 1.0) -> float:
    """m (m - 1) / 2 P(s chi^2_k / k outside of [1 - eps, 1 + eps]): a map fails some pair of m points no more often.

    Source: S4.113. Below one, some map keeps all distances.
    """
    _check_eps(eps)
    outside = chi2.sf((1 + eps) / s * k, k) + chi2.cdf((1 - eps) / s * k, k)
    return m * (m - 1) / 2 * float(outside)


def shrunk_map(k: int, n: int, eps: float, generator: Generator | None = None) -> Float[Tensor, "{k} {n}"]:
    """A random map with entries from N(0, s/k), s = `equal_tails`, in float64."""
    return torch.randn(k, n, generator=generator, dtype=torch.float64) * math.sqrt(equal_tails(eps) / k)


def distortion(X: Float[Tensor, "m n"], f: Float[Tensor, "k n"]) -> Float[Tensor, ""]:
    """max over pairs of | ||f(u) - f(v)||^2 / ||u - v||^2 - 1 |, for distinct points; 0 if there is no pair."""
    first, second = torch.triu_indices(len(X), len(X), 1)
    steps = X[first] - X[second]
    ratios = (steps @ f.mT).square().sum(-1) / steps.square().sum(-1)
    return (ratios - 1).abs().amax() if len(ratios) else X.new_zeros(())
