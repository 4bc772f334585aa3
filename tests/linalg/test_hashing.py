"""Numbers from their place: reproducible, spread evenly, unlike for neighbours."""

from __future__ import annotations

import torch

from attnworks.linalg.hashing import hashed


def test_the_first_numbers_never_change() -> None:
    """splitmix64 started at zero gives 0xE220A8397B1DCDAF first; ours drops the sign bit."""
    assert int(hashed(0)) == 0xE220A8397B1DCDAF & (2**63 - 1)
    assert hashed(7, torch.arange(3)).tolist() == [int(hashed(7, part)) for part in range(3)]


def test_parts_broadcast() -> None:
    table = hashed(3, torch.arange(5)[:, None], torch.arange(7))
    assert table.shape == (5, 7)
    assert int(table[2, 6]) == int(hashed(3, 2, 6))


def test_numbers_are_spread_evenly() -> None:
    numbers = hashed(11, torch.arange(101)[:, None], torch.arange(997)).double() / 2**63
    counts = torch.histc(numbers, 50, 0, 1)
    expected = numbers.numel() / 50
    assert float(((counts - expected) ** 2 / expected).sum()) < 100  # chi-square with 49 degrees: 1e-5 above 100
    flat = numbers.flatten()
    neighbours = torch.corrcoef(torch.stack([flat[:-1], flat[1:]]))[0, 1]
    assert abs(float(neighbours)) < 0.02 and numbers.min() >= 0
