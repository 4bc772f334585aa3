"""The best step along a line: parabolas in closed form, valleys far and near, walls, noise and how often f is asked."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.reshape.growth.solvers import (
    MAX_DOUBLINGS,
    MAX_REFINEMENTS,
    MAX_SHRINKINGS,
    LineMinimum,
    line_search,
    shortened,
)
from tests.helpers import assert_close


class Asked:
    """A function that counts how often it is asked, and where."""

    def __init__(self, function: Callable[[float], float]) -> None:
        self.function, self.at = function, list[float]()

    def __call__(self, t: float) -> float:
        self.at.append(t)
        return self.function(t)


@given(best=st.floats(0.01, 50), curve=st.floats(0.01, 100), floor=st.floats(-3, 3))
def test_parabolas_are_solved(best: float, curve: float, floor: float) -> None:
    """f(t) = c (t - m)^2 + d: the parabola through any three points is f itself, so that the vertex m is found."""

    def f(t: float) -> float:
        return curve * (t - best) ** 2 + floor

    step, value = line_search(f, 0.03, f(0.0))
    assert step == pytest.approx(best, rel=1e-3) and value == pytest.approx(floor, abs=1e-3 * curve * best**2 + 1e-9)


@given(start=st.floats(1e-3, 1e2), best=st.floats(1e-2, 1e2))
def test_the_value_is_one_that_was_measured(start: float, best: float) -> None:
    f = Asked(lambda t: math.cosh(min((t - best) / best, 50.0)))
    step, value = line_search(f, start, f.function(0.0))
    assert value == f.function(step) <= f.function(0.0) and (step == 0 or step in f.at)
    assert len(f.at) == len(set(f.at)) <= MAX_SHRINKINGS + MAX_DOUBLINGS + 1 + MAX_REFINEMENTS, "nothing is asked twice"
    assert value == min(f.function(t) for t in [0.0, *f.at])


def test_a_start_that_is_too_far_is_shrunk() -> None:
    step, value = line_search(lambda t: (t - 0.1) ** 2, 8.0, 0.01)
    assert step == pytest.approx(0.1) and value == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(
    "f", [lambda t: t, lambda t: 0.0, lambda t: 1.0 + t * t, lambda t: math.inf, lambda t: math.nan]
)
def test_where_nothing_is_better_one_stays(f: Callable[[float], float]) -> None:
    asked = Asked(f)
    assert line_search(asked, 1.0, 0.0) == LineMinimum(0.0, 0.0)
    assert len(asked.at) == MAX_SHRINKINGS and min(asked.at) == 1.0 / 4 ** (MAX_SHRINKINGS - 1)


@pytest.mark.parametrize("beyond", [math.nan, math.inf])
def test_walls(beyond: float) -> None:
    """Values that are not finite count as very large, and no parabola is put through them."""
    step, value = line_search(lambda t: -t if t <= 3.0 else beyond, 1.0, 0.0)
    assert step == 2.0 and value == -2.0


def test_a_function_that_falls_for_ever() -> None:
    asked = Asked(lambda t: -t)
    step, value = line_search(asked, 1.0, 0.0)
    assert step == 2.0**MAX_DOUBLINGS == -value and len(asked.at) == MAX_DOUBLINGS + 1


# Fewer columns -------------------------------------------------------------------------------------------------------


@given(k=st.integers(0, 5), seed=st.integers(0, 99))
def test_fewer_columns_as_states_see_them(k: int, seed: int) -> None:
    """With X L = Q_x R_x and Y R = Q_y R_y, X L R^T Y^T = Q_x (R_x R_y^T) Q_y^T. By Eckart and Young its best rank k is
    its truncated SVD, which U and V of the small product give; X (L R_x^-1 U) = Q_x U, so that it is reached.
    """
    draw = torch.Generator().manual_seed(seed)
    left, right, X, Y = (
        torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((7, 5), (11, 5), (23, 7), (29, 11))
    )
    one, other = shortened(left, right, k, X, Y)
    assert one.shape == (7, k) and other.shape == (11, k)
    U, s, Vh = torch.linalg.svd(X @ left @ right.mT @ Y.mT, full_matrices=False)
    assert_close(X @ one @ other.mT @ Y.mT, U[:, :k] * s[:k] @ Vh[:k])
    assert_close((X @ one).norm(dim=0), (Y @ other).norm(dim=0))
    if k == 5:
        assert_close(one @ other.mT, left @ right.mT)


def test_states_of_low_rank() -> None:
    """Columns that the states do not see may be anything; the product as they see it is still the best."""
    draw = torch.Generator().manual_seed(0)
    left, right, X, Y = (
        torch.randn(shape, generator=draw, dtype=torch.float64) for shape in ((7, 5), (11, 5), (23, 7), (29, 11))
    )
    X = X[:, :3] @ X[:3, :]
    one, other = shortened(left, right, 2, X, Y)
    U, s, Vh = torch.linalg.svd(X @ left @ right.mT @ Y.mT, full_matrices=False)
    assert_close(X @ one @ other.mT @ Y.mT, U[:, :2] * s[:2] @ Vh[:2])
    assert one.isfinite().all() and other.isfinite().all()
