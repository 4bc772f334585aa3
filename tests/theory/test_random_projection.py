"""The error of a random projection has the mean square that the formula says."""

from __future__ import annotations

import pytest
import torch

from attnworks.attention.sketched import sketch_error_formula
from attnworks.core.errors import UsageError
from attnworks.theory.random_projection import (
    exact_low_rank,
    jl_inner_dim,
    published_rows,
    rows_for_error,
    sketch_error,
)
from tests.helpers import assert_close


@pytest.mark.parametrize("k", [3, 11])
def test_monte_carlo_agrees_with_the_formula(k: int) -> None:
    trials = 4001
    P, V = torch.randn(5, 7, dtype=torch.float64).softmax(-1), torch.randn(7, 2, dtype=torch.float64)
    source = torch.Generator().manual_seed(23)
    squares = sketch_error(P.expand(trials, 5, 7), V.expand(trials, 7, 2), k, source).square()
    deviation = (squares.std() / trials**0.5).item()
    want = sketch_error_formula(P, V, k).square().item()
    assert squares.mean().item() == pytest.approx(want, abs=4 * deviation)
    assert deviation < 0.05 * want


def test_one_column_is_the_formula_of_the_claims() -> None:
    """D8: sqrt((1 + ||P||_F^2 ||w||^2 / ||P w||^2) / k)."""
    P, w, k = torch.randn(3, 5, 7, dtype=torch.float64), torch.randn(3, 7, 1, dtype=torch.float64), 11
    want = ((1 + P.square().sum((1, 2)) * w.square().sum((1, 2)) / (P @ w).square().sum((1, 2))) / k).sqrt()
    torch.testing.assert_close(sketch_error_formula(P, w, k), want)


def test_identity_needs_as_many_rows_as_keys() -> None:
    """S0.21: for P = I, k = 5 ln n / (eps^2 - eps^3) with eps = 1/2 gives an error above one half."""
    n, k = 256, 222
    assert sketch_error_formula(torch.eye(n), torch.randn(n, 1), k).item() == pytest.approx(1.08, abs=0.01)


def test_the_generator_decides() -> None:
    P, V = torch.randn(2, 5, 7).softmax(-1), torch.randn(2, 7, 3)
    a, b, c = (sketch_error(P, V, 5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c) and a.shape == (2,)


@pytest.mark.parametrize("eps", [0.1, 0.5, 0.9])
def test_rows_for_an_error_are_the_least(eps: float) -> None:
    P, V = torch.randn(5, 7, dtype=torch.float64).softmax(-1), torch.randn(7, 2, dtype=torch.float64)
    k = rows_for_error(P, V, eps)
    assert sketch_error_formula(P, V, k).item() <= eps < sketch_error_formula(P, V, k - 1).item()


def test_rows_for_an_error_of_the_identity() -> None:
    """1 + n w^T w / w^T w = n + 1, times four for eps = 1/2: a whole number is not rounded up."""
    assert rows_for_error(torch.eye(13, dtype=torch.float64), torch.randn(13, 1, dtype=torch.float64), 0.5) == 56


def test_published_sizes_by_hand() -> None:
    """5 ln 256 / (1/8) = 221.8 and 4 ln(4 * 256 / 0.1) / (1/8) = 295.5."""
    assert published_rows(256, 0.5) == 222
    assert jl_inner_dim(256, 0.5, 0.1) == 296


@pytest.mark.parametrize("eps", [0.0, 1.0, -0.5, float("nan")])
def test_no_share(eps: float) -> None:
    for refuse in (lambda eps: published_rows(7, eps), lambda eps: jl_inner_dim(7, eps, 0.1)):
        with pytest.raises(UsageError, match="a number above 0 and below 1"):
            refuse(eps)


def test_inner_products_fail_as_seldom_as_promised() -> None:
    """eps = 0.7 and delta = 0.5 leave few rows; even so no more than half of the draws may have a row that fails."""
    n, eps, delta, draws = 31, 0.7, 0.5, 101
    k = jl_inner_dim(n, eps, delta)
    source = torch.Generator().manual_seed(29)
    U, w, R = (
        torch.randn(shape, generator=source, dtype=torch.float64) for shape in ((n, 37), (37, 1), (draws, k, 37))
    )
    R = R / k**0.5
    errors = (U @ (R.mT @ (R @ w) - w)).squeeze(-1).abs() / (U.norm(dim=-1) * w.norm())
    assert (errors.amax(-1) > eps).double().mean().item() <= delta


@pytest.mark.parametrize("v", [1, 3, 11])
def test_exact_map_of_low_rank(v: int) -> None:
    """V^+ V = I for independent columns; with more columns than keys V V^+ = I, and the map is P itself."""
    P, V = torch.randn(3, 5, 7, dtype=torch.float64).softmax(-1), torch.randn(3, 7, v, dtype=torch.float64)
    exact = exact_low_rank(P, V)
    assert_close(exact @ V, P @ V)
    assert torch.linalg.matrix_rank(exact).tolist() == [min(v, 5)] * 3
    if v > 7:
        assert_close(exact, P)
