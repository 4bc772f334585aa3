"""The nearest band plus small errors, against every support, a linear program, and many other matrices of the set."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.exam.structure.fits import largest_entries, small_errors
from attnworks.exam.structure.search import band_mask
from attnworks.theory.structured_sets import project_to_band, renormalised, row_report
from tests.exam.structure.structure_heads import KINDS, heads
from tests.helpers import assert_close

EPSILONS = (0.0, 0.02, 0.3)


@pytest.mark.parametrize("eps", EPSILONS)
@pytest.mark.parametrize(("n", "left", "right"), [(1, 0, 0), (2, 0, 0), (3, 0, 1), (4, 0, 1), (5, 1, 1)])
def test_no_support_is_better(n: int, left: int, right: int, eps: float) -> None:
    """Every choice of entries outside the band, in both norms; for each, the nearest values are clipped ones."""
    H, outside = heads(n), ~band_mask(n, left, right)
    sizes = H[:, outside].unsqueeze(1).abs()
    supports = torch.tensor(list(product([False, True], repeat=int(outside.sum()))), dtype=torch.bool)
    rest = torch.where(supports, (sizes - eps).clamp_min(0.0), sizes)
    l1, squares = rest.sum(-1), rest.square().sum(-1)
    for budget in (*range(supports.shape[-1] + 2), None):
        allowed = supports.sum(-1) <= (n * n if budget is None else budget)
        found = project_to_band(H, left, right, eps, budget)
        assert_close(found.l1, l1[:, allowed].amin(-1), message=f"L1, budget {budget}")
        assert_close(found.frobenius.square(), squares[:, allowed].amin(-1), message=f"Frobenius, budget {budget}")


@pytest.mark.parametrize("eps", EPSILONS)
def test_a_linear_program_agrees(eps: float) -> None:
    """min sum t subject to |h - x| <= t, x free in the band and in [-eps, eps] outside."""
    n, inside = 4, band_mask(4, 1, 0).flatten()
    eye = np.eye(n * n)
    rows = np.block([[-eye, -eye], [eye, -eye]])
    bounds = [(None, None) if free else (-eps, eps) for free in inside] + [(0, None)] * (n * n)
    for H in heads(n):
        h = H.flatten().numpy()
        solved = linprog(
            np.repeat([0.0, 1.0], n * n), A_ub=rows, b_ub=np.concatenate([-h, h]), bounds=bounds, method="highs"
        )
        assert project_to_band(H, 1, 0, eps).l1.item() == pytest.approx(
            solved.fun, abs=1e-6
        )  # the solver stops at 1e-7


@pytest.mark.parametrize("eps", EPSILONS[1:])
def test_ten_thousand_other_matrices_are_no_nearer(eps: float) -> None:
    n, budget, count = 32, 37, 10_000
    source = torch.Generator().manual_seed(43)
    inside = band_mask(n, 2, 1)
    for H in heads(n)[[KINDS.index("soft"), KINDS.index("sharp")]]:
        found = project_to_band(H, 2, 1, eps, budget)
        outside = H[~inside]
        # supports drawn by size, and values from clipped ones to any
        places = torch.multinomial(
            outside.expand(count, -1) ** torch.rand(count, 1, generator=source), budget, generator=source
        )
        values = outside[places] + (torch.rand(count, budget, generator=source).double() - 0.5) * eps
        rest = (outside - torch.zeros(count, len(outside)).double().scatter_(-1, places, values.clamp(-eps, eps))).abs()
        off_band = (torch.rand(count, int(inside.sum()), generator=source) < 0.01).double() * 0.1
        assert (rest.sum(-1) + off_band.sum(-1)).min() >= found.l1 - 1e-12
        assert (rest.square().sum(-1) + off_band.square().sum(-1)).min().sqrt() >= found.frobenius - 1e-12


class Problem(NamedTuple):
    H: Tensor
    left: int
    right: int
    eps: float
    budget: int | None


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    n = draw(st.integers(1, 7))
    H = heads(n, draw(st.integers(0, 10_000)))
    left, right = draw(st.integers(0, 3)), draw(st.integers(0, 3))
    return Problem(H, left, right, draw(st.sampled_from(EPSILONS)), draw(st.none() | st.integers(0, n * n)))


@given(problems())
def test_laws_of_the_projection(problem: Problem) -> None:
    H, left, right, eps, budget = problem
    found = project_to_band(*problem)
    inside = band_mask(H.shape[-1], left, right)
    assert torch.equal(found.B, H * inside)
    assert torch.equal(found.E, found.E * ~inside) and (found.E.abs() <= eps).all()
    if budget is not None:
        assert ((found.E != 0).sum((-2, -1)) <= budget).all()
    assert_close(found.l1, (H - found.X).abs().sum((-2, -1)))
    assert_close(found.frobenius, torch.linalg.matrix_norm(H - found.X))
    again = project_to_band(found.X, left, right, eps, budget)
    assert torch.equal(again.X, found.X) and not again.l1.any()


def test_the_set_with_a_budget_is_not_convex() -> None:
    """S4.144: both ends are their own projections, the midpoint has two errors where one is allowed."""
    first, second = torch.eye(3), torch.eye(3)
    first[0, 2] = second[2, 0] = 0.1
    for end in (first, second):
        assert torch.equal(project_to_band(end, 0, 0, 0.1, 1).X, end)
    midpoint = (first + second) / 2
    assert project_to_band(midpoint, 0, 0, 0.1, 1).l1.item() == pytest.approx(0.05)
    assert project_to_band(midpoint, 0, 0, 0.1).l1.item() == 0


@pytest.mark.parametrize("larger", [0.4, 0.5])
def test_two_nearest_in_l1_and_the_rule_that_chooses(larger: float) -> None:
    """S4.147: h = (.4, .4) or (.5, .3), eps = .1, one error: .7 either way; the larger |h| first, then the first."""
    H = torch.eye(3, dtype=torch.float64)
    H[0, 2], H[2, 0] = 0.8 - larger, larger
    either = [torch.eye(3).double(), torch.eye(3).double()]
    either[0][0, 2] = either[1][2, 0] = 0.1
    assert [(H - X).abs().sum().item() for X in either] == [pytest.approx(0.7)] * 2
    found = project_to_band(H, 0, 0, 0.1, 1)
    assert torch.equal(found.X, either[larger > 0.4])
    assert found.l1.item() == pytest.approx(0.7)
    assert found.frobenius.item() ** 2 == pytest.approx(0.25)


def test_equal_values_are_taken_in_order_and_never_more_than_asked() -> None:
    E = small_errors(torch.tensor([[[0.5, -0.5, 0.1], [0.5, 0.7, 0.5]], torch.ones(2, 3).tolist()]), 0.2, 3)
    assert E.tolist() == torch.tensor([[[0.2, -0.2, 0], [0, 0.2, 0]], [[0.2, 0.2, 0.2], [0, 0, 0]]]).tolist()
    where = largest_entries(torch.tensor([3.0, 1.0, 3.0, 2.0, 3.0]), 2)
    assert sorted(where.tolist()) == [0, 2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    H = heads(7)[:2].to(dtype)
    found, want = project_to_band(H, 1, 1, 0.02, 5), project_to_band(H.double(), 1, 1, 0.02, 5)
    assert found.E.dtype == dtype
    assert_close(found.X, want.X)
    assert_close(found.l1, want.l1)


def test_gradients_pass_through() -> None:
    H = heads(5)[0].requires_grad_()
    found = project_to_band(H, 0, 0, 0.02, 7)
    (gradient,) = torch.autograd.grad(found.l1, H)
    rest = (H - found.X).detach()
    assert_close(gradient, rest.sign())
    found = project_to_band(H, 0, 0, 0.02, 7)
    (gradient,) = torch.autograd.grad(found.frobenius, H)
    assert_close(gradient, rest / found.frobenius)


def test_rows_afterwards() -> None:
    X = torch.tensor([[0.5, -0.1, 0.3], [0.0, 0.0, 0.0]])
    sums, negatives = row_report(X)
    assert_close(sums, torch.tensor([0.7, 0.0]))
    assert negatives.item() == 1
    assert_close(renormalised(X), torch.tensor([[0.625, 0.0, 0.375], [0.0, 0.0, 0.0]]))


def test_a_head_of_weights_gives_no_negative_entries() -> None:
    H = heads(7)[:4]
    X = project_to_band(H, 1, 1, 0.02, 11).X
    assert not row_report(X).negatives.any()
    assert_close(renormalised(X).sum(-1), torch.ones(4, 7).double())


@pytest.mark.parametrize(("eps", "budget", "got"), [(-0.1, None, "eps=-0.1"), (0.1, -1, "budget=-1")])
def test_impossible_errors_are_refused(eps: float, budget: int | None, got: str) -> None:
    with pytest.raises(UsageError, match=f"{got}: expected a .*number from 0, got"):
        project_to_band(torch.eye(3), 0, 0, eps, budget)
