"""The best identical rows in each norm: minimal, blind to padding, exactly zero at collapse."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.core.errors import UnknownNameError
from attnworks.exam.linalg.residual import (
    NORMS,
    best_row,
    relative_residual,
    relative_residual_norm,
    residual,
    residual_norm,
)
from tests.helpers import assert_close

names = pytest.mark.parametrize("norm", list(NORMS))
LP = 1e-6
"""Linear programs are solved to 1e-7 of the largest entry."""


def matrix(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


@names
def test_the_value_is_that_of_the_row(norm: str) -> None:
    X = matrix(2, 7, 5)
    x = best_row(X, norm)
    assert_close(residual_norm(X, norm), NORMS[norm](X - x.unsqueeze(-2)))
    assert_close(relative_residual_norm(X, norm), residual_norm(X, norm) / NORMS[norm](X))


@names
def test_no_other_row_is_better(norm: str) -> None:
    X = matrix(7, 3)
    x, best = best_row(X, norm), residual_norm(X, norm)
    others = [best_row(X, other) for other in NORMS]
    others += [x + step * matrix(3) for step in (1e-4, 1e-3, 1e-2, 0.1, 1.0) for _ in range(200)]
    values = NORMS[norm](X - torch.stack(others).unsqueeze(-2))
    assert best <= values.min() * (1 + LP)


@pytest.mark.parametrize("norm", ["inf", "composite"])
@pytest.mark.parametrize("draw", range(5))
def test_linear_programs_against_a_grid(norm: str, draw: int) -> None:
    X = matrix(5, 2).pow(3)
    sides = [torch.linspace(low, high, 401, dtype=torch.float64) for low, high in zip(*X.aminmax(dim=0), strict=True)]
    searched = NORMS[norm](X - torch.cartesian_prod(*sides).unsqueeze(-2)).min().item()
    best = residual_norm(X, norm).item()
    assert best == pytest.approx(searched, rel=1e-2)
    assert best <= searched * (1 + LP)


@given(st.integers(0, 10_000), st.integers(2, 7))
def test_the_mean_is_near_the_best(seed: int, n: int) -> None:
    """S0.14: within 2 (1 - 1/n) in the norms one, inf and composite."""
    X = torch.randn(n, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).pow(3)
    for norm in ("one", "inf", "composite"):
        best = residual_norm(X, norm)
        assert best <= NORMS[norm](residual(X)) * (1 + LP)
        assert NORMS[norm](residual(X)) <= 2 * (1 - 1 / n) * best * (1 + LP)


@names
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_collapsed_reads_zero(norm: str, dtype: torch.dtype) -> None:
    X = torch.randn(3, 1, 7).to(dtype).expand(3, 11, 7)
    for value in (residual_norm(X, norm), relative_residual_norm(X, norm), relative_residual(X)):
        assert (value == 0).all()
    assert torch.equal(best_row(X, norm), X[:, 0])
    for zeros in (torch.zeros(5, 7, dtype=dtype), X[:, :1]):
        assert (relative_residual_norm(zeros, norm) == 0).all()


@names
def test_padding_never_counts(norm: str) -> None:
    X = matrix(4, 7, 3)
    real = torch.tensor([[1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 0, 1, 0, 0], [1, 1, 1, 1, 0, 0, 0], [0] * 7]).bool()
    odd = X.masked_fill(~real.unsqueeze(-1), torch.nan)
    x, value, share = best_row(odd, norm, real), residual_norm(odd, norm, real), relative_residual_norm(odd, norm, real)
    for at in range(3):
        rows = X[at, real[at]]
        torch.testing.assert_close(value[at], residual_norm(rows, norm), rtol=LP, atol=LP)
        torch.testing.assert_close(share[at], relative_residual_norm(rows, norm), rtol=LP, atol=LP)
        torch.testing.assert_close(NORMS[norm](rows - x[at]), residual_norm(rows, norm), rtol=LP, atol=LP)
    assert (x[3] == 0).all() and value[3] == 0 and share[3] == 0
    R = residual(odd, real)
    assert (R[~real] == 0).all()
    assert_close(R[1, real[1]], residual(X[1, real[1]]))
    assert_close(relative_residual(odd, real)[2], relative_residual(X[2, :4]))


@pytest.mark.parametrize("norm", sorted(set(NORMS) - {"spectral"}))  # torch's svd raises on NaN
def test_nan_in_a_real_row_is_not_hidden(norm: str) -> None:
    X = matrix(2, 5, 3)
    X[0, 2, 1] = torch.nan
    value = residual_norm(X, norm)
    assert value[0].isnan() and value[1].isfinite()


def test_figures_of_the_claims() -> None:
    """S1.10: rank one, and as far from identical rows as can be. S0.14: the spectral minimiser is not unique."""
    X = torch.outer(torch.tensor([1.0, -1.0, 1.0, -1.0]), torch.tensor([1.0, 2.0, 3.0])).double()
    assert relative_residual_norm(X, "frobenius").item() == pytest.approx(1.0)
    Y = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    assert residual_norm(Y, "spectral").item() == pytest.approx(18**0.5)
    assert NORMS["spectral"](Y - torch.tensor([0.0, 0.5]).double()).item() == pytest.approx(18**0.5)


def test_unknown_norm() -> None:
    for measure in (best_row, residual_norm, relative_residual_norm):
        with pytest.raises(UnknownNameError, match="frobenius"):
            measure(matrix(3, 2), "frobeniu")
