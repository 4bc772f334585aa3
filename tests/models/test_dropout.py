"""Dropout: the right share, the right scale, the right gradient, and the same again with the same seed."""

from __future__ import annotations

import pytest
import torch

from attnworks.models.layers import DROPOUT_LEVELS, dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_share_and_mean(p: float) -> None:
    n = 400_003
    y = dropout(torch.ones(n, dtype=torch.float64), p)
    deviation = (p * (1 - p) / n) ** 0.5
    assert (y == 0).double().mean().item() == pytest.approx(p, abs=5 * deviation)
    assert y.mean().item() == pytest.approx(1.0, abs=5 * deviation / (1 - p))
    assert set(y.unique().tolist()) == {0.0, DROPOUT_LEVELS / (DROPOUT_LEVELS - round(p * DROPOUT_LEVELS))}


def test_entries_are_independent() -> None:
    """Neighbours share a random number; what they take of it must not be related."""
    kept = (dropout(torch.ones(100_000, 4), 0.3) > 0).double()
    correlation = torch.corrcoef(kept.T)
    assert (correlation - torch.eye(4)).abs().max() < 0.02
    assert (kept.mean(0) - 0.7).abs().max() < 0.01


@pytest.mark.parametrize("p", [0.0, 0.3, 1.0, 1e-9])
def test_extremes(p: float) -> None:
    x = torch.randn(5, 7)
    y = dropout(x, p)
    if p == 1.0:
        assert not y.any()
    elif p < 1e-6:
        assert torch.equal(y, x)
    else:
        assert y.shape == x.shape


def test_gradient_passes_where_values_do() -> None:
    x = torch.randn(7, 11, requires_grad=True)
    y = dropout(x, 0.4)
    y.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad * x, y)


def test_the_seed_decides() -> None:
    x = torch.ones(3, 5, 7)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(dropout(x, 0.5))
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_types_stay() -> None:
    assert dropout(torch.ones(5, dtype=torch.bfloat16), 0.5).dtype == torch.bfloat16
