"""Matrix norms: their definitions, and what the composite one is and is not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.errors import UnknownNameError
from attnworks.exam.linalg.residual import NORMS, composite, quasi_norm_constant
from tests.helpers import assert_close


def test_each_on_a_matrix_done_by_hand() -> None:
    X = torch.tensor([[3.0, -4.0], [0.0, 1.0], [-2.0, 0.0]], dtype=torch.float64)
    largest = torch.linalg.eigvalsh(X.T @ X)[-1].sqrt()
    want = {"one": 5.0, "inf": 7.0, "max": 4.0, "frobenius": 30**0.5, "composite": 35**0.5, "spectral": largest.item()}
    assert set(NORMS) == set(want)
    for name, value in want.items():
        assert NORMS[name](X).item() == pytest.approx(value, rel=1e-12), name


@pytest.mark.parametrize("name", list(NORMS))
def test_batched_zero_and_half(name: str) -> None:
    X = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    got = NORMS[name](X)
    assert got.shape == (2, 3)
    assert_close(got[1, 2], NORMS[name](X[1, 2]))
    assert_close(NORMS[name](-2.5 * X), 2.5 * got)
    assert (NORMS[name](torch.zeros(3, 5, 7)) == 0).all()
    assert NORMS[name](X.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize(("m", "n"), [(2, 2), (3, 7), (5, 2), (11, 11)])
def test_the_quasi_norm_constant_is_attained(m: int, n: int) -> None:
    """D3: A = 1 e_1^T and B = e_1 1^T, scaled to the same size."""
    A, B = torch.zeros(m, n, dtype=torch.float64), torch.zeros(m, n, dtype=torch.float64)
    A[:, 0], B[0] = 1.0, 1.0
    A, B = A / composite(A), B / composite(B)
    ratio = max((composite(A - sign * B) / 2).item() for sign in (1, -1))
    assert ratio == pytest.approx(quasi_norm_constant(m, n), rel=1e-12)
    assert ratio > 1


@given(st.integers(0, 10_000), st.integers(1, 7), st.integers(1, 7), st.integers(1, 5))
def test_composite_laws(seed: int, m: int, n: int, p: int) -> None:
    source = torch.Generator().manual_seed(seed)
    A, B = torch.randn(2, m, n, generator=source, dtype=torch.float64).pow(3)
    C = torch.randn(n, p, generator=source, dtype=torch.float64)
    size, exact = composite(A), torch.linalg.matrix_norm(A, 2)
    assert composite(A + B) <= quasi_norm_constant(m, n) * (size + composite(B)) * (1 + 1e-12)
    assert composite(A @ C) <= size * composite(C) * (1 + 1e-12)
    assert exact <= size * (1 + 1e-12) and size <= (m * n) ** 0.25 * exact * (1 + 1e-12)


def test_unknown_norms_are_named() -> None:
    with pytest.raises(UnknownNameError, match="composite"):
        NORMS["composit"]
