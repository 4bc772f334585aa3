"""The lemma of Johnson and Lindenstrauss with the constant 8: a normal map, shrunk so that both tails are equal.

||f(u)||^2 / ||u||^2 of a map with entries from N(0, s/k) is s chi^2_k / k. It leaves [1 - eps, 1 + eps] on either side
with a probability of at most exp(-k I / 2), I(x) = x - 1 - ln x taken where chi^2_k / k = (1 -+ eps) / s.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from scipy.stats import chi2
from torch import Generator, Tensor

from attnworks.theory.random_projection import check_eps


def equal_tails(eps: float) -> float:
    """s = 2 eps / ln((1 + eps) / (1 - eps)), by which I((1 - eps) / s) = I((1 + eps) / s).

    Source: S4.113.
    """
    check_eps(eps)
    return eps / math.atanh(eps)


def tail_exponent(eps: float, s: float = 1.0) -> float:
    """min of I((1 - eps) / s) and I((1 + eps) / s) with I(x) = x - 1 - ln x; at s = `equal_tails` it is >= eps^2 / 2.

    Source: S4.113; Chernoff's bound of the chi-squared distribution. An end beyond the mean counts as I(1) = 0.
    """
    check_eps(eps)
    return min(ratio - 1 - math.log(ratio) for ratio in (min((1 - eps) / s, 1.0), max((1 + eps) / s, 1.0)))


def enough_rows(m: int, eps: float) -> int:
    """The least k > 8 ln(m) / eps^2, in which m points can keep all squared distances within the factor 1 +- eps.

    Source: Conti 2024, lemma 2.1 (S4.113), where k is called n; for a map scaled by `equal_tails`.
    """
    check_eps(eps)
    return math.floor(8 * math.log(m) / eps**2) + 1


def union_failure(m: int, k: int, eps: float, s: float = 1.0) -> float:
    """m (m - 1) / 2 P(s chi^2_k / k outside of [1 - eps, 1 + eps]): a map fails some pair of m points no more often.

    Source: S4.113. Below one, some map keeps all distances.
    """
    check_eps(eps)
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
