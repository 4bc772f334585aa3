"""The scaled map of Johnson and Lindenstrauss: equal tails, the exponent that the constant 8 needs, and real maps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.errors import UsageError
from attnworks.theory.random_projection import (
    distortion,
    enough_rows,
    equal_tails,
    shrunk_map,
    tail_exponent,
    union_failure,
)
from tests.helpers import assert_close

SHARES = st.floats(1e-3, 0.999)


@given(SHARES)
def test_both_tails_have_the_same_exponent_and_it_is_enough(eps: float) -> None:
    """I(a) = I(b) for a = (1 - eps) / s and b = (1 + eps) / s iff b - a = ln(b / a), that is 2 eps / s = ln(b / a)."""
    s = equal_tails(eps)
    assert s == pytest.approx(2 * eps / math.log((1 + eps) / (1 - eps)))
    low, high = ((1 + side * eps) / s for side in (-1, 1))
    assert low - 1 - math.log(low) == pytest.approx(high - 1 - math.log(high), abs=1e-12)
    assert tail_exponent(eps, s) >= eps**2 / 2 - 1e-12


@given(SHARES)
def test_no_other_scale_has_a_larger_exponent(eps: float) -> None:
    best = tail_exponent(eps, equal_tails(eps))
    assert all(tail_exponent(eps, factor * equal_tails(eps)) <= best + 1e-12 for factor in (0.9, 0.99, 1.01, 1.1))


@given(st.integers(2, 10**6), st.floats(0.05, 0.99))
def test_the_lemma(m: int, eps: float) -> None:
    """m (m - 1) / 2 pairs fail with at most 2 exp(-k eps^2 / 4) < 2 m^-2 each, at k > 8 ln m / eps^2."""
    k = enough_rows(m, eps)
    assert k > 8 * math.log(m) / eps**2 >= k - 1
    assert union_failure(m, k, eps, equal_tails(eps)) <= (m - 1) / m


def test_without_the_scale_the_union_bound_misses() -> None:
    k = enough_rows(100, 0.9)
    assert k == 46
    assert union_failure(100, k, 0.9) == pytest.approx(1.10, abs=0.01)
    assert union_failure(100, k, 0.9, equal_tails(0.9)) < 1e-6


def test_the_chance_of_a_pair_is_that_of_drawn_maps() -> None:
    """With two points, the union is one pair: the share of maps that change its distance too much."""
    k, eps, trials, source = 5, 0.5, 1009, torch.Generator().manual_seed(29)
    X = torch.randn(2, 3, generator=source, dtype=torch.float64)
    changed = torch.stack([distortion(X, shrunk_map(k, 3, eps, source)) for _ in range(trials)]) > eps
    want = union_failure(2, k, eps, equal_tails(eps))
    assert changed.double().mean().item() == pytest.approx(want, abs=5 * math.sqrt(want * (1 - want) / trials))


def test_entries_have_the_variance_that_shrinks_the_map() -> None:
    """k E f_ij^2 = s; the mean of m squares of normal numbers has the relative deviation sqrt(2 / m)."""
    k, n, eps = 101, 103, 0.9
    squares = shrunk_map(k, n, eps, torch.Generator().manual_seed(31)).square()
    assert k * squares.mean().item() == pytest.approx(equal_tails(eps), rel=5 * math.sqrt(2 / (k * n)))


def test_distortion_by_hand() -> None:
    """Points 0, (1, 0) and (0, 2) under diag(2, 1): squared distances 1, 4, 5 become 4, 4, 8."""
    X = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    assert_close(distortion(X, torch.diag(torch.tensor([2.0, 1.0], dtype=torch.float64))), torch.tensor(3.0).double())
    assert distortion(X[:1], torch.eye(2).double()) == 0


@pytest.mark.parametrize("eps", [0.0, 1.0, -0.2])
def test_shares_outside_of_the_open_interval_are_refused(eps: float) -> None:
    for refuse in (equal_tails, tail_exponent, lambda eps: enough_rows(5, eps), lambda eps: union_failure(5, 7, eps)):
        with pytest.raises(UsageError, match="a number above 0 and below 1"):
            refuse(eps)
