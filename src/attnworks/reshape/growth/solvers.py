"""Best fits X Z Y^T of low rank in closed form, and the best step along a direction with few evaluations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Inexact
from torch import Tensor

from attnworks.core.checks import integer

MAX_DOUBLINGS = 16
MAX_SHRINKINGS = 4
MAX_REFINEMENTS = 2
RANK_REMEDY = "the rank is the number of columns of each factor"


class LowRank(NamedTuple):
    """Z = left right^T, with the same singular values in both factors, and value = ||B - X Z Y^T||_F^2."""

    left: Float[Tensor, "e k"]
    right: Float[Tensor, "f k"]
    value: float

    @property
    def Z(self) -> Float[Tensor, "e f"]:
        return self.left @ self.right.mT


def lowrank_fit(
    B: Float[Tensor, "i j"],
    X: Float[Tensor, "i e"],
    k: int,
    Y: Float[Tensor, "j f"] | None = None,
    *,
    rcond: float | None = None,
) -> LowRank:
    """argmin of ||B - X Z Y^T||_F^2 over rank(Z) <= k, with X = U_x S_x V_x^T and Y = U_y S_y V_y^T (thin):

        Z = V_x S_x^-1 [U_x^T B U_y]_k S_y^-1 V_y^T,
        value = ||B - U_x U_x^T B U_y U_y^T||^2 + sum_{r>k} sigma_r(U_x^T B U_y)^2
    Source: Burgund, section 2 (S3.27, S3.30), corrected as in D10.
    Departs: [.]_k is taken where X and Y are orthonormal. The document takes it of X^+ B Y^+T, see `truncated_fit`.
    Y is X unless given. Singular values of X below `rcond` times the largest count as zero, by default those that are
    rounding. Among several best Z the one without a part outside the rows of X and Y is given.
    """
    integer("rank", k, 0, remedy=RANK_REMEDY)
    U_x, s_x, V_x = _thin(X, rcond)
    U_y, s_y, V_y = (U_x, s_x, V_x) if Y is None else _thin(Y, rcond)
    core = U_x.mT @ B @ U_y
    U, s, Vh = torch.linalg.svd(core, full_matrices=False)
    left, right = balanced((V_x / s_x) @ U[:, :k] * s[:k], (V_y / s_y) @ Vh[:k].mT)
    value = (B - U_x @ core @ U_y.mT).square().sum() + s[k:].square().sum()
    return LowRank(_widened(left, k), _widened(right, k), float(value))


def truncated_fit(
    B: Float[Tensor, "i j"],
    X: Float[Tensor, "i e"],
    k: int,
    Y: Float[Tensor, "j f"] | None = None,
    *,
    rcond: float | None = None,
) -> LowRank:
    """[X^+ B Y^+T]_k, the matrix of rank k nearest to the best Z of any rank, and its value.

    Source: Burgund, section 2 (S3.24, S3.27-S3.29) as printed.
    Holds when: X^T X = c I and Y^T Y = c' I on their ranges; elsewhere `lowrank_fit` is nearer to B.
    """
    integer("rank", k, 0, remedy=RANK_REMEDY)
    X_inverse = _inverse(X, rcond)
    Y_inverse = X_inverse if Y is None else _inverse(Y, rcond)
    U, s, Vh = torch.linalg.svd(X_inverse @ B @ Y_inverse.mT, full_matrices=False)
    root = s[:k].sqrt()
    left, right = U[:, :k] * root, Vh[:k].mT * root
    value = (B - X @ left @ ((X if Y is None else Y) @ right).mT).square().sum()
    return LowRank(_widened(left, k), _widened(right, k), float(value))


def balanced(
    left: Inexact[Tensor, "*a e p"], right: Inexact[Tensor, "*a f p"]
) -> tuple[Inexact[Tensor, "*a e p"], Inexact[Tensor, "*a f p"]]:
    """U S^1/2 and V S^1/2 of the product left right^H = U S V^H, which is not formed.

    With left = Q_l R_l and right = Q_r R_r only the small R_l R_r^H needs an SVD; its columns come largest first.
    Source: Burgund (S3.29).
    """
    p = left.shape[-1]
    Q_l, R_l = torch.linalg.qr(left)
    Q_r, R_r = torch.linalg.qr(right)
    U, s, Vh = torch.linalg.svd(R_l @ R_r.mH, full_matrices=False)
    root = s.sqrt().unsqueeze(-2)
    return _widened(Q_l @ U * root, p), _widened(Q_r @ Vh.mH * root, p)


def shortened(
    left: Float[Tensor, "e r"],
    right: Float[Tensor, "f r"],
    k: int,
    X: Float[Tensor, "i e"],
    Y: Float[Tensor, "j f"],
) -> tuple[Float[Tensor, "e k"], Float[Tensor, "f k"]]:
    """k columns whose product is nearest to left right^T as X and Y see it, in ||X (.) Y^T||_F.

    With X left = Q_x R_x and Y right = Q_y R_y: the singular vectors of R_x R_y^T, carried back. Source: D10.
    """
    R_x, R_y = (torch.linalg.qr(states @ side).R for states, side in ((X, left), (Y, right)))
    U, s, Vh = torch.linalg.svd(R_x @ R_y.mT)
    root = s[:k].sqrt()
    return left @ (torch.linalg.pinv(R_x) @ U[:, :k] * root), right @ (torch.linalg.pinv(R_y) @ Vh[:k].mT * root)


def _thin(X: Tensor, rcond: float | None) -> tuple[Tensor, Tensor, Tensor]:
    """U, s and V of the part of X that is not rounding."""
    U, s, Vh = torch.linalg.svd(X, full_matrices=False)
    rcond = max(X.shape) * torch.finfo(X.dtype).eps if rcond is None else rcond
    kept = int((s > rcond * s[:1]).sum())
    return U[:, :kept], s[:kept], Vh[:kept].mT


def _inverse(X: Tensor, rcond: float | None) -> Tensor:
    U, s, V = _thin(X, rcond)
    return (V / s) @ U.mT


def _widened(columns: Tensor, k: int) -> Tensor:
    return F.pad(columns, (0, k - columns.shape[-1]))


class LineMinimum(NamedTuple):
    """The best step that was tried, 0 if all others are worse, and the value there."""

    step: float
    value: float


def line_search(function: Callable[[float], float], start: float, at_zero: float) -> LineMinimum:
    """min over t >= 0: shrink `start` by fours until f(t) < f(0), double it while f falls, then fit parabolas.

    Values that are not finite count as very large. The best of all points that were tried is returned, so that the
    value is one that was measured.
    """
    tried = {0.0: at_zero}

    def value(t: float) -> float:
        if t not in tried:
            found = function(t)
            tried[t] = found if math.isfinite(found) else math.inf
        return tried[t]

    t = start
    for _ in range(MAX_SHRINKINGS):
        if value(t) < at_zero:
            break
        t /= 4
    else:
        return LineMinimum(0.0, at_zero)
    for _ in range(MAX_DOUBLINGS):
        if value(2 * t) >= value(t):
            break
        t *= 2
    for _ in range(MAX_REFINEMENTS):
        if (t := _lowest_of_parabola(tried)) in tried:
            break
        value(t)
    step = min(tried, key=lambda t: (tried[t], t))
    return LineMinimum(step, tried[step])


def _lowest_of_parabola(tried: dict[float, float]) -> float:
    """Of the parabola through the best point and its neighbours; the best point itself where there is none."""
    steps = sorted(tried)
    at = steps.index(min(steps, key=lambda t: tried[t]))
    if not 0 < at < len(steps) - 1 or not math.isfinite(tried[steps[at + 1]]):
        return steps[at]
    (a, b, c), (f_a, f_b, f_c) = steps[at - 1 : at + 2], (tried[t] for t in steps[at - 1 : at + 2])
    left, right = (b - a) * (f_b - f_c), (b - c) * (f_b - f_a)
    return steps[at] if left == right else b - ((b - a) * left - (b - c) * right) / (2 * (left - right))
