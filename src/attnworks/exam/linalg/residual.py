"""Norms of matrices, and the distance in each norm from X to the nearest matrix with equal rows.

Rows that are not `real` (padding) are ignored. Half-precision input is measured in float32. For some norms the nearest
matrix with equal rows has no closed form and needs linear programs: one matrix at a time, in float64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Bool, Float
from scipy.optimize import linprog
from scipy.sparse import block_array, csr_array, eye_array, kron
from torch import Tensor

from attnworks.core.checks import choice
from attnworks.core.registry import Registry
from attnworks.core.tensors import safe_sqrt, widened

NORMS = Registry[Callable[[Tensor], Tensor]]("norm")

COMPOSITE_PRECISION = 1e-9
"""Relative precision of the least composite residual."""


@NORMS.register("one")
def induced_one(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """||X||_1 = max_e sum_i |X_ie|, the largest column sum."""
    return widened(X).abs().sum(-2).amax(-1)


@NORMS.register("inf")
def induced_inf(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """||X||_inf = max_i sum_e |X_ie|, the largest row sum."""
    return widened(X).abs().sum(-1).amax(-1)


@NORMS.register("max")
def entrywise_max(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """max_ie |X_ie|."""
    return widened(X).abs().amax((-2, -1))


@NORMS.register("spectral")
def spectral(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """||X||_2, the largest singular value."""
    return torch.linalg.matrix_norm(widened(X), ord=2)


@NORMS.register("frobenius")
def frobenius(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """||X||_F = sqrt(sum_ie X_ie^2)."""
    return torch.linalg.matrix_norm(widened(X))


@NORMS.register("composite")
def composite(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """||X||_{1,inf} = sqrt(||X||_1 ||X||_inf): definite, homogeneous and submultiplicative.

    Source: Xie 2021, section 2 (S0.13); ||X||_2 <= ||X||_{1,inf} <= (i e)^{1/4} ||X||_2.
    Departs: the document calls it a norm; the triangle inequality holds only up to `quasi_norm_constant` (D3).
    """
    one, inf = induced_one(X), induced_inf(X)
    return torch.where(one.isnan(), one, safe_sqrt(one) * safe_sqrt(inf))


def quasi_norm_constant(m: int, n: int) -> float:
    """K = ((m n)^{1/4} + (m n)^{-1/4}) / 2, the least with ||A + B||_{1,inf} <= K (||A||_{1,inf} + ||B||_{1,inf}).

    Source: D3 (S0.13), for matrices m x n; attained by A = s 1 e_1^T and B = e_1 1^T of equal size.
    """
    root = (m * n) ** 0.25
    return (root + 1 / root) / 2


def centre_inf(X: Float[Tensor, "*a i e"], real: Bool[Tensor, "*a i"] | None = None) -> Float[Tensor, "*a e"]:
    """The x of min t subject to sum_e u_ie <= t and -u_ie <= X_ie - x_e <= u_ie: least ||X - 1 x^T||_inf.

    Source: D4 (S1.11): an l1-centre of the rows, not unique.
    """
    return _each(lambda rows: _weighted_centre(rows, 0.0, 1.0), X, real)


def centre_composite(X: Float[Tensor, "*a i e"], real: Bool[Tensor, "*a i"] | None = None) -> Float[Tensor, "*a e"]:
    """The x that minimises sqrt(f g), where f = ||X - 1 x^T||_1 and g = ||X - 1 x^T||_inf.

    Source: D4.
    Departs: f g has several local minima as the weight of f against g varies, so that descent would not find the least.
    The attainable (f, g) form a convex set, and f g is least at a corner of its border. Corners are found by linear
    programs weighted along the chord of two known corners. A chord is dropped once the triangle between it and the
    tangents at its ends has no better point. The result is the global minimum within `COMPOSITE_PRECISION`.
    """
    return _each(_composite_centre, X, real)


def _each(centre: Callable[[np.ndarray], np.ndarray], X: Tensor, real: Tensor | None) -> Tensor:
    """`centre` of the real rows of every matrix, scaled to entries of at most one; NaN if an entry is not finite."""
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
        if corner is None or corner[0] * corner[1] >= least * (1 - COMPOSITE_PRECISION):
            continue
        across, along = left[1] - right[1], right[0] - left[0]
        if across <= 0 or along <= 0:
            continue
        a, b = across / (across + along), along / (across + along)
        x = _weighted_centre(X, a, b)
        middle = point(x)
        value = a * middle[0] + b * middle[1]
        found.append(x)
        if value < (a * left[0] + b * left[1]) * (1 - COMPOSITE_PRECISION):
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


def residual(X: Float[Tensor, "*a i e"], real: Bool[Tensor, "*a i"] | None = None) -> Float[Tensor, "*a i e"]:
    """R = X - 1 x^T with x the mean row, which minimises ||X - 1 x^T|| in every unitarily invariant norm.

    Source: Xie 2021, section 2 (S0.14); D4.
    Departs: x is the mean of the real rows, and the other rows of R are zero.
    """
    Y, _ = minus_first_row(X, real)
    return _keep(Y - _mean(Y, real).unsqueeze(-2), real)


def relative_residual(X: Float[Tensor, "*a i e"], real: Bool[Tensor, "*a i"] | None = None) -> Float[Tensor, "*a"]:
    """||R||_F / ||X||_F, from 0 (all rows equal: collapsed) to 1 (rows that cancel); 0 for X = 0.

    Source: S0.15: the absolute residual also falls when all of X shrinks, so that this ratio shows collapse.
    """
    return relative_residual_norm(X, "frobenius", real).to(X.dtype)


def best_row(X: Float[Tensor, "*a i e"], norm: str, real: Bool[Tensor, "*a i"] | None = None) -> Float[Tensor, "*a e"]:
    """The x that minimises ||X - 1 x^T|| over the real rows; zero where there is none.

    Source: D4 (S0.14, S1.11). Mean for "frobenius" and "spectral" (there not the only one), column median for "one",
    column midrange for "max", linear programs for "inf" and "composite" (float64, without gradient).
    """
    Y, first = minus_first_row(widened(X), real)
    return (first.squeeze(-2) + CENTRES[choice("norm", norm, CENTRES)](Y, real)).to(X.dtype)


def residual_norm(
    X: Float[Tensor, "*a i e"], norm: str, real: Bool[Tensor, "*a i"] | None = None
) -> Float[Tensor, "*a"]:
    """min_x ||X - 1 x^T|| over the real rows, in the named norm; exactly 0 for equal rows.

    Source: Xie 2021, section 2 (S0.14, S1.10): the distance to identical rows, not the distance to rank one.
    """
    Y, _ = minus_first_row(widened(X), real)
    R = _keep(Y - CENTRES[choice("norm", norm, CENTRES)](Y, real).unsqueeze(-2), real)
    return NORMS[norm](R).to(Y.dtype)


def relative_residual_norm(
    X: Float[Tensor, "*a i e"], norm: str, real: Bool[Tensor, "*a i"] | None = None
) -> Float[Tensor, "*a"]:
    """min_x ||X - 1 x^T|| / ||X|| over the real rows, both in the named norm, between 0 and 1; 0 for X = 0.

    Source: S0.15, D7.
    """
    value = residual_norm(X, norm, real)
    return value / NORMS[norm](_keep(widened(X), real)).clamp_min(torch.finfo(value.dtype).tiny)


def _mean(Y: Tensor, real: Tensor | None) -> Tensor:
    if real is None:
        return Y.mean(-2)
    return Y.sum(-2) / real.sum(-1, keepdim=True).clamp_min(1)


def _median(Y: Tensor, real: Tensor | None) -> Tensor:
    """The middle of the median interval; NaN for a column with NaN."""
    rows = Y.shape[-2] if real is None else real.sum(-1)[..., None, None]
    count = torch.as_tensor(rows, device=Y.device).expand(*Y.shape[:-2], 1, Y.shape[-1])
    ordered = (Y if real is None else Y.masked_fill(~real.unsqueeze(-1), torch.inf)).sort(-2).values
    lower, upper = ((count - shift).clamp_min(0) // 2 for shift in (1, 0))
    middle = (ordered.gather(-2, lower) + ordered.gather(-2, upper.clamp_max(Y.shape[-2] - 1))) / 2
    broken = Y.isnan().any(-2)
    return middle.squeeze(-2).masked_fill(count.squeeze(-2) == 0, 0.0).masked_fill(broken, torch.nan)


def _midrange(Y: Tensor, real: Tensor | None) -> Tensor:
    if real is None:
        return (Y.amax(-2) + Y.amin(-2)) / 2
    away = ~real.unsqueeze(-1)
    middle = (Y.masked_fill(away, -torch.inf).amax(-2) + Y.masked_fill(away, torch.inf).amin(-2)) / 2
    return middle.masked_fill(~real.any(-1, keepdim=True), 0.0)


CENTRES = {
    "frobenius": _mean,
    "spectral": _mean,
    "one": _median,
    "max": _midrange,
    "inf": centre_inf,
    "composite": centre_composite,
}


def minus_first_row(
    X: Float[Tensor, "*a i e"], real: Bool[Tensor, "*a i"] | None
) -> tuple[Float[Tensor, "*a i e"], Float[Tensor, "*a 1 e"]]:
    """X minus its first real row, so that equal rows give exact zeros (D7), and that row. Other rows are zero."""
    if real is None:
        first = X[..., :1, :]
        return X - first, first
    which = real.int().argmax(-1)[..., None, None].expand(*X.shape[:-2], 1, X.shape[-1])
    first = _keep(X, real).gather(-2, which)
    return _keep(X - first, real), first


def _keep(X: Tensor, real: Tensor | None) -> Tensor:
    return X if real is None else X.masked_fill(~real.unsqueeze(-1), 0.0)
