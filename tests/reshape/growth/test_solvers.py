"""The best fit by X Z Y^T of low rank: what it is, what it costs, and where the truncation of the best Z falls short.

With X = U_x S_x V_x^T and Y likewise, B = U_x U_x^T B U_y U_y^T + rest, and the rest is orthogonal to every X Z Y^T. So
    ||B - X Z Y^T||^2 = ||rest||^2 + ||U_x^T B U_y - M||^2,    M = S_x V_x^T Z V_y S_y,
where any M of rank <= k can be reached. Eckart and Young: the best is [U_x^T B U_y]_k.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.reshape.growth.solvers import LowRank, balanced, lowrank_fit, truncated_fit
from tests.helpers import assert_close


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stretched(rows: int, columns: int, condition: float, *, seed: int = 0) -> Tensor:
    """Singular values from 1 down to 1 / condition, evenly on the scale of their logarithms."""
    U, _, Vh = torch.linalg.svd(drawn(rows, columns, seed=seed), full_matrices=False)
    return U * torch.logspace(0, -math.log10(condition), U.shape[1], dtype=torch.float64) @ Vh


def objective(B: Tensor, X: Tensor, Z: Tensor, Y: Tensor) -> float:
    return float((B - X @ Z @ Y.mT).square().sum())


def searched(B: Tensor, X: Tensor, k: int, Y: Tensor, starts: int = 3, rounds: int = 100) -> float:
    """The best of a search from several starts, in which each factor in turn is the best for the other."""
    right = drawn(starts, Y.shape[1], k, seed=100)
    from_X, from_Y = torch.linalg.pinv(X), torch.linalg.pinv(Y)

    def best_left() -> Tensor:
        return from_X @ B @ torch.linalg.pinv(Y @ right).mT

    for _ in range(rounds):
        right = from_Y @ B.mT @ torch.linalg.pinv(X @ best_left()).mT
    left = best_left()
    return min(objective(B, X, one @ other.mT, Y) for one, other in zip(left, right, strict=True))


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize(("i", "e", "j", "f"), [(11, 5, 11, 5), (13, 5, 11, 7), (3, 7, 11, 5), (5, 7, 3, 11)], ids=str)
def test_no_search_finds_a_better_fit(i: int, e: int, j: int, f: int, k: int) -> None:
    """Also where there are fewer rows than columns, and X^T X has no inverse (S3.25)."""
    B, X, Y = drawn(i, j), drawn(i, e, seed=1), drawn(j, f, seed=2)
    fit = lowrank_fit(B, X, k, Y)
    assert fit.left.shape == (e, k) and fit.right.shape == (f, k)
    assert objective(B, X, fit.Z, Y) == pytest.approx(fit.value, rel=1e-10, abs=1e-10)
    assert searched(B, X, k, Y) == pytest.approx(fit.value, rel=1e-8, abs=1e-10)


def test_y_is_x_unless_given() -> None:
    B, X = drawn(11, 11), drawn(11, 5, seed=1)
    for fit in (lowrank_fit, truncated_fit):
        assert_close(fit(B, X, 2).Z, fit(B, X, 2, X).Z)
        assert fit(B, X, 2).value == pytest.approx(fit(B, X, 2, X).value)


@given(st.integers(0, 10**6), st.floats(0, 4), st.integers(1, 5), st.sampled_from([3, 7, 13]))
def test_it_is_never_worse_than_the_truncation(seed: int, digits: float, k: int, rows: int) -> None:
    B, X, Y = drawn(rows, 11, seed=seed), stretched(rows, 5, 10**digits, seed=seed + 1), drawn(11, 7, seed=seed + 2)
    best, printed = lowrank_fit(B, X, k, Y), truncated_fit(B, X, k, Y)
    assert best.value <= printed.value * (1 + 1e-9)
    assert objective(B, X, printed.Z, Y) == pytest.approx(printed.value, rel=1e-8)


def test_the_truncation_can_lose_much() -> None:
    """S3.27 as printed, at a condition number of 100."""
    B, X = drawn(13, 13), stretched(13, 5, 100.0, seed=1)
    best, printed = lowrank_fit(B, X, 2).value, truncated_fit(B, X, 2).value
    assert printed > 1.05 * best
    assert printed > B.square().sum()  # no columns at all would be nearer


@pytest.mark.parametrize("k", [1, 3])
def test_they_agree_where_x_is_orthogonal(k: int) -> None:
    """X^T X = c I: then Z = X^T B Y / (c c') up to a rotation of U_x^T B U_y, and so are the truncations."""
    B, X, Y = drawn(13, 11), 3 * torch.linalg.qr(drawn(13, 5, seed=1)).Q, 2 * torch.linalg.qr(drawn(11, 7, seed=2)).Q
    best, printed = lowrank_fit(B, X, k, Y), truncated_fit(B, X, k, Y)
    assert_close(best.Z, printed.Z)
    assert best.value == pytest.approx(printed.value, rel=1e-12)


def test_the_printed_value_is_another_number() -> None:
    """S3.30 prints sum_{r>k} sigma_r(Z*)^2: right if X is orthonormal and B = U U^T B U U^T, and not else."""

    def printed(B: Tensor, X: Tensor, k: int) -> float:
        return float(torch.linalg.svdvals(torch.linalg.pinv(X) @ B @ torch.linalg.pinv(X).mT)[k:].square().sum())

    X = torch.linalg.qr(drawn(13, 5, seed=1)).Q
    inside, outside = X @ drawn(5, 5) @ X.mT, drawn(13, 13)
    assert printed(inside, X, 2) == pytest.approx(lowrank_fit(inside, X, 2).value, rel=1e-10)
    assert printed(outside, X, 2) < 0.5 * lowrank_fit(outside, X, 2).value
    steep = stretched(13, 5, 100.0, seed=1)
    assert printed(outside, steep, 2) > 10 * lowrank_fit(outside, steep, 2).value


@pytest.mark.parametrize("fit", [lowrank_fit, truncated_fit])
@pytest.mark.parametrize("k", [3, 5, 17])
def test_more_columns_than_ranks(fit: Callable[..., LowRank], k: int) -> None:
    """X has rank 3: from k = 3 on the fit is that of any rank, X^+ B Y^+T (S3.24), and columns are added as zeros."""
    B, X, Y = drawn(13, 11), drawn(13, 3, seed=1) @ drawn(3, 5, seed=2), drawn(11, 7, seed=3)
    found = fit(B, X, k, Y)
    assert found.left.shape == (5, k) and found.right.shape == (7, k)
    assert_close(found.Z, torch.linalg.pinv(X) @ B @ torch.linalg.pinv(Y).mT)
    assert found.value == pytest.approx(objective(B, X, found.Z, Y), rel=1e-12)


@pytest.mark.parametrize("fit", [lowrank_fit, truncated_fit])
def test_nothing_to_fit_with(fit: Callable[..., LowRank]) -> None:
    B = drawn(7, 11)
    zero = torch.zeros(7, 3, dtype=torch.float64)
    for found in (fit(B, zero, 2, drawn(11, 5)), fit(B, drawn(7, 3), 0, drawn(11, 5))):
        assert not found.Z.any() and found.Z.shape == (3, 5)
        assert found.value == pytest.approx(float(B.square().sum()), rel=1e-12)


def test_small_singular_values_are_dropped_on_request() -> None:
    B, X = drawn(13, 13), stretched(13, 5, 100.0)
    U, s, Vh = torch.linalg.svd(X, full_matrices=False)
    cut = U[:, :3] * s[:3] @ Vh[:3]  # the values are 1, 0.32, 0.1, 0.03, 0.01
    for fit in (lowrank_fit, truncated_fit):
        assert_close(fit(B, X, 2, rcond=0.05).Z, fit(B, cut, 2).Z)


def test_factors_share_their_singular_values() -> None:
    """S3.29: W_Q = U S^1/2 and W_K = V S^1/2, so that W_Q^T W_Q = W_K^T W_K = S."""
    for fit in (lowrank_fit, truncated_fit):
        left, right, _ = fit(drawn(13, 11), drawn(13, 5, seed=1), 3, drawn(11, 7, seed=2))
        s = torch.linalg.svdvals(left @ right.mT)[:3]
        assert_close(left.mT @ left, s.diag())
        assert_close(right.mT @ right, s.diag())


@pytest.mark.parametrize("p", [2, 5, 11])
def test_balancing_keeps_the_product(p: int) -> None:
    """p = 11 columns have at most rank 5, as the left factor has 5 rows."""
    left, right = drawn(3, 2, 5, p), 100 * drawn(3, 2, 7, p, seed=1)
    L, R = balanced(left, right)
    assert L.shape == left.shape and R.shape == right.shape
    torch.testing.assert_close(L @ R.mT, left @ right.mT, rtol=1e-10, atol=1e-10)  # of size 100
    s = torch.nn.functional.pad(torch.linalg.svdvals(left @ right.mT), (0, p))[..., :p]
    torch.testing.assert_close(L.mT @ L, s.diag_embed(), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(R.mT @ R, s.diag_embed(), rtol=1e-10, atol=1e-10)


def test_a_negative_rank_is_refused() -> None:
    for fit in (lowrank_fit, truncated_fit):
        with pytest.raises(UsageError, match="rank=-1: expected a whole number from 0, got -1"):
            fit(drawn(3, 3), drawn(3, 2), -1)
