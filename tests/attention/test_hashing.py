"""Numbers from their place: reproducible, spread evenly, unlike for neighbours."""

from __future__ import annotations

import numpy as np
import torch

from attnworks.attention.patterns import hashed


def test_the_first_numbers_never_change() -> None:
    """splitmix64 started at zero gives 0xE220A8397B1DCDAF first."""
    assert int(hashed(0)[0]) == 0xE220A8397B1DCDAF
    assert hashed(7, np.arange(3)).tolist() == [int(hashed(7, part)[0]) for part in range(3)]


def test_parts_broadcast() -> None:
    table = hashed(3, np.arange(5)[:, None], np.arange(7))
    assert table.shape == (5, 7)
    assert int(table[2, 6]) == int(hashed(3, 2, 6)[0])


def test_numbers_are_spread_evenly() -> None:
    numbers = torch.tensor(hashed(11, np.arange(101)[:, None], np.arange(997)) / 2.0**64)
    counts = torch.histc(numbers, 50, 0, 1)
    expected = numbers.numel() / 50
    assert float(((counts - expected) ** 2 / expected).sum()) < 100  # chi-square with 49 degrees: 1e-5 above 100
    flat = numbers.flatten()
    neighbours = torch.corrcoef(torch.stack([flat[:-1], flat[1:]]))[0, 1]
    assert abs(float(neighbours)) < 0.02 and numbers.min() >= 0
