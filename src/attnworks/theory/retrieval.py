"""The output of one query over n keys: copies and averages of values, and how random keys disturb both.

Scores are k_i^T q without a scale. The query is for the keys a and b.
Source: CS224N, attention exploration (S2.1-S2.20), with the closed forms of D9.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.checks import integer, number


class BoundedValue(NamedTuple):
    """A number and its upper bound."""

    value: Float[Tensor, ""]
    bound: Float[Tensor, ""]

    @property
    def ratio(self) -> Float[Tensor, ""]:
        return self.value / self.bound


class LogisticMoments(NamedTuple):
    """Mean and variance of a normal number after the logistic function."""

    mean: float
    variance: float


class RetrievalDraws(NamedTuple):
    """T draws of keys: weights and outputs of one head with a query for a and b, and of two with one for each.

    by_two is the mean of what `first` and `second` give.
    """

    one: Float[Tensor, "t n"]
    first: Float[Tensor, "t n"]
    second: Float[Tensor, "t n"]
    by_one: Float[Tensor, "t v"]
    by_two: Float[Tensor, "t v"]


def attention_weights(K: Float[Tensor, "*t n k"], q: Float[Tensor, " k"]) -> Float[Tensor, "*t n"]:
    """alpha = softmax(K q). Source: CS224N (S2.1)."""
    return (K @ q).softmax(-1)


def copy_gap(K: Float[Tensor, "n k"], q: Float[Tensor, " k"], j: int) -> BoundedValue:
    """1 - alpha_j <= (n - 1) exp(-gap), with gap = k_j^T q - max_{i != j} k_i^T q.

    Each of the n - 1 other weights is at most exp(-gap) alpha_j.
    Source: CS224N, (a) ii (S2.3). Holds when: n >= 2.
    """
    _check_two(len(K))
    S = K @ q
    others = torch.cat([S[:j], S[j + 1 :]])
    return BoundedValue(_rest(S, j), len(others) * torch.exp(others.max() - S[j]))


def copy_error(K: Float[Tensor, "n k"], q: Float[Tensor, " k"], V: Float[Tensor, "n v"], j: int) -> BoundedValue:
    """||c - v_j|| <= (1 - alpha_j) max_i ||v_i - v_j|| for the output c = alpha^T V.

    c - v_j is the sum of alpha_i (v_i - v_j) over the other keys.
    Source: CS224N, (a) iii and iv (S2.4, S2.5).
    """
    apart = V - V[j]
    error = torch.linalg.vector_norm(attention_weights(K, q) @ apart)
    return BoundedValue(error, _rest(K @ q, j) * torch.linalg.vector_norm(apart, dim=-1).max())


def _rest(S: Float[Tensor, " n"], j: int) -> Float[Tensor, ""]:
    """1 - alpha_j as the sum of the other weights, which rounding does not make zero."""
    alpha = S.softmax(-1)
    return alpha[:j].sum() + alpha[j + 1 :].sum()


def one_key_weight(n: int, beta: float) -> float:
    """exp(beta) / (exp(beta) + n - 1): the weight of k_a for q = beta k_a.

    Source: CS224N, (d) (S2.18, S2.19), corrected. Holds when: the n keys are orthonormal.
    """
    return 1 / (1 + (n - 1) * math.exp(-beta))


def two_key_query(k_a: Float[Tensor, " k"], k_b: Float[Tensor, " k"], beta: float) -> Float[Tensor, " k"]:
    """q = beta (k_a + k_b), which averages v_a and v_b. Source: CS224N, (b) ii (S2.8)."""
    return beta * (k_a + k_b)


def two_key_weight(n: int, beta: float) -> float:
    """exp(beta) / (n - 2 + 2 exp(beta)): the weight of k_a, and of k_b, for q = beta (k_a + k_b).

    Source: CS224N, (b) ii (S2.8), where n is printed as alpha. Holds when: the n keys are orthonormal.
    """
    _check_two(n)
    return 1 / (2 + (n - 2) * math.exp(-beta))


def least_beta(n: int, shortfall: float) -> float:
    """ln((n - 2)(1 - 2 delta) / (4 delta)): from there on `two_key_weight` is at least 1/2 - delta.

    As 1/2 - alpha_a = (n - 2) / (2 (n - 2 + 2 exp(beta))). With two keys any beta will do, and it is -inf.
    Source: D9 (S2.8).
    """
    _check_two(n)
    remedy = "a weight reaches one half at no beta, and is above zero at every beta"
    number("shortfall", shortfall, 0, 0.5, above=True, below=True, remedy=remedy)
    return math.log((n - 2) * (1 - 2 * shortfall) / (4 * shortfall)) if n > 2 else -math.inf


def _check_two(n: int) -> None:
    integer("n", n, 2, remedy="a key alone has the weight one, whatever the query")


def two_way(score_a: float, score_b: float) -> float:
    """1 / (1 + exp(score_b - score_a)): the weight of a where b is the only other key.

    Source: CS224N, (c) ii (S2.16), corrected.
    """
    return float(torch.tensor(score_a - score_b, dtype=torch.float64).sigmoid())


def transposed_extractor(A: Float[Tensor, "k m"]) -> Float[Tensor, "k k"]:
    """M = A A^T, with M (v_a + v_b) = v_a for v_a = A c and v_b = B d.

    Source: CS224N, (b) i (S2.7). Holds when: A^T A = I and A^T B = 0.
    """
    return A @ A.mT


def projecting_extractor(A: Float[Tensor, "k m"]) -> Float[Tensor, "k k"]:
    """M = A (A^T A)^-1 A^T, the same for columns of A that are not orthonormal.

    Source: CS224N, (b) i (S2.7). Holds when: A^T B = 0.
    """
    return A @ torch.linalg.pinv(A)


def oblique_extractor(A: Float[Tensor, "k m"], B: Float[Tensor, "k p"]) -> Float[Tensor, "k k"]:
    """M = [A 0] [A B]^+, the same for subspaces that are not orthogonal.

    Source: CS224N, (b) i (S2.7). Holds when: the columns of A and B together are independent.
    """
    return torch.cat([A, torch.zeros_like(B)], -1) @ torch.linalg.pinv(torch.cat([A, B], -1))


def sample_keys(
    mu: Float[Tensor, "n k"], Sigma: Float[Tensor, "n k k"], T: int, generator: torch.Generator | None = None
) -> Float[Tensor, "t n k"]:
    """T draws of k_i = mu_i + Sigma_i^(1/2) x_i with x_i ~ N(0, I).

    Source: CS224N, (c) (S2.11). Departs: the document multiplies by Sigma_i instead of a root of it.
    """
    values, vectors = torch.linalg.eigh(Sigma)
    root = vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)
    x = torch.randn(T, *mu.shape, generator=generator, dtype=mu.dtype)
    return mu + (root @ x.unsqueeze(-1)).squeeze(-1)


def even_covariances(mu: Float[Tensor, "n k"], alpha: float) -> Float[Tensor, "n k k"]:
    """Sigma_i = alpha I for every key. Source: CS224N, (c) i (S2.11)."""
    return alpha * torch.eye(mu.shape[1], dtype=mu.dtype).repeat(len(mu), 1, 1)


def stretched_covariances(mu: Float[Tensor, "n k"], alpha: float, a: int = 0) -> Float[Tensor, "n k k"]:
    """The same but for Sigma_a = alpha I + mu_a mu_a^T / 2: for small alpha, k_a = gamma mu_a with gamma ~ N(1, 1/2).

    Source: CS224N, (c) ii (S2.14), which leaves this assumption of the exercise out. Holds when: ||mu_a|| = 1.
    """
    Sigma = even_covariances(mu, alpha)
    Sigma[a] += torch.outer(mu[a], mu[a]) / 2
    return Sigma


def gap_deviation(beta: float, alpha: float) -> float:
    """2 beta sqrt(alpha): for q = beta (mu_a + mu_b), (k_a - k_b)^T q is N(0, 4 alpha beta^2).

    Source: CS224N, (c) i (S2.13). Holds when: mu_a and mu_b are orthonormal, and Sigma_a = Sigma_b = alpha I.
    """
    return 2 * beta * math.sqrt(alpha)


def beta_window(n: int, alpha: float) -> tuple[float, float]:
    """The ends of ln n << beta << 1 / (2 sqrt(alpha)), where beta (mu_a + mu_b) averages keys with Sigma_i = alpha I.

    Below it the other n - 2 keys weigh in; above it `gap_deviation` is no longer small.
    Source: CS224N, (c) i (S2.13), and D9.
    """
    return math.log(n), 1 / gap_deviation(1.0, alpha) if alpha else math.inf


def logistic_moments(mean: float, deviation: float) -> LogisticMoments:
    """Mean and variance of 1 / (1 + exp(-x)) for x ~ N(mean, deviation^2), by quadrature over one number.

    Gauss and Legendre, 40 points in each of some thirty pieces, which are short where the logistic function bends.
    """
    width = 1 / max(deviation, 1e-6)
    bend = torch.arange(-40, 41, 10, dtype=torch.float64) * width - mean * width
    edges = torch.cat([torch.linspace(-9.0, 9.0, 19, dtype=torch.float64), bend.clamp(-9.0, 9.0)]).sort().values
    points, shares = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(40))
    half = edges.diff().unsqueeze(-1) / 2
    z = edges[:-1, None] + half * (points + 1)
    density = half * shares * torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    value = torch.sigmoid(mean + deviation * z)
    centre = (density * value).sum()
    return LogisticMoments(float(centre), float((density * (value - centre).square()).sum()))


def one_head_variance(beta: float, v_a: Float[Tensor, " v"], v_b: Float[Tensor, " v"]) -> float:
    """tr Var(c) = E[(sigma(beta z / sqrt 2) - 1/2)^2] ||v_a - v_b||^2 for z ~ N(0, 1); at most ||v_a - v_b||^2 / 4.

    For q = beta (mu_a + mu_b) and k_a = gamma mu_a, gamma ~ N(1, 1/2): alpha_a = sigma(beta (gamma - 1)).
    Source: CS224N, (c) ii (S2.17), and D9.
    Holds when: no key but a and b has weight (beta >> ln n), and all others stay at their means.
    """
    return logistic_moments(0.0, beta / math.sqrt(2)).variance * float((v_a - v_b).square().sum())


def one_head_variance_among(beta: float, V: Float[Tensor, "n v"], a: int = 0, b: int = 1) -> float:
    """tr Var(c) = Var(sigma(beta gamma - ln(e^beta + n - 2))) ||v_a - w||^2, w the mean of the other values.

    In w, v_b counts e^beta and every other value one. For beta >> ln n it is `one_head_variance`.
    Source: D9. Holds when: mu is orthonormal, n >= 2, and all keys but a stay at their means.
    """
    n, kept = len(V), math.exp(-beta)
    w = (V[b] + kept * (V.sum(0) - V[a] - V[b])) / (1 + (n - 2) * kept)
    share = logistic_moments(-math.log1p((n - 2) * kept), beta / math.sqrt(2)).variance
    return share * float((V[a] - w).square().sum())


def two_head_variance(beta: float, V: Float[Tensor, "n v"], a: int = 0) -> float:
    """tr Var(c) = Var(sigma(beta gamma - ln(n - 1))) ||v_a - mean_{i != a} v_i||^2 / 4, gamma ~ N(1, 1/2).

    The head with q = beta mu_a gives alpha_a v_a + (1 - alpha_a) mean_{i != a} v_i; the other one does not vary.
    Source: D9 (S2.20). Holds when: mu is orthonormal, n >= 2, and all keys but a stay at their means.
    """
    n = len(V)
    others = (V.sum(0) - V[a]) / (n - 1)
    share = logistic_moments(beta - math.log(n - 1), beta / math.sqrt(2)).variance
    return share * float((V[a] - others).square().sum()) / 4


def two_head_failure(n: int, beta: float) -> float:
    """Phi(sqrt 2 (ln(n - 1) / beta - 1)): how often the head with q = beta mu_a gives k_a less than one half.

    That is where gamma < ln(n - 1) / beta. With beta it goes to Phi(-sqrt 2) = 0.0786, not to zero.
    Source: CS224N, (d) (S2.20), and D9. Holds when: as for `two_head_variance`.
    """
    _check_two(n)
    return 0.5 * math.erfc(1 - math.log(n - 1) / beta)


def simulate_retrieval(
    mu: Float[Tensor, "n k"],
    Sigma: Float[Tensor, "n k k"],
    V: Float[Tensor, "n v"],
    beta: float,
    T: int,
    *,
    a: int = 0,
    b: int = 1,
    generator: torch.Generator | None = None,
) -> RetrievalDraws:
    """T draws of keys, with q = beta (mu_a + mu_b) in one head, and beta mu_a and beta mu_b in two heads.

    Source: CS224N, (c) and (d) (S2.13-S2.20).
    """
    K = sample_keys(mu, Sigma, T, generator)
    queries = two_key_query(mu[a], mu[b], beta), beta * mu[a], beta * mu[b]
    one, first, second = (attention_weights(K, q) for q in queries)
    return RetrievalDraws(one, first, second, one @ V, (first + second) @ V / 2)
