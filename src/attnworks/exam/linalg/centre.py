"""Centres of the rows of X in the norms without a closed form: linear programs, one matrix at a time, in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.optimize import linprog
from scipy.sparse import block_array, csr_array, eye_array, kron
from torch import Tensor

PRECISION = 1e-9
"""Relative, below which a better composite value is not looked for."""


def centre_inf(X: Float[Tensor, "*a i e"], real: Bool[Tensor, "*a i"] | None = None) -> Float[Tensor, "*a e"]:
    """The x of min t subject to sum_e u_ie <= t and -u_ie <= X_ie - x_e <= u_ie: least ||X - 1 x^T||_inf.

    Source: D4 (S1.11): an l1-centre of the rows, not unique.
    """
    return _each(lambda rows: _weighted_centre(rows, 0.0, 1.0), X, real)


def centre_composite(X: Float[Tensor, "*a i e"], real: Bool[Tensor, "*a i"] | None = None) -> Float[Tensor, "*a e"]:
    """The x that minimises sqrt(f g), where f = ||X - 1 x^T||_1 and g = ||X - 1 x^T||_inf.

    Source: D4.
    Departs: the search over the weight of f against g is no descent, as the value has several local minima in it.
    The attainable (f, g) form a convex set, so f g is least at a corner of its border; corners are found by programs
    weighted along the chord of two known ones, and a chord is given up once the triangle that its corners' tangents
    leave has no better point. What remains is the global minimum within `PRECISION`.
    """
    return _each(_composite_centre, X, real)


def _each(centre: Callable[[np.ndarray], np.ndarray], X: Tensor, real: Tensor | None) -> Tensor:
    """`centre` of the real rows of every matrix, scaled to entries of at most one; NaN where an entry is not finite."""
    flat = X.detach().double().flatten(0, -3) if X.ndim > 2 else X.detach().double().unsqueeze(0)
    kept = torch.ones(flat.shape[:2], dtype=torch.bool) if real is None else real.reshape(flat.shape[:2])
    found = torch.zeros(flat.shape[0], flat.shape[2], dtype=torch.float64)
    for x, matrix, mask in zip(found, flat, kept, strict=True):
        rows = matrix[mask].cpu().numpy()
        scale = np.abs(rows).max(initial=0.0)
        if not np.isfinite(scale):
            x.fill_(torch.nan)
        elif scale > 0:
            x.copy_(torch.from_numpy(centre(rows / scale) * scale))
    return found.reshape(*X.shape[:-2], X.shape[-1]).to(X.device)


def _weighted_centre(X: np.ndarray, of_one: float, of_inf: float) -> np.ndarray:
    """The x that minimises of_one * ||X - 1 x^T||_1 + of_inf * ||X - 1 x^T||_inf.

    Variables: x [e], u [i e], f, g.
    """
    i, e = X.shape
    ones_i, ones_e = np.ones((i, 1)), np.ones((e, 1))
    each = eye_array(i * e)
    spread = kron(csr_array(ones_i), eye_array(e))
    row_sums, column_sums = kron(eye_array(i), csr_array(ones_e.T)), kron(csr_array(ones_i.T), eye_array(e))
    A = block_array(
        [
            [spread, -each, None, None],
            [-spread, -each, None, None],
            [None, column_sums, csr_array(-ones_e), None],
            [None, row_sums, None, csr_array(-ones_i)],
        ],
        format="csr",
    )
    bound = np.concatenate([X.ravel(), -X.ravel(), np.zeros(e + i)])
    cost = np.concatenate([np.zeros(e + i * e), [of_one, of_inf]])
    free, positive = [(None, None)] * e, [(0, None)] * (i * e + 2)
    solved = linprog(cost, A_ub=A, b_ub=bound, bounds=free + positive, method="highs")
    if solved.x is None:
        raise ArithmeticError(f"linear program of {i} x {e}: {solved.message}")
    return solved.x[:e]


def _composite_centre(X: np.ndarray) -> np.ndarray:
    def point(x: np.ndarray) -> tuple[float, float]:
        size = np.abs(X - x)
        return float(size.sum(0).max()), float(size.sum(1).max())

    found = [np.median(X, axis=0), _weighted_centre(X, 0.0, 1.0)]
    left, right = point(found[0]), point(found[1])
    chords = [(left, (1.0, 0.0, left[0]), right, (0.0, 1.0, right[1]))]
    while chords:
        left, left_line, right, right_line = chords.pop()
        least = min(f * g for f, g in map(point, found))
        corner = _crossing(left_line, right_line)
        if corner is None or corner[0] * corner[1] >= least * (1 - PRECISION):
            continue
        across, along = left[1] - right[1], right[0] - left[0]
        if across <= 0 or along <= 0:
            continue
        a, b = across / (across + along), along / (across + along)
        x = _weighted_centre(X, a, b)
        middle = point(x)
        value = a * middle[0] + b * middle[1]
        found.append(x)
        if value < (a * left[0] + b * left[1]) * (1 - PRECISION):
            line = (a, b, value)
            chords += [(left, left_line, middle, line), (middle, line, right, right_line)]
    return min(found, key=lambda x: float(np.prod(point(x))))


def _crossing(first: tuple[float, float, float], second: tuple[float, float, float]) -> tuple[float, float] | None:
    """Where the lines a f + b g = c meet."""
    (a, b, c), (d, e, h) = first, second
    determinant = a * e - b * d
    if abs(determinant) < 1e-14:
        return None
    return (c * e - b * h) / determinant, (a * h - c * d) / determinant
