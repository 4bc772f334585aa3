"""Products with Jacobians: which column each entry of a tensor is made of."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.hf.evidence.reach import columns_of, head_reach, jvp, live, one_to_one, one_to_one_back, vjp

ROWS, COLUMNS = 3, 83
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def leaf(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()


def test_products_are_those_of_the_jacobian() -> None:
    """Against the Jacobian of torch.autograd.functional."""
    x, direction, weights = leaf(5), torch.randn(5).double(), torch.randn(7, 5).double()

    def function(x: Tensor) -> Tensor:
        return (weights @ x).tanh()

    J = torch.autograd.functional.jacobian(function, x.detach())
    assert isinstance(J, Tensor)
    (found,) = jvp(function(x), x, [direction]) or [torch.empty(0)]
    torch.testing.assert_close(found, J @ direction)
    cotangent = torch.randn(7).double()
    (back,) = vjp(function(x), [x], cotangent)
    torch.testing.assert_close(back, cotangent @ J)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("count", [7, COLUMNS, 4099])
def test_moved_columns(count: int, dtype: torch.dtype) -> None:
    x = leaf(ROWS, count, dtype=dtype)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    found = one_to_one(x[:, order] * -1.5, x)
    assert found is not None
    assert torch.equal(found.columns, order.expand(ROWS, -1)) and bool((found.factors == -1.5).all())
    back = one_to_one_back(x[:, order], x)
    assert back is not None and torch.equal(order[back.columns], torch.arange(count).expand(ROWS, -1))


def test_repeated_columns_come_from_one_and_go_to_several() -> None:
    x = leaf(ROWS, COLUMNS)
    twice = x.repeat_interleave(2, -1)
    found = one_to_one(twice, x)
    assert found is not None and torch.equal(found.columns[0], torch.arange(2 * COLUMNS) // 2)
    assert one_to_one_back(twice, x) is None


@given(st.integers(0, COLUMNS - 1), st.integers(0, COLUMNS - 1), st.floats(-3, 3).filter(lambda f: abs(f) > 0.01))
def test_a_mixture_of_two_columns_is_no_column(first: int, second: int, share: float) -> None:
    x = leaf(ROWS, COLUMNS, dtype=torch.float32)
    mixed = x[:, first] + share * x[:, second]
    found = one_to_one(mixed, x)
    assert (found is None) == (first != second or abs(1 + share) < 1e-6)


def test_a_norm_and_a_rotation_are_no_columns() -> None:
    x = leaf(ROWS, COLUMNS)
    assert one_to_one(torch.nn.functional.rms_norm(x, (COLUMNS,)), x) is None
    assert one_to_one(x * 0.6 + x.roll(1, -1) * 0.8, x) is None


def test_reach_of_heads_and_live_sources() -> None:
    x, other = leaf(2, ROWS, 15), leaf(2, ROWS, 15)
    heads = x.unflatten(-1, (3, 5)).transpose(1, 2)
    assert live(heads, [other, x]) == [1]
    nothing, reach = head_reach(heads, [other, x])
    assert nothing is None and reach is not None
    expected = torch.eye(3, dtype=torch.bool).repeat_interleave(5, 1)
    assert torch.equal(columns_of(reach), expected)
