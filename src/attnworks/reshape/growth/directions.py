"""The directions in which a few more columns of keys or of values lower a loss most.

Columns alpha, beta added to the query and key weights of a head change its scores by dS = X alpha (Y beta)^T. To second
order the loss then changes by

    <T, alpha beta^T> + 1/2 mean_n <dS, F(dS)>,    T = mean_n X^T (dL/dS) Y,    F(dS)_i = p_i o dS_i - p_i (p_i . dS_i)

with p_i the rows of P: F is the Fisher metric of the softmax. T is the mean over all sentences, F over a sample of
them. Source: Burgund (S3.13-S3.30). Departs: the increment is fitted instead of the scores, in the direction in which
the loss falls, and in the metric of the softmax.

A frequency pair is two columns that are rotated by theta times the position, as in RoPE (Su et al. 2021). With
complex alpha and beta, whose real and imaginary parts are the two columns,

    dS_ij = Re(e^{i theta (i - j)} (x_i . alpha) conj(y_j . beta)) = Re(X_theta alpha beta^H Y_theta^H)_ij,
    X_theta = diag(e^{i theta i}) X,    Y_theta = diag(e^{i theta j}) Y,    T_theta = mean_n X_theta^H (dL/dS) Y_theta

and the loss changes by <T_theta, alpha beta^H> + 1/2 mean_n <dS, F(dS)>, where <A, B> = Re tr(A^H B). So all that
follows holds for pairs as it is written, with ^H for ^T; theta = 0 and real numbers are the plain columns. T_theta has
cos(theta (i - j)) dL/dS in its real part and -sin(theta (i - j)) dL/dS in its imaginary part. Source: derived here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Inexact
from torch import Tensor

from attnworks.core.checks import integer
from attnworks.reshape.growth.metric import (
    Metric,
    ScoreSample,
    best_gain,
    inverse_root,
    projected,
    pulled,
    ratio,
    real_product,
    rotated,
    weighted_rows,
    whitening,
)
from attnworks.reshape.growth.solvers import balanced

ENOUGH_RESIDUAL_FALL = 0.3
"""The share to which the residual of one factor is lowered before the other one is improved."""
TRIAL_SWEEPS = 4
"""Sweeps after which the best of several starts is chosen; more of them cost time and find little more."""


class Direction(NamedTuple):
    """Columns to add to every head, at the length that is best in the metric; complex for pairs.

    alpha, beta   the larger columns first, as whitened; alpha_c is as long as beta_c. Zero in heads that nothing helps
    slope         -<T, alpha beta^H>: how fast the loss falls
    curvature     <dS, F(dS)>, mean per sentence
    residual      how far alpha or beta, whichever is worse, is from being best for the other: 0 best, about 1 no better
                  than nothing
    """

    alpha: Inexact[Tensor, "h e p"]
    beta: Inexact[Tensor, "h f p"]
    slope: Float[Tensor, " h"]
    curvature: Float[Tensor, " h"]
    residual: Float[Tensor, " h"]

    @property
    def gain(self) -> Float[Tensor, " h"]:
        """slope^2 / (2 curvature): by how much the loss falls at the best length."""
        return best_gain(self.slope, self.curvature)


class ValueDirection(NamedTuple):
    """Columns a to add to the value weights and rows b to the output weights; by how much each pair lowers the loss."""

    a: Float[Tensor, "h f p"]
    b: Float[Tensor, "h p e"]
    captured: Float[Tensor, "h p"]


def score_direction(
    T: Inexact[Tensor, "h e f"],
    sample: ScoreSample,
    p: int,
    *,
    starts: int = 3,
    sweeps: int = 30,
    iterations: int = 12,
    tolerance: float = 1e-3,
    cutoff: float = 1e-6,
) -> Direction:
    """A local optimum of <T, alpha beta^H> + 1/2 mean_n <dS, F(dS)> over p columns or pairs, for every head.

    Starts from singular pairs 1 ... p of the whitened T, which is `whitened_direction`, from pairs 2 ... p + 1 and from
    3 ... p + 2. After `TRIAL_SWEEPS` sweeps, the first start and the best one are improved further, and each head keeps
    the better end. A sweep improves alpha and beta in turn. With beta orthonormal and fixed, the best
    alpha solves a linear system,
        mean_n X^H F(X alpha (Y beta)^H) Y beta = -T beta,
    for which up to `iterations` steps of conjugate gradients are made from the alpha at hand; so no step is uphill. A
    head is ready when its residual, ||T beta + mean_n X^H F(dS) Y beta|| / ||T beta|| in whitened coordinates or the
    same for alpha, whichever is larger, is below `tolerance`.
    Source: Burgund, section 2 (S3.19), for the increment and in the Fisher metric; no closed form is known there.
    Holds when: the residual is small. The problem is not convex, and no start is sure to end at the best of all: on 144
    random problems of one column and 16 starts each, one start stays below 99 % of the best gain in 12 % (worst 57 %),
    three in 4 % (worst 85 %). Where the sample sees no curvature but T has a part, nothing is best, and the residual
    stays large.
    """
    problem = _whitened(T, sample, p, cutoff)
    pairs = min(problem.T.shape[-2:])
    tried = [
        _improved(problem, *_start(problem, first), min(sweeps, TRIAL_SWEEPS), iterations, tolerance)
        for first in range(max(1, min(starts, pairs - p + 1)))
    ]
    winner = torch.stack([_gain_of(problem, a, b) for a, b in tried]).argmax(0)
    a, b = _improved(problem, *tried[0], sweeps - TRIAL_SWEEPS, iterations, tolerance)
    other = winner.nonzero().squeeze(-1)
    if len(other):
        part = problem.heads(other)
        c, d = (torch.stack(factors)[winner[other], other] for factors in zip(*tried, strict=True))
        c, d = _improved(part, c, d, sweeps - TRIAL_SWEEPS, iterations, tolerance)
        better = _gain_of(part, c, d) > _gain_of(part, a[other], b[other])
        a[other[better]], b[other[better]] = c[better], d[better]
    return _direction(problem, a, b)


def whitened_direction(T: Inexact[Tensor, "h e f"], sample: ScoreSample, p: int, *, cutoff: float = 1e-6) -> Direction:
    """-C_x^-1/2 [C_x^-1/2 T C_y^-1/2]_p C_y^-1/2 with the length that is best in the metric, for every head.

    C_x and C_y are the second moments of X and Y over the pairs of a query and a key it sees; their eigenvalues below
    `cutoff` times the largest count as zero.
    Source: Burgund, section 2 (S3.27 corrected), with the mean over sentences of what D10 has for one.
    Holds when: <dS, F(dS)> is a multiple of ||C_x^1/2 alpha beta^H C_y^1/2||^2; elsewhere `score_direction` is better.
    """
    problem = _whitened(T, sample, p, cutoff)
    return _direction(problem, *_start(problem))


def marginal_gains(direction: Direction, T: Inexact[Tensor, "h e f"], sample: ScoreSample) -> Float[Tensor, "h p"]:
    """What column r adds: the gain of the first r columns less that of the first r - 1, each at its best length."""
    states, metric = (rotated(side, sample.angle) for side in (sample.X, sample.Y)), Metric.of(sample)
    q, k = (projected(X, side) for X, side in zip(states, (direction.alpha, direction.beta), strict=True))
    slope = -((T @ direction.beta).conj() * direction.alpha).real.sum(-2).cumsum(-1)
    columns = range(1, q.shape[-1] + 1)
    curvature = torch.stack([metric.curvature(q[..., :r], k[..., :r]) for r in columns], dim=-1)
    return best_gain(slope, curvature).diff(prepend=torch.zeros_like(slope[:, :1])).clamp_min(0.0)


def value_direction(
    T_V: Float[Tensor, "h f e"], C_V: Float[Tensor, "h f f"], p: int, *, cutoff: float = 1e-6
) -> ValueDirection:
    """argmin of <T_V, a b> + 1/2 <a b, C_V a b> over p columns: a b = -C_V^-1/2 [C_V^-1/2 T_V]_p.

    With T_V = mean_n (P Y)^T (dL/dO) and C_V = mean_n (P Y)^T P Y for the outputs O, to which the columns add P Y a b.
    With C_V^-1/2 T_V = U S V^T: a = -C_V^-1/2 U S^1/2, b = S^1/2 V^T, and a pair lowers the loss by S_r^2 / 2.
    Source: Burgund, section 2, for values instead of scores; exact for any number of sentences.
    Eigenvalues of C_V below `cutoff` times the largest count as zero.
    """
    integer("columns", p, 1)
    W = inverse_root(C_V, cutoff)
    U, s, Vh = torch.linalg.svd(W.mT @ T_V, full_matrices=False)
    U, s, Vh = U[..., :p], s[:, :p], Vh[:, :p]
    root, missing = s.sqrt(), p - s.shape[-1]
    return ValueDirection(
        a=F.pad(-W @ U * root.unsqueeze(-2), (0, missing)),
        b=F.pad(root.unsqueeze(-1) * Vh, (0, 0, 0, missing)),
        captured=F.pad(s.square() / 2, (0, missing)),
    )


class _Problem(NamedTuple):
    """The same in coordinates in which C_x and C_y are the identity and T has norm one, for p columns or fewer."""

    T: Inexact[Tensor, "h q k"]
    X: Inexact[Tensor, "n i q"]
    Y: Inexact[Tensor, "n j k"]
    metric: Metric
    norm: Float[Tensor, " h"]
    W_x: Float[Tensor, "e q"]
    W_y: Float[Tensor, "f k"]
    p: int

    def heads(self, index: Tensor) -> _Problem:
        return self._replace(T=self.T[index], metric=self.metric.heads(index), norm=self.norm[index])


def _whitened(T: Tensor, sample: ScoreSample, p: int, cutoff: float) -> _Problem:
    integer("columns", p, 1)
    W_x, W_y = whitening(sample, cutoff)
    X, Y = (rotated(states @ W, sample.angle) for states, W in ((sample.X, W_x), (sample.Y, W_y)))
    white = W_x.mT.to(T.dtype) @ T @ W_y.to(T.dtype)
    norm = torch.linalg.matrix_norm(white)
    rounding = torch.finfo(T.dtype).eps * torch.linalg.matrix_norm(T) * W_x.norm() * W_y.norm()
    norm = torch.where(norm > rounding, norm, 0.0)
    return _Problem(ratio(white, norm[:, None, None]), X, Y, Metric.of(sample), norm, W_x, W_y, p)


def _start(problem: _Problem, first: int = 0) -> tuple[Tensor, Tensor]:
    """p singular pairs of T from pair `first` on."""
    U, s, Vh = torch.linalg.svd(problem.T, full_matrices=False)
    pairs = slice(first, first + problem.p)
    return _best_length(problem, -U[..., pairs] * s[:, None, pairs], Vh[:, pairs].mH.contiguous())


def _improved(
    problem: _Problem, a: Tensor, b: Tensor, sweeps: int, iterations: int, tolerance: float
) -> tuple[Tensor, Tensor]:
    """a and b after this many sweeps, or fewer where the residual of a head is below `tolerance`."""
    a, b = a.clone(), b.clone()
    residual = _residual(problem, a, b)
    for _ in range(sweeps):
        unready = (residual >= tolerance).nonzero().squeeze(-1)
        if not len(unready):
            break
        part = problem.heads(unready)
        a[unready], b[unready] = _sweep(part, a[unready], b[unready], iterations)
        residual[unready] = _residual(part, a[unready], b[unready])
    return a, b


def _gain_of(problem: _Problem, a: Tensor, b: Tensor) -> Tensor:
    """The gain of a and b at their best length."""
    curvature = problem.metric.curvature(projected(problem.X, a), projected(problem.Y, b))
    return best_gain(_slope(problem, a, b), curvature)


def _sweep(problem: _Problem, a: Tensor, b: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """A better a for b held still, then a better b for a held still."""
    T, X, Y, metric = problem[:4]
    a, b = _orthonormal(a, b)
    k = projected(Y, b)
    a = _solved(lambda a: pulled(X, weighted_rows(metric(projected(X, a), k), k)), -T @ b, a, iterations)
    b, a = _orthonormal(b, a)
    q = projected(X, a)
    b = _solved(lambda b: pulled(Y, weighted_rows(metric(q, projected(Y, b)).mT, q)), -T.mH @ a, b, iterations)
    return a, b


def _solved(operator: Callable[[Tensor], Tensor], target: Tensor, x: Tensor, iterations: int) -> Tensor:
    """A x = target by conjugate gradients from the x given, for each head on its own.

    A head stops where A shows no curvature, or once its residual is `ENOUGH_RESIDUAL_FALL` times what it was at first:
    the other factor still changes, so that more precision would be wasted.
    """
    rest = target - operator(x)
    direction, left = rest, real_product(rest, rest)
    enough = ENOUGH_RESIDUAL_FALL**2 * left
    for _ in range(iterations):
        if bool((left <= enough).all()):
            break
        bent = operator(direction)
        curve = real_product(direction, bent)
        going = (left > enough) & (curve > torch.finfo(x.dtype).eps * real_product(direction, direction))
        step = torch.where(going, ratio(left, curve), 0.0)[:, None, None]
        x, rest = x + step * direction, rest - step * bent
        left, before = real_product(rest, rest), left
        direction = rest + ratio(left, before)[:, None, None] * direction
    return x


def _residual(problem: _Problem, a: Tensor, b: Tensor) -> Tensor:
    T, X, Y, metric = problem[:4]
    (Q_a, _), (Q_b, _) = torch.linalg.qr(a), torch.linalg.qr(b)
    change = metric(projected(X, a), projected(Y, b))
    for_a, for_b = T @ Q_b, T.mH @ Q_a
    off_a = for_a + pulled(X, weighted_rows(change, projected(Y, Q_b)))
    off_b = for_b + pulled(Y, weighted_rows(change.mT, projected(X, Q_a)))
    norm = torch.linalg.matrix_norm
    return torch.maximum(ratio(norm(off_a), norm(for_a)), ratio(norm(off_b), norm(for_b)))


def _direction(problem: _Problem, a: Tensor, b: Tensor) -> Direction:
    """Back to the coordinates of the states, with columns in order and as many as asked for."""
    a, b = balanced(*_best_length(problem, a, b))
    norm = problem.norm
    alpha, beta = problem.W_x.to(a.dtype) @ a * norm[:, None, None], problem.W_y.to(b.dtype) @ b
    root = ratio(beta.norm(dim=-2, keepdim=True), alpha.norm(dim=-2, keepdim=True)).sqrt()
    missing = problem.p - a.shape[-1]
    return Direction(
        alpha=F.pad(alpha * root, (0, missing)),
        beta=F.pad(ratio(beta, root), (0, missing)),
        slope=_slope(problem, a, b) * norm.square(),
        curvature=problem.metric.curvature(projected(problem.X, a), projected(problem.Y, b)) * norm.square(),
        residual=_residual(problem, a, b),
    )


def _best_length(problem: _Problem, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    curvature = problem.metric.curvature(projected(problem.X, a), projected(problem.Y, b))
    seen = curvature > torch.finfo(a.dtype).eps * real_product(a.mH @ a, b.mH @ b)
    return a * torch.where(seen, ratio(_slope(problem, a, b), curvature), 0.0)[:, None, None], b


def _slope(problem: _Problem, a: Tensor, b: Tensor) -> Tensor:
    return -real_product(problem.T @ b, a)


def _orthonormal(factor: Tensor, turned: Tensor) -> tuple[Tensor, Tensor]:
    """The same product with the second factor orthonormal."""
    Q, R = torch.linalg.qr(turned)
    return factor @ R.mH, Q
