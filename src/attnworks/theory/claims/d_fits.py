"""D10-D12: growing queries and keys by a fit of low rank, and the nearest structured form of a head."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnworks.attention.softmax import scaled_dot
from attnworks.exam.structure.search import best_blocks, best_map, best_order, best_permutation, gain
from attnworks.reshape.growth.solvers import lowrank_fit, truncated_fit
from attnworks.theory import cases
from attnworks.theory.cases import Draws
from attnworks.theory.claims.s3_heads import misfit, one_head, states
from attnworks.theory.contract import HOLDS, ClaimResult, between, statement
from attnworks.theory.sides import same, stacked
from attnworks.theory.structured_sets import project_to_band, row_report


@statement("D10", "derived", HOLDS).says(
    r"With $M = XW_QW_K^\top X^\top$, $S = M/\sqrt{d_k}$ and $G = \nabla_S\mathcal L$: fit $B = M - \eta "
    r"G/\sqrt{d_k}$. For $X = U\Sigma V^\top$ (thin, without $\sigma \le r\sigma_1$) the best $Z$ of rank $d_{k'}$ is "
    r"$V\Sigma^{-1}[U^\top BU]_{k'}\Sigma^{-1}V^\top$, its value $\lVert B \rVert_F^2 - \lVert U^\top BU \rVert_F^2 + "
    r"\sum_{i > k'} \sigma_i(U^\top BU)^2$; the factors come from the SVD of $Z$. Keep $1/\sqrt{d_k}$, or multiply "
    r"$W_Q$ by $\sqrt{d_{k'}/d_k}$. Over several sequences, $\sum_b X_b^\top X_b Z X_b^\top X_b = \sum_b X_b^\top B_b "
    "X_b$ is a Kronecker system without such a form; the mean of the solutions of single sequences is not the best, "
    "and with a limit on the rank no closed form is known.",
    compares="least misfit, and by the formula (or entries of both factors, scores in both scales, the lower loss, and "
    "the one said to be lower)",
    proof=r"$\lVert B - XZX^\top \rVert_F^2 = \lVert B \rVert_F^2 - \lVert U^\top BU \rVert_F^2 + \lVert U^\top BU - "
    r"\Sigma V^\top ZV\Sigma \rVert_F^2$, and $\Sigma V^\top ZV\Sigma$ runs through all matrices of rank $d_{k'}$ or "
    "less: the theorem of Eckart, Young and Mirsky applies to it, and not to $Z$. The sign and the scale are those of "
    r"a step down the gradient by $M$, $\nabla_M\mathcal L = G/\sqrt{d_k}$. The system of several sequences is the sum "
    "of their gradients set to zero.",
)
@between(n=(2, 7), k=(1, 3), p=(1, 3), lost=(0, 2), step=(0.1, 1.0))
def growing_queries_and_keys(
    draw: Draws, n: int = 5, k: int = 2, p: int = 2, lost: int = 1, step: float = 1.0
) -> ClaimResult:
    """Sides that are equal; and of two losses, or two misfits, the smaller one and the one that is said to be smaller.

    The loss is weighted as in S3.13, and falls where the fit is exact. For the value, X lacks `lost` directions but for
    rounding.
    """
    X = states(draw, n, n + lost, 2.0)
    head = one_head(draw, X, k, 3)
    head = head._replace(weight=1 / (2 * head.curvature()))
    B = head.M - step * head.scale * head.gradient()
    exact, fit = lowrank_fit(B, X, n), lowrank_fit(B, X, k + p)
    Q, K = X @ fit.left, X @ fit.right
    rescaled = scaled_dot(math.sqrt((k + p) / k) * Q, K, (k + p) ** -0.5)
    before, after = head.loss(head.S), head.loss(X @ exact.Z @ X.mT * head.scale)
    (best, mean, slope), kept = _two_sequences(draw, n + 2, 3), scaled_dot(Q, K, head.scale)
    value, formula = _least_value(draw, n + lost, n, k + p)
    left = stacked(value, fit.left.mT @ fit.left, rescaled, before.minimum(after), slope, best.minimum(mean))
    right = stacked(formula, fit.right.mT @ fit.right, kept, after, torch.zeros_like(slope), best)
    figures = {
        "change of the loss, relative": float(after / before) - 1,
        "change of the loss with this rank": float(head.loss(kept) / before) - 1,
        "two sequences: mean of solutions over the best": float(mean / best),
    }
    return ClaimResult(same(left, right), figures=figures)


def _least_value(draw: Draws, e: int, rank: int, k: int) -> tuple[Tensor, Tensor]:
    """The misfit of the best fit, and its formula; all but `rank` singular values of X are rounding."""
    n = e + 2
    X, B = states(draw, n, e, 2.0, rank), draw.normal(n, n)
    fit = lowrank_fit(B, X + 1e-15 * draw.normal(n, e), k, rcond=1e-10)
    U = torch.linalg.svd(X).U[:, :rank]
    core = U.mT @ B @ U
    formula = B.square().sum() - core.square().sum() + torch.linalg.svdvals(core)[k:].square().sum()
    return misfit(B, X, fit.Z), formula


def _two_sequences(draw: Draws, n: int, e: int) -> tuple[Tensor, Tensor, Tensor]:
    """Misfits of the best Z for both, by the Kronecker system, and of the mean of the two solutions; slope at the best.

    The slope is relative to the size of the right side of the system.
    """
    sequences = [(draw.normal(n, e), draw.normal(n, n)) for _ in range(2)]
    system = sum((torch.kron(X.mT @ X, X.mT @ X) for X, _ in sequences), torch.zeros(e * e, e * e).double())
    target = sum((X.mT @ B @ X for X, B in sequences), torch.zeros(e, e).double())
    best = torch.linalg.solve(system, target.flatten()).view(e, e).requires_grad_()
    value = torch.stack([misfit(B, X, best) for X, B in sequences]).sum()
    slope = torch.autograd.grad(value, best)[0] / target.norm()
    mean = torch.stack([truncated_fit(B, X, e).Z for X, B in sequences]).mean(0)
    averaged = torch.stack([misfit(B, X, mean) for X, B in sequences]).sum()
    return value.detach(), averaged, slope


@statement("D11", "derived", HOLDS).says(
    r"The matrix nearest to $H$ among bands plus errors of at most $\epsilon$ is $H$ in the band, and $h$ clipped to "
    r"$[-\epsilon, \epsilon]$ outside, in $L_1$ and in Frobenius norm. With at most $s$ errors, those at the $s$ "
    r"largest $\lvert h \rvert$: they gain $\min(\lvert h \rvert, \epsilon)$ in $L_1$, and $h^2$ or $2\epsilon \lvert "
    r"h \rvert - \epsilon^2$ in the squared Frobenius norm, all of which grow with $\lvert h \rvert$.",
    compares="distance of the closed form from $H$ (or squared, Frobenius), and the least over all places of errors",
    proof="The distance is a sum over entries, and least where each term is: outside the band the number in "
    r"$[-\epsilon, \epsilon]$ nearest to $h$ is $h$ clipped.",
)
@between(n=(2, 4), eps=(0.0, 0.3), budget=(0, 4), sharpness=(0.1, 5.0), side=(0, 2))
def nearest_in_both_norms(
    draw: Draws, n: int = 4, eps: float = 0.1, budget: int = 2, sharpness: float = 2.0, side: int = 0
) -> ClaimResult:
    H = draw.stochastic(n, n, sharpness=sharpness)
    nearest = project_to_band(H, side, side, eps, budget)
    tried = [cases.over_supports(H, side, eps, budget, power).min() for power in (1, 2)]
    sums, negatives = row_report(nearest.X)
    return ClaimResult(
        same(stacked(nearest.l1, nearest.frobenius.square()), stacked(*tried)),
        figures={"least sum of a row": float(sums.min()), "negative entries": float(negatives)},
    )


@statement("D12", "derived", HOLDS, heavy=True).says(
    r"The form $P$ nearest to a head $H$ in $L_1$, with errors of $\epsilon$ forgiven: (i) of all maps, the largest "
    r"weight of each row, at $2 \sum_i (1 - \max_j h_{ij})$ for $\epsilon = 0$, and it stays the best under any number "
    r"$s$ of errors; (ii) of permutations, by the Hungarian method, at $2(n - \max_\pi \sum_i h_{i\pi(i)})$; (iii) of "
    r"rows put in the order of a band, by a linear assignment with the cost $\sum_{j \notin band(p)} \max(\lvert "
    r"h_{ij} \rvert - \epsilon, 0)$ of row $i$ in place $p$; (iv) of $\Sigma_3$, by dynamic programming over the end "
    r"of the last block, with a price for each block; (v) then $E = H - P$ clipped to $[-\epsilon, \epsilon]$, at "
    r"$\sum \max(\lvert h - p \rvert - \epsilon, 0)$. The baselines are $P = 0$ and a band of free values. To order "
    "rows and columns alike is a quadratic assignment, which is NP-hard.",
    compares="distance (or gain) of the form that is found, and the best of all forms",
    proof=r"A row that sums to one has $\lVert h_i - e_j\rVert_1 = 2(1 - h_{ij})$, from which (i) and (ii) follow. In "
    "(iii) the cost is a sum over rows, each in its place, and in (iv) a sum over blocks, each with its best column.",
)
@between(n=(2, 4), eps=(0.0, 0.3), budget=(0, 9), price=(0.0, 1.0), sharpness=(0.1, 5.0), side=(0, 2))
def searches_are_exact(
    draw: Draws,
    n: int = 4,
    eps: float = 0.05,
    budget: int = 3,
    price: float = 0.2,
    sharpness: float = 2.0,
    side: int = 0,
) -> ClaimResult:
    H = draw.stochastic(n, n, sharpness=sharpness)
    maps, orders, blocks = (cases.all_maps(n), cases.all_permutations(n), cases.all_blocks(n))
    tau, permutation, G = best_map(H), best_permutation(H, 0.0), gain(H, eps)
    found = stacked(
        cases.distances(H, tau, eps),
        cases.distances(H, tau, eps, budget),
        2 * (1 - H.amax(-1)).sum(),
        cases.distances(H, permutation, 0.0),
        2 * (n - H.gather(-1, permutation.unsqueeze(-1)).sum()),
        cases.outside_in_order(H, best_order(H, side, side, eps), side, eps),
        cases.priced_gains(G, best_blocks(H, eps, price), price),
    )
    tried = stacked(
        cases.distances(H, maps, eps).min(),
        cases.distances(H, maps, eps, budget).min(),
        cases.distances(H, maps, 0.0).min(),
        cases.distances(H, orders, 0.0).min(),
        cases.distances(H, orders, 0.0).min(),
        cases.outside_in_order(H, orders, side, eps).min(),
        cases.priced_gains(G, blocks, price).max(),
    )
    figures = {"maps tried": len(maps), "members of the third family": len(blocks)}
    return ClaimResult(same(found, tried), figures=figures)
