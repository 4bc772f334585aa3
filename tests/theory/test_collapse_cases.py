"""Closed forms of the inputs that break the published bounds, held to attention computed on them."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.exam.linalg.bounds import published_bound
from attnworks.exam.linalg.residual import composite, induced_inf, residual, residual_norm
from attnworks.theory.collapse_cases import (
    Hub,
    hub,
    hub_least,
    hub_mean,
    hub_weights,
    own_weight_excess,
    row_distances,
    self_keyed_sharpness,
    signed_head,
    two_heads,
)
from tests.helpers import assert_close


def attention(case: Hub) -> Tensor:
    return (case.w * case.X @ case.X.mT).softmax(-1)


def signed_value(n: int) -> Tensor:
    """W = s e_0^T with s = (1, -1, 1, -1, ...): one column of n signs, every row sum 1, every other column zero."""
    W = torch.zeros(n, n, dtype=torch.float64)
    W[::2, 0], W[1::2, 0] = 1.0, -1.0
    return W


def repeated_value(n: int) -> Tensor:
    """W = e_0 1^T: one row of ones."""
    W = torch.zeros(n, n, dtype=torch.float64)
    W[0] = 1.0
    return W


cases = pytest.mark.parametrize(
    "case",
    [hub(4), hub(11), hub(30), Hub(13, 2.0, 0.5), Hub(8, 0.3, 5.0), Hub(7, 50.0, 40.0)],
    ids=lambda case: f"{case.n}",
)


@cases
def test_weights_by_kind_of_row(case: Hub) -> None:
    """Row 0 is the hub, row 1 active and the last one idle; "another row" is any that is neither hub nor itself."""
    P, weights = attention(case), hub_weights(case)
    kinds = [0, 1, case.n - 1]
    assert case.active + case.idle + 1 == case.n
    assert_close(weights.on_hub, P[kinds, 0])
    assert_close(weights.on_self[1:], P[kinds, kinds][1:])
    assert_close(weights.on_other, torch.stack([P[0, 2], P[1, 2], P[-1, 2]]))
    assert_close((P[1 : case.active + 1] - P[1]).abs().sum(-1)[1:] / 2, (P[1, 1] - P[1, 2]).expand(case.active - 1))


@cases
def test_residual_from_the_mean(case: Hub) -> None:
    """Both sides as attention has them, with W_QK = w I, W_V = I and no other scale."""
    Y, mean = attention(case) @ case.X, hub_mean(case)
    assert mean.residual == pytest.approx(composite(residual(Y)).item(), rel=1e-9)
    assert mean.allowed == pytest.approx(published_bound(composite(residual(case.X)), 4 * case.w).item(), rel=1e-9)


@cases
def test_distances_of_rows_by_kind(case: Hub) -> None:
    """Row 0 is the hub, rows 1 and 2 are active, the last one is idle; no two rows are further apart."""
    Y, distances = attention(case) @ case.X, row_distances(case)
    pairs = [(0, 1), (0, case.n - 1), (1, 2), (1, case.n - 1)]
    assert_close(distances, torch.stack([(Y[i] - Y[k]).abs().sum() for i, k in pairs]))
    assert_close(distances.max(), torch.cdist(Y, Y, p=1).max())


@cases
def test_no_row_leaves_less_than_the_lower_bound(case: Hub) -> None:
    """min_y by linear programs is at least the bound, and min_x of the input at most one, up to their precision."""
    Y, least = attention(case) @ case.X, hub_least(case)
    assert least.residual <= residual_norm(Y, "composite").item() * (1 + 1e-6)
    assert residual_norm(case.X, "composite").item() <= 1 + 1e-6
    assert least.allowed == 4 * case.w


def test_published_bound_breaks_from_many_rows_on() -> None:
    """S0.17: for the least residual at 9000 rows, for that from the mean at 2 * 10^5; not for few."""
    assert hub_least(hub(9000)).ratio == pytest.approx(1.052, abs=1e-3)
    assert hub_least(hub(7000)).ratio < 1 < hub_least(hub(8500)).ratio
    assert hub_mean(hub(2 * 10**5)).ratio == pytest.approx(1.10, abs=0.01)
    assert hub_least(hub(1000)).ratio < 1 and hub_mean(hub(1000)).ratio < 1


@pytest.mark.parametrize("n", [2, 8, 30])
def test_rows_that_look_at_themselves(n: int) -> None:
    w = self_keyed_sharpness(n)
    P = (w * torch.eye(n, dtype=torch.float64)).softmax(-1)
    assert own_weight_excess(n, w) == pytest.approx((P[0, 0] - P[0, 1]).item(), rel=1e-12)
    assert P[0, 0].item() == pytest.approx(math.exp(3) / (math.exp(3) + 1 - 1 / n), rel=1e-12)


@pytest.mark.parametrize("n", [2, 6, 12])
def test_column_of_signs(n: int) -> None:
    """min_y is attained at y = 0, as half of the column is delta and half -delta."""
    W, head = signed_value(n), signed_head(n)
    w = self_keyed_sharpness(n)
    Y = (w * torch.eye(n, dtype=torch.float64)).softmax(-1) @ W
    assert head.residual == pytest.approx(residual_norm(Y, "composite").item(), rel=1e-6)
    assert head.allowed == pytest.approx(4 * w * induced_inf(W).item())
    with_composite = signed_head(n, norm_of_value=composite(W).item())
    assert with_composite.allowed == pytest.approx(4 * w * math.sqrt(n))


@pytest.mark.parametrize("n", [2, 6, 12])
def test_two_heads_together(n: int) -> None:
    """A row of ones and a column of signs: no y leaves less than the bound, and few choices leave much more."""
    values, w = (repeated_value(n), signed_value(n)), self_keyed_sharpness(n)
    P = (w * torch.eye(n, dtype=torch.float64)).softmax(-1)
    least = residual_norm(sum((P @ W for W in values), torch.zeros_like(P)), "composite").item()
    assert two_heads(n).residual <= least * (1 + 1e-6) <= 3 * own_weight_excess(n, w) * n
    assert two_heads(n).allowed == pytest.approx(4 * 2 * w * max(composite(W).item() for W in values))


def test_triangle_inequality_of_heads_breaks_from_many_rows_on() -> None:
    """S1.13 and S1.14."""
    assert signed_head(4096).ratio == pytest.approx(1.35, abs=0.01)
    assert two_heads(2**18).ratio == pytest.approx(2.79, abs=0.01)


def test_sizes_that_have_no_such_case() -> None:
    with pytest.raises(UsageError, match="n=3: expected a whole number from 4"):
        hub(3)
    for case in (signed_head, two_heads):
        with pytest.raises(UsageError, match=r"7 rows of both signs: expected an even number.*ask for 8 rows"):
            case(7)
        with pytest.raises(UsageError, match="ask for 2 rows"):
            case(0)
