"""Bounds against inputs that gradient ascent makes as bad as it can; those said to be sharp are reached."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from attnworks.attention.softmax import jacobian_norm
from attnworks.exam.linalg.bounds import (
    HeadSizes,
    composite_bound,
    composite_factor,
    diameter_bound,
    logit_row_range,
    row_diameter,
    skip_bounds,
)
from attnworks.exam.linalg.residual import composite, induced_inf, induced_one, quasi_norm_constant, residual
from attnworks.theory.cases import Draws, maximise
from attnworks.theory.collapse_cases import split_logits

HEADS, N, D, K, SCALE = 2, 5, 3, 2, 2**-0.5
STEPS = 150
ROOM = 1 + 1e-9


def spectral(W: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(W, ord=2)


def sizes(W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> HeadSizes:
    """`head_sizes`, which lets no gradient through, written so that it does."""
    qk, vo = W_Q @ W_K.mT, W_V @ W_O
    return HeadSizes(spectral(qk), spectral(vo), induced_one(qk), induced_one(vo), induced_inf(vo))


def attend(X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> Tensor:
    """Less what the first row would give alone: the same for all rows, and it would cost digits of their distances."""
    P = (SCALE * (X @ W_Q) @ (X @ W_K).mT).softmax(-1)
    return (P @ (X - X[:1]) @ W_V @ W_O).sum(0)


def layer(seed: int, heads: int = HEADS, n: int = N, d: int = D, spread: float = 1.0) -> list[Tensor]:
    draw = Draws(seed)
    W_Q, W_K, W_V = (draw.normal(heads, d, K) for _ in range(3))
    return [draw.normal(n, d, scale=spread), W_Q, W_K, W_V, draw.normal(heads, K, d)]


def diameter_ratio(X: Tensor, *weights: Tensor) -> Tensor:
    return row_diameter(attend(X, *weights)) / diameter_bound(row_diameter(X), sizes(*weights), SCALE)


def skip_ratio(X: Tensor, *weights: Tensor) -> Tensor:
    """The upper bound, and how far the lower one is from being passed: the larger of the two."""
    low, high = skip_bounds(row_diameter(X), sizes(*weights), SCALE)
    reached = row_diameter(X + attend(X, *weights))
    return torch.maximum(reached / high, low / reached)


def composite_ratio(X: Tensor, W_Q: Tensor, W_K: Tensor, W_V: Tensor, W_O: Tensor) -> Tensor:
    """D5 with the factor of the row range that X has, for the residuals from mean rows."""
    R, of_weights = residual(X), sizes(W_Q, W_K, W_V, W_O)
    factor = composite_factor(logit_row_range(R, W_Q, W_K, SCALE)) * 2 * (1 - 1 / len(X))
    bound = composite_bound(composite(R), of_weights, SCALE, factor)
    return composite(residual(attend(X, W_Q, W_K, W_V, W_O))) / bound


def norms_apart(X: Tensor, W_QK: Tensor, x: Tensor) -> Tensor:
    """The two halves of the proof of D5: row sums and column sums of (P - 1 p^T) R, each over its own bound."""
    split = split_logits(X, W_QK, x)
    r, E, R = split
    M, q = split.P @ R - r.softmax(-1) @ R, induced_one(W_QK)
    square = composite_factor((E.amax(-1) - E.amin(-1)).amax()) ** 2
    by_rows = induced_inf(M) / (q * induced_one(R) * induced_inf(R) ** 2)
    by_columns = induced_one(M) / (square * q * induced_one(R) ** 2 * induced_inf(R))
    return torch.maximum(by_rows, by_columns)


@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
@pytest.mark.parametrize(("n", "e"), [(2, 1), (3, 2), (7, 3)])
def test_both_halves_of_the_composite_bound(n: int, e: int, spread: float) -> None:
    """From any row x, not only from the mean."""
    draw = Draws(n)
    start = [draw.normal(n, e), draw.normal(e, e, scale=spread), draw.normal(e)]
    assert 0 < maximise(norms_apart, start, steps=2 * STEPS) <= ROOM


def test_the_factor_of_the_composite_bound_is_within_two_of_the_best() -> None:
    """D5: two rows of width one come to half of the bound with sqrt((e^D - 1) / D)."""

    def ratio(X: Tensor, W_QK: Tensor) -> Tensor:
        split = split_logits(X, W_QK, X.mean(0))
        r, E, R = split
        left = composite(split.P @ R - r.softmax(-1) @ R)
        D = (E.amax(-1) - E.amin(-1)).amax()
        return left / (composite_factor(D) * induced_one(W_QK) * composite(R) ** 3)

    draw = Draws(0)
    assert 0.45 < maximise(ratio, [draw.normal(2, 1), draw.normal(1, 1)], steps=2 * STEPS) <= ROOM


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2, 3))])
@pytest.mark.parametrize("spread", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("ratio", [diameter_ratio, skip_ratio, composite_ratio])
def test_bounds_of_a_layer(ratio: Callable[..., Tensor], spread: float, seed: int) -> None:
    assert 0 < maximise(ratio, layer(seed, spread=spread), steps=STEPS) <= ROOM


@pytest.mark.smoke
def test_the_diameter_bound_is_reached() -> None:
    """D6 is sharp: two rows of width one come to it from anywhere. More steps bring them too close for float64."""
    assert 0.9999 < maximise(diameter_ratio, layer(0, heads=1, n=2, d=1), steps=40) <= ROOM


@pytest.mark.parametrize("shape", [(2, 2), (3, 7), (5, 2)])
def test_the_quasi_norm_constant(shape: tuple[int, int]) -> None:
    """D3: ||A + B|| over K (||A|| + ||B||) comes near one, and no ascent passes it."""
    constant, draw = quasi_norm_constant(*shape), Draws(0)

    def ratio(A: Tensor, B: Tensor) -> Tensor:
        return composite(A + B) / (constant * (composite(A) + composite(B)))

    found = max(maximise(ratio, [draw.normal(*shape), draw.normal(*shape)], steps=STEPS) for _ in range(4))
    assert 0.85 < found <= ROOM


@pytest.mark.parametrize("n", [2, 3, 11])
def test_the_jacobian_of_softmax(n: int) -> None:
    """S4.47: no row of softmax has a Jacobian of norm above one half; two equal weights reach it."""
    found = maximise(lambda z: jacobian_norm(z.softmax(-1)) / 0.5, [Draws(n).normal(n)], steps=2 * STEPS)
    assert 0.9 < found <= ROOM
