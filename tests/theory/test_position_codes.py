"""The complex form of the sinusoid, its longest wavelength, and how near two of its codes come."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.errors import UsageError
from attnworks.models.layers import sinusoid
from attnworks.theory.claims.s4_positions import least_distance, longest_wavelength, sinusoid_complex
from tests.helpers import assert_close

PAIRS = st.integers(1, 11)
BASES = st.sampled_from([1.0, 10.0, 1e4])


@given(pairs=PAIRS, base=BASES)
def test_complex_form_holds_sines_and_cosines(pairs: int, base: float) -> None:
    """S4.21: exp(i w t) = cos(w t) + i sin(w t), and shifts are products: exp(i w (t + s)) = exp(i w t) exp(i w s)."""
    t = torch.arange(31)
    code, z = sinusoid(t, 2 * pairs, base), sinusoid_complex(t, 2 * pairs, base)
    assert z.shape == (31, pairs) and z.dtype == torch.complex128
    assert_close(z.imag, code[:, 0::2])
    assert_close(z.real, code[:, 1::2])
    assert_close((z[:17] * z[7]).real, z[7:24].real)


@given(n=st.integers(2, 53), pairs=PAIRS, base=BASES)
def test_least_distance_is_that_of_all_pairs(n: int, pairs: int, base: float) -> None:
    """|e^{ia} - e^{ib}| = 2 |sin((a - b) / 2)|, and squares add up over the frequencies."""
    code = sinusoid(torch.arange(n), 2 * pairs, base)
    distances = torch.linalg.vector_norm(code[:, None] - code[None], dim=-1)
    nearest = distances[~torch.eye(n, dtype=torch.bool)].min()
    assert_close(torch.tensor(least_distance(n, 2 * pairs, base), dtype=torch.float64), nearest)


def test_codes_of_two_entries_nearly_come_back() -> None:
    """710 is nearly 113 * 2 pi (355 / 113 is nearly pi), and nothing below 711 comes nearer."""
    assert least_distance(711, 2) == pytest.approx(abs(710 - 226 * math.pi), rel=1e-6)
    assert least_distance(710, 2) > 100 * least_distance(711, 2)


def test_one_position_has_no_distance() -> None:
    with pytest.raises(UsageError) as caught:
        least_distance(1, 6)
    assert str(caught.value) == ("n=1: expected a whole number from 2, got 1; one position has no distance to another")


@given(pairs=PAIRS, base=BASES)
def test_the_slowest_pair_comes_back_after_the_longest_wavelength(pairs: int, base: float) -> None:
    wavelength = torch.tensor([0.0, longest_wavelength(2 * pairs, base)], dtype=torch.float64)
    first, again = sinusoid(wavelength, 2 * pairs, base)[:, -2:]
    assert_close(again, first)
    assert_close(sinusoid(wavelength / 2, 2 * pairs, base)[1, -1], -first[-1])
