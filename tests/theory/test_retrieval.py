"""Closed forms of retrieval against attention itself, against other quadrature, and against draws of keys."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.stats import norm
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.theory import retrieval
from tests.helpers import assert_close

SEEDS = st.integers(0, 2**31)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def orthonormal(n: int, k: int) -> Tensor:
    """n orthonormal rows."""
    return torch.linalg.qr(normal(5, k, n)).Q.mT


def number(value: float) -> Tensor:
    return torch.tensor(value, dtype=torch.float64)


@given(seed=SEEDS, n=st.integers(2, 7), scale=st.floats(0.1, 30.0))
def test_a_copy_is_as_good_as_its_bounds_say(seed: int, n: int, scale: float) -> None:
    K, V, q = normal(seed, n, 3), normal(seed + 1, n, 5), scale * normal(seed + 2, 3)
    j = n // 2
    alpha = retrieval.attention_weights(K, q)
    gap, error = retrieval.copy_gap(K, q, j), retrieval.copy_error(K, q, V, j)
    assert_close(gap.value, 1 - alpha[j])
    assert_close(error.value, (alpha @ V - V[j]).norm())
    assert gap.value <= gap.bound * (1 + 1e-12)
    assert error.value <= error.bound * (1 + 1e-12)


def test_bounds_of_a_copy_in_numbers() -> None:
    """Scores ln 3, 0, 0: weights 3/5, 1/5, 1/5, so 2/5 <= 2/3. Values 0, 1, -1 cancel; 0, 1, 1 reach the bound."""
    K, q = torch.eye(3, dtype=torch.float64), torch.tensor([math.log(3), 0.0, 0.0], dtype=torch.float64)
    gap = retrieval.copy_gap(K, q, 0)
    assert_close(torch.stack(gap), torch.tensor([2 / 5, 2 / 3], dtype=torch.float64))
    for values, error in (([0.0, 1.0, -1.0], 0.0), ([0.0, 1.0, 1.0], 2 / 5)):
        V = torch.tensor(values, dtype=torch.float64).unsqueeze(-1)
        found = torch.stack(retrieval.copy_error(K, q, V, 0))
        assert_close(found, torch.tensor([error, 2 / 5], dtype=torch.float64))


@given(n=st.integers(2, 11), beta=st.floats(-3.0, 40.0))
def test_weights_of_one_and_of_two_keys(n: int, beta: float) -> None:
    K = orthonormal(n, 13)
    two = retrieval.attention_weights(K, retrieval.two_key_query(K[0], K[1], beta))
    assert_close(two[:2], number(retrieval.two_key_weight(n, beta)).expand(2))
    assert_close(retrieval.attention_weights(K, beta * K[0])[0], number(retrieval.one_key_weight(n, beta)))


@given(n=st.integers(3, 1000), shortfall=st.floats(1e-6, 0.49))
def test_the_least_beta_has_just_that_shortfall(n: int, shortfall: float) -> None:
    beta = retrieval.least_beta(n, shortfall)
    assert_close(number(0.5 - retrieval.two_key_weight(n, beta)), number(shortfall))


def test_of_two_keys_any_beta_will_do() -> None:
    assert retrieval.least_beta(2, 0.1) == -math.inf
    assert retrieval.two_key_weight(2, -7.0) == 0.5


@pytest.mark.parametrize("shortfall", [0.0, 0.5, -1.0])
def test_a_shortfall_out_of_range_is_refused(shortfall: float) -> None:
    with pytest.raises(UsageError, match=r"a number above 0 and below 0\.5"):
        retrieval.least_beta(5, shortfall)


def test_two_of_one_key_are_refused() -> None:
    for call in (retrieval.two_key_weight, retrieval.two_head_failure):
        with pytest.raises(UsageError, match="a whole number from 2"):
            call(1, 1.0)
    with pytest.raises(UsageError, match="a whole number from 2"):
        retrieval.copy_gap(normal(1, 1, 3), normal(2, 3), 0)


@given(a=st.floats(-30, 30), b=st.floats(-30, 30))
def test_two_way_is_a_softmax_of_two(a: float, b: float) -> None:
    expected = torch.tensor([a, b], dtype=torch.float64).softmax(-1)[0]
    assert_close(number(retrieval.two_way(a, b)), expected)


def test_extractors() -> None:
    """Orthonormal, then orthogonal, then only independent: each needs the next extractor, which does all before it."""
    k, m, p = 11, 3, 5
    basis = torch.linalg.qr(normal(1, k, m + p)).Q
    mixed = normal(2, m, m)
    cases = [
        (basis[:, :m], basis[:, m:], 0),
        (basis[:, :m] @ mixed, basis[:, m:], 1),
        (normal(3, k, m), normal(4, k, p), 2),
    ]
    for A, B, least in cases:
        v_a, v_b = A @ normal(6, m), B @ normal(7, p)
        tools = [
            retrieval.transposed_extractor(A),
            retrieval.projecting_extractor(A),
            retrieval.oblique_extractor(A, B),
        ]
        errors = [float((M @ (v_a + v_b) - v_a).norm()) for M in tools]
        assert all(error < 1e-12 for error in errors[least:])
        assert all(error > 0.1 for error in errors[:least])


def test_sampled_keys_have_their_mean_and_covariance() -> None:
    """Within six standard errors; the entry i j of a covariance has variance (S_ii S_jj + S_ij^2) / T."""
    n, k, T = 3, 5, 20_000
    mu, root = normal(1, n, k), normal(2, n, k, 2)
    Sigma = root @ root.mT  # singular: rank 2 of 5
    K = retrieval.sample_keys(mu, Sigma, T, torch.Generator().manual_seed(3))
    spread = torch.diagonal(Sigma, dim1=-2, dim2=-1)
    assert ((K.mean(0) - mu).abs() <= 6 * (spread / T).sqrt()).all()
    found = torch.einsum("tnk,tnl->nkl", K - mu, K - mu) / T
    error = ((spread[:, :, None] * spread[:, None, :] + Sigma.square()) / T).sqrt()
    assert ((found - Sigma).abs() <= 6 * error).all()


def test_covariances() -> None:
    mu = orthonormal(3, 5)
    even, stretched = retrieval.even_covariances(mu, 0.2), retrieval.stretched_covariances(mu, 0.2, a=1)
    assert_close(even[2], 0.2 * torch.eye(5, dtype=torch.float64))
    assert_close(stretched[[0, 2]], even[[0, 2]])
    assert_close(stretched[1] @ mu[1], 0.7 * mu[1])
    assert_close(stretched[1] @ mu[0], 0.2 * mu[0])


def test_the_window_ends_where_the_gap_of_scores_has_deviation_one() -> None:
    low, high = retrieval.beta_window(7, 0.01)
    assert low == math.log(7)
    assert_close(number(retrieval.gap_deviation(high, 0.01)), number(1.0))
    assert retrieval.beta_window(7, 0.0)[1] == math.inf


def test_the_deviation_of_the_gap() -> None:
    """(k_a - k_b)^T q = beta (x_a - x_b)^T (mu_a + mu_b) sqrt(alpha): variance 2 beta^2 alpha ||mu_a + mu_b||^2."""
    mu, T = orthonormal(2, 5), 20_000
    K = retrieval.sample_keys(mu, retrieval.even_covariances(mu, 0.03), T, torch.Generator().manual_seed(1))
    S = K @ retrieval.two_key_query(mu[0], mu[1], 3.0)
    expected = retrieval.gap_deviation(3.0, 0.03)
    assert abs(float((S[:, 0] - S[:, 1]).std()) - expected) < 6 * expected / math.sqrt(2 * T)


@pytest.mark.parametrize("mean", [-7.0, 0.0, 2.0, 30.0])
@pytest.mark.parametrize("deviation", [0.0, 1e-8, 0.3, 3.0, 40.0])
def test_squashed_moments_against_adaptive_quadrature(mean: float, deviation: float) -> None:
    def moment(power: int) -> float:
        bend = -mean / deviation if deviation > 1 else 0.0
        whole = [-12.0, *(x for x in (bend - 1, bend, bend + 1) if abs(x) < 12), 12.0]
        return sum(
            quad(
                lambda z: norm.pdf(z) * retrieval.two_way(mean + deviation * z, 0.0) ** power,
                low,
                high,
                epsabs=1e-14,
                limit=200,
            )[0]
            for low, high in pairwise(whole)
        )

    found = retrieval.logistic_moments(mean, deviation)
    assert_close(number(found.mean), number(moment(1)))
    assert_close(number(found.variance), number(moment(2) - moment(1) ** 2))


def test_squashed_far_out() -> None:
    """With deviation s -> inf it is a coin: mean Phi(mean / s), variance 1/4 - E[sigma (1 - sigma)] = 1/4 - phi(0)/s.

    E[sigma(s z)(1 - sigma(s z))] = phi(0) / s up to terms of s^-3, as the integral of sigma (1 - sigma) is one.
    """
    found = retrieval.logistic_moments(0.0, 1e6)
    assert_close(number(found.mean), number(0.5))
    assert_close(number(found.variance), number(0.25 - float(norm.pdf(0)) * 1e-6))


def test_variances_and_failures_against_draws() -> None:
    """Within six standard errors of a variance, which come from the fourth moment of the draws.

    The keys but a stay at their means (alpha = 0), and with two heads no term is left out. One head neglects the other
    keys, whose weight is at most n exp(-beta).
    """
    n, k, T, beta = 5, 7, 20_000, 17.0
    mu, V = orthonormal(n, k), normal(4, n, 3)
    Sigma = retrieval.stretched_covariances(mu, 0.0)
    drawn = retrieval.simulate_retrieval(mu, Sigma, V, beta, T, generator=torch.Generator().manual_seed(6))
    for outputs, expected, neglected in (
        (drawn.by_one, retrieval.one_head_variance(beta, V[0], V[1]), 100 * n * math.exp(-beta)),
        (drawn.by_two, retrieval.two_head_variance(beta, V), 0.0),
    ):
        squares = (outputs - outputs.mean(0)).square().sum(-1)
        assert abs(float(squares.mean()) - expected) < 6 * float(squares.std()) / math.sqrt(T) + neglected
    share, expected = float((drawn.first[:, 0] < 0.5).double().mean()), retrieval.two_head_failure(n, beta)
    assert abs(share - expected) < 6 * math.sqrt(expected * (1 - expected) / T)
    assert_close(drawn.by_two, (drawn.first @ V + drawn.second @ V) / 2)


@pytest.mark.parametrize("beta", [0.3, 1.0, 3.0])
def test_variance_of_one_head_among_all_values(beta: float) -> None:
    """c = alpha_a v_a + (1 - alpha_a) w: only alpha_a varies, for any beta."""
    n, T = 7, 20_000
    mu, V = orthonormal(n, 11), normal(5, n, 3)
    Sigma = retrieval.stretched_covariances(mu, 0.0, 2)
    source = torch.Generator().manual_seed(8)
    drawn = retrieval.simulate_retrieval(mu, Sigma, V, beta, T, a=2, b=4, generator=source)
    squares = (drawn.by_one - drawn.by_one.mean(0)).square().sum(-1)
    expected = retrieval.one_head_variance_among(beta, V, 2, 4)
    assert abs(float(squares.mean()) - expected) < 6 * float(squares.std()) / math.sqrt(T)


def test_variance_among_all_values_has_the_limit_of_two() -> None:
    V = normal(5, 7, 3)
    assert retrieval.one_head_variance_among(40.0, V, 2, 4) == pytest.approx(
        retrieval.one_head_variance(40.0, V[2], V[4])
    )


def test_limits_for_large_beta() -> None:
    v_a, v_b = normal(1, 3), normal(2, 3)
    limit = float((v_a - v_b).square().sum()) / 4
    assert retrieval.one_head_variance(1e3, v_a, v_b) == pytest.approx(limit, rel=1e-2)
    assert retrieval.two_head_failure(10, 1e9) == pytest.approx(norm.cdf(-math.sqrt(2)))
    assert [retrieval.two_head_failure(10, beta) for beta in (5, 10, 50)] == pytest.approx(
        [norm.cdf(math.sqrt(2) * (math.log(9) / beta - 1)) for beta in (5, 10, 50)]
    )


def test_keys_at_their_means_give_the_closed_weights() -> None:
    n, beta = 7, 5.0
    mu, V = orthonormal(n, 11), normal(3, n, 2)
    drawn = retrieval.simulate_retrieval(mu, retrieval.even_covariances(mu, 0.0), V, beta, 2, a=4, b=2)
    assert_close(drawn.one[:, [4, 2]], number(retrieval.two_key_weight(n, beta)).expand(2, 2))
    assert_close(drawn.first[:, 4], number(retrieval.one_key_weight(n, beta)).expand(2))
    assert_close(drawn.second[:, 2], number(retrieval.one_key_weight(n, beta)).expand(2))
