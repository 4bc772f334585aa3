"""The nearest matrix of lower rank: Eckart and Young, and a gradient that only gaps across the cut can spoil."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnworks.attention.truncated import leading
from tests.helpers import assert_close

SHAPES = [(5, 7), (7, 5), (5, 5), (3, 2, 7, 5)]


def matrix(*shape: int, seed: int = 3) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def with_values(*values: float, i: int = 7, j: int = 5) -> Tensor:
    U, V = torch.linalg.qr(matrix(i, j))[0], torch.linalg.qr(matrix(j, j, seed=5))[0]
    return U * torch.tensor(values, dtype=torch.float64) @ V.mT


def by_svd(X: Tensor, rank: int) -> Tensor:
    """The same with torch's own gradient, which divides by the gap of every two values."""
    U, s, Vh = torch.linalg.svd(X, full_matrices=False)
    return (U[..., :rank] * s[..., None, :rank]) @ Vh[..., :rank, :]


def gradient(f: Tensor, X: Tensor) -> Tensor:
    (found,) = torch.autograd.grad((f * matrix(*f.shape, seed=11).to(f.dtype)).sum(), X)
    return found


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rank", [1, 2, 4])
def test_rank_and_distance(shape: tuple[int, ...], rank: int) -> None:
    """||X - X_r||_F^2 = sum_{a > r} s_a^2, and X_r has rank r."""
    X = matrix(*shape)
    X_r, s = leading(X, rank), torch.linalg.svdvals(X)
    assert X_r.shape == X.shape
    assert_close((X - X_r).square().sum((-2, -1)), s[..., rank:].square().sum(-1))
    assert_close(torch.linalg.svdvals(X_r)[..., :rank], s[..., :rank])
    assert (torch.linalg.svdvals(X_r)[..., rank:] < 1e-12).all()


@pytest.mark.parametrize("rank", [5, 6, 100])
def test_a_matrix_of_that_rank_is_left_alone(rank: int) -> None:
    X = matrix(7, 5)
    assert leading(X, rank) is X


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("rank", [1, 3, 4])
def test_the_gradient_is_exact(shape: tuple[int, ...], rank: int) -> None:
    X = matrix(*shape).requires_grad_()
    assert torch.autograd.gradcheck(lambda X: leading(X, rank), (X,))
    assert_close(gradient(leading(X, rank), X), gradient(by_svd(X, rank), X))


@pytest.mark.parametrize(
    "values",
    [(3, 3, 1, 0.5, 0.2), (3, 2, 1, 1, 1), (3, 3, 1, 1, 1), (3, 2, 0, 0, 0)],
    ids=["kept", "dropped", "both", "zeros"],
)
def test_equal_values_on_one_side_of_the_cut_do_no_harm(values: tuple[float, ...]) -> None:
    X = with_values(*values).requires_grad_()
    assert torch.autograd.gradcheck(lambda X: leading(X, 2), (X,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_nothing_explodes_where_there_is_no_gradient(dtype: torch.dtype) -> None:
    """Equal values across the cut, and a rank that is not there: some directions are held still."""
    for X in (
        torch.eye(5),
        torch.zeros(7, 5),
        with_values(3, 2, 2, 2, 1),
        with_values(3, 0, 0, 0, 0),
        torch.ones(5, 7),
    ):
        X = X.to(dtype).requires_grad_()
        found = gradient(leading(X, 2), X)
        assert found.isfinite().all() and found.norm() < 10 * matrix(*X.shape, seed=11).norm()


def test_matrices_of_a_batch_do_not_mix() -> None:
    X = torch.stack([torch.zeros(7, 5).double(), matrix(7, 5), with_values(3, 3, 3, 3, 3)])
    for whole, single in zip(leading(X, 2), X, strict=True):
        assert_close(whole, leading(single, 2))
