"""Singular values against svdvals in float64, and the ranks read off them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnworks.exam.linalg.spectrum import (
    MIN_PARALLEL_WORK,
    cumulative_energy,
    effective_rank,
    gram_singular_values,
    numerical_rank,
    over_threads,
    rank_for_energy,
    second_ratio,
    singular_values,
    stable_rank,
    torch_threads,
)
from tests.helpers import assert_close

MEASURES = (stable_rank, effective_rank, numerical_rank, rank_for_energy)


def with_spectrum(s: Tensor, i: int, j: int) -> Tensor:
    U, V = (torch.linalg.qr(torch.randn(n, len(s), dtype=torch.float64)).Q for n in (i, j))
    return U @ torch.diag(s.double()) @ V.T


@pytest.mark.parametrize("shape", [(3, 11, 7), (3, 7, 11), (2, 3, 13, 13), (1, 5), (5, 1)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_values(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    X = torch.randn(shape, dtype=dtype)
    want = torch.linalg.svdvals(X.double())
    assert_close(singular_values(X), want)
    assert ((gram_singular_values(X).double() - want).abs() <= gram_error(want, dtype)).all()
    assert singular_values(X).dtype == dtype


def gram_error(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """eps s_1^2 / s, and at worst sqrt(eps) s_1: as documented, with a factor for the rounding of sums."""
    eps, first = torch.finfo(dtype).eps, values[..., :1].double()
    return 16 * torch.minimum(eps * first.square() / values.double(), eps**0.5 * first)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_accuracy_of_small_values(dtype: torch.dtype) -> None:
    """As documented: a few eps for singular_values, eps s_1^2 / s and at worst sqrt(eps) for the Gram matrix."""
    eps = torch.finfo(dtype).eps
    X = with_spectrum(torch.logspace(0, -9, 19), 31, 23).to(dtype)
    want = torch.linalg.svdvals(X.double())
    assert (singular_values(X).double() - want).abs().max() < 8 * eps
    error = (gram_singular_values(X).double() - want).abs()
    assert error.max() < 8 * eps**0.5
    large = want > 10 * eps**0.5
    assert (error * want)[large].max() < 8 * eps


def test_zero_rows_change_nothing() -> None:
    X = torch.randn(3, 7, 11, dtype=torch.float64)
    padded = torch.cat([X, X.new_zeros(3, 2, 11)], -2)
    assert_close(singular_values(padded)[:, :7], singular_values(X))
    assert singular_values(padded)[:, 7:].abs().max() < 1e-14


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_scale_does_not_matter(scale: float) -> None:
    X = torch.randn(5, 7)
    for values in (singular_values, gram_singular_values):
        assert_close(values(X * scale) / scale, torch.linalg.svdvals(X.double()), torch.float32)


def test_threads_do_not_change_the_result() -> None:
    X = torch.randn(2, 70, 97, 89)
    assert X.numel() > MIN_PARALLEL_WORK
    alone = gram_singular_values(X)
    with torch_threads(2):
        together, kept = gram_singular_values(X), torch.get_num_threads()
    assert kept == 2 and torch.get_num_threads() == 1
    assert ((together - alone).abs() <= 2 * gram_error(alone, torch.float32)).all()
    assert not together.requires_grad


def test_gradients_pass() -> None:
    X = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    for values in (singular_values, gram_singular_values):
        (gradient,) = torch.autograd.grad(values(X).square().sum(), X)
        assert_close(gradient, 2 * X)
    assert over_threads(torch.linalg.svdvals, X).requires_grad


def test_measures_on_known_spectra() -> None:
    s = torch.tensor([[4.0, 2.0, 2.0, 1.0], [3.0, 3.0, 3.0, 3.0]], dtype=torch.float64)
    assert_close(stable_rank(s), torch.tensor([25 / 16, 4.0]))
    p = [4 / 9, 2 / 9, 2 / 9, 1 / 9]
    assert_close(
        effective_rank(s), torch.tensor([math.exp(-sum(q * math.log(q) for q in p)), 4.0], dtype=torch.float64)
    )
    assert_close(cumulative_energy(s)[0], torch.tensor([16, 20, 24, 25], dtype=torch.float64) / 25)
    assert rank_for_energy(s, 0.9).tolist() == [3, 4]
    assert rank_for_energy(s, 0.5).tolist() == [1, 2]
    assert rank_for_energy(s, 1.0).tolist() == [4, 4]
    assert_close(second_ratio(s), torch.tensor([0.5, 1.0]))
    assert numerical_rank(s, tol=0.3).tolist() == [3, 4]


def test_rounding_counts_as_reached() -> None:
    """Of n equal values, k hold the share k / n."""
    for n in (10, 23, 97):
        s = torch.full((n,), 0.1)
        assert [int(rank_for_energy(s, k / n)) for k in range(1, n + 1)] == list(range(1, n + 1))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_collapsed_and_zero(dtype: torch.dtype) -> None:
    X = torch.randn(1, 13, dtype=dtype).expand(11, 13)
    s, zero = singular_values(X), singular_values(torch.zeros(11, 13, dtype=dtype))
    for measure in MEASURES:
        assert measure(s).item() == pytest.approx(1.0, abs=1e-4 if dtype == torch.float32 else 1e-10), measure
        assert measure(zero).item() == 0, measure
    assert second_ratio(s) < 1e-6 and second_ratio(zero) == 0 and second_ratio(s[:1]) == 0
    assert (cumulative_energy(zero) == 0).all()
    assert numerical_rank(s, size=13) == 1
