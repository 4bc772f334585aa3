"""The error of a random projection has the mean square that the formula says."""

from __future__ import annotations

import pytest
import torch

from attnworks.linalg.projection import sketch_error, sketch_error_formula


@pytest.mark.parametrize("k", [3, 11])
def test_monte_carlo_agrees_with_the_formula(k: int) -> None:
    trials = 4001
    P, V = torch.randn(5, 7, dtype=torch.float64).softmax(-1), torch.randn(7, 2, dtype=torch.float64)
    source = torch.Generator().manual_seed(23)
    squares = sketch_error(P.expand(trials, 5, 7), V.expand(trials, 7, 2), k, source).square()
    deviation = (squares.std() / trials**0.5).item()
    want = sketch_error_formula(P, V, k).square().item()
    assert squares.mean().item() == pytest.approx(want, abs=4 * deviation)
    assert deviation < 0.05 * want


def test_one_column_is_the_formula_of_the_claims() -> None:
    """D8: sqrt((1 + ||P||_F^2 ||w||^2 / ||P w||^2) / k)."""
    P, w, k = torch.randn(3, 5, 7, dtype=torch.float64), torch.randn(3, 7, 1, dtype=torch.float64), 11
    want = ((1 + P.square().sum((1, 2)) * w.square().sum((1, 2)) / (P @ w).square().sum((1, 2))) / k).sqrt()
    torch.testing.assert_close(sketch_error_formula(P, w, k), want)


def test_identity_needs_as_many_rows_as_keys() -> None:
    """S0.21: for P = I, k = 5 ln n / (eps^2 - eps^3) with eps = 1/2 gives an error above one half."""
    n, k = 256, 222
    assert sketch_error_formula(torch.eye(n), torch.randn(n, 1), k).item() == pytest.approx(1.08, abs=0.01)


def test_the_generator_decides() -> None:
    P, V = torch.randn(2, 5, 7).softmax(-1), torch.randn(2, 7, 3)
    a, b, c = (sketch_error(P, V, 5, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert torch.equal(a, b) and not torch.equal(a, c) and a.shape == (2,)
