"""S3: Burgund on fits of low rank, by which queries and keys grow."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnworks.attention.softmax import scaled_dot
from attnworks.reshape.growth.solvers import balanced, lowrank_fit, truncated_fit
from attnworks.theory.cases import Draws
from attnworks.theory.claims.s3_heads import lowest_found, misfit, nearest_of_rank, one_head, states
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, TYPO, ClaimResult, between, statement
from attnworks.theory.sides import at_most, same, stacked


@statement("S3.14", "2", HOLDS).says(
    "The fit is a low rank regression limited by $d_k$ (if $d_k < d_e$), and $B$ is known.",
    correction=r"$\operatorname{rank}(XZX^\top) \le d_k$.",
    compares="rank of the scores, and $d_k$",
)
@between(n=(1, 11), k=(1, 7), extra=(1, 4))
def rank_of_the_scores(draw: Draws, n: int = 7, k: int = 2, extra: int = 3) -> ClaimResult:
    head = one_head(draw, draw.normal(n, k + extra), k, 2)
    return ClaimResult(at_most(torch.linalg.matrix_rank(head.M), k))


@statement("S3.15", "2", TYPO).says(
    r"$X(W_Q + \partial W_Q)$ is $d_e \times d_k$, and $(W_K + \partial W_K)^\top X^\top$ is $d_k \times d_e$.",
    correction=r"$d_s \times d_k$ and $d_k \times d_s$.",
    compares="rows (or columns) of a factor, and as printed; corrected: and with $d_s$",
)
@between(e=(1, 7), k=(1, 7), extra=(1, 4))
def shapes_of_the_factors(draw: Draws, e: int = 3, k: int = 2, extra: int = 2) -> ClaimResult:
    n = e + extra
    X, W_Q, W_K = draw.normal(n, e), draw.normal(e, k), draw.normal(e, k)
    shapes = stacked(*(X @ W_Q).shape, *(W_K.mT @ X.mT).shape)
    return ClaimResult(same(shapes, stacked(e, k, k, e)), corrected=same(shapes, stacked(n, k, k, n)))


@statement("S3.16", "2", CONDITION).says(
    r"$X(W_Q + \partial W_Q)(W_K + \partial W_K)^\top X^\top$ is approximated with a truncated SVD, by the first $d_k$ "
    "singular values.",
    correction=r"If it is the SVD of $\Pi B \Pi$ with $\Pi = XX^+$: that of $B$ is in general not of the form "
    r"$XZX^\top$.",
    compares=r"misfit of the truncated $\Pi B\Pi$, and the least one; without: of $B$ truncated first, and the least "
    "one",
)
@between(e=(2, 7), k=(1, 2), extra=(1, 4), condition=(1.0, 10.0))
def truncation_of_the_target(
    draw: Draws, e: int = 5, k: int = 2, extra: int = 3, condition: float = 3.0
) -> ClaimResult:
    """Without the condition, B is truncated first and brought to that form afterwards."""
    X, B = states(draw, e + extra, e, condition), draw.normal(e + extra, e + extra)
    projector = X @ torch.linalg.pinv(X)
    least = misfit(B, X, lowrank_fit(B, X, k).Z)
    inside = nearest_of_rank(projector @ B @ projector, k)
    outside = projector @ nearest_of_rank(B, k) @ projector
    return ClaimResult(same((B - inside).square().sum(), least), without=same((B - outside).square().sum(), least))


@statement("S3.17", "2", CONDITION).says(
    "To grow by $p$, take the first $d_{k'} = d_k + p$ singular values.",
    correction=r"If the scores keep their scale: keep $1/\sqrt{d_k}$, or multiply $W_Q$ by $\sqrt{d_{k'}/d_k}$; else "
    "the function jumps before training.",
    compares="score after growing, and before; without: divided by the root of the new width",
)
@between(n=(2, 11), k=(1, 7), p=(1, 4), spare=(0, 4))
def growth_by_more_singular_values(draw: Draws, n: int = 5, k: int = 2, p: int = 2, spare: int = 3) -> ClaimResult:
    """The scores themselves are fitted, and should come back; without the condition they are divided by sqrt(k')."""
    e = k + p + spare
    head = one_head(draw, states(draw, n, e, 2.0), k, 3)
    fit = lowrank_fit(head.M, head.X, k + p)
    Q, K = head.X @ fit.left, head.X @ fit.right
    new_scale = (k + p) ** -0.5
    kept = torch.stack([scaled_dot(Q, K, head.scale), scaled_dot(math.sqrt((k + p) / k) * Q, K, new_scale)])
    jumped = scaled_dot(Q, K, new_scale)
    figures = {"loss before": float(head.loss(head.S)), "loss by the new scale alone": float(head.loss(jumped))}
    return ClaimResult(same(kept, head.S), without=same(jumped, head.S), figures=figures)


@statement("S3.18", "2", TYPO).says(
    r"$Z = \tilde W_Q \tilde W_K^\top = [W_Q + \partial W_Q \mid \tilde W_Q][W_K + \partial W_K \mid \tilde "
    r"W_K]^\top$, where the last $\tilde W_Q$ is $d_e \times p$",
    correction=r"$\tilde W$ names two things: the whole is $d_e \times d_{k'}$, the new block $d_e \times p$. $Z = "
    r"(W_Q + \partial W_Q)(W_K + \partial W_K)^\top$ plus the product of the new blocks is right.",
    compares=r"columns of the whole $\tilde W_Q$, and of its new block; corrected: entry of $Z$, and of the sum of "
    "both products",
)
@between(e=(1, 7), k=(1, 7), p=(1, 4))
def blocks_of_the_grown_weights(draw: Draws, e: int = 7, k: int = 2, p: int = 3) -> ClaimResult:
    (old_q, old_k), (new_q, new_k) = ((draw.normal(e, width), draw.normal(e, width)) for width in (k, p))
    whole_q, whole_k = torch.cat([old_q, new_q], -1), torch.cat([old_k, new_k], -1)
    return ClaimResult(
        same(torch.tensor(whole_q.shape), torch.tensor(new_q.shape)),
        corrected=same(whole_q @ whole_k.mT, old_q @ old_k.mT + new_q @ new_k.mT),
    )


@statement("S3.19", "2", HOLDS, heavy=True).says(
    r"$\arg\min_Z \lVert B - XZX^\top \rVert_F^2$ subject to $\operatorname{rank}(Z) \le d_{k'}$",
    correction="The constraint is not convex, but there is a closed form (S3.27, corrected).",
    compares="misfit of the closed form, and the least that gradient descent finds",
)
@between(n=(2, 11), e=(2, 7), k=(1, 7), condition=(1.0, 10.0))
def the_problem_of_growing(draw: Draws, n: int = 7, e: int = 5, k: int = 2, condition: float = 3.0) -> ClaimResult:
    """Gradient descent from a drawn Z and from near the closed form; neither comes below it."""
    X, B = states(draw, n, e, condition), draw.normal(n, n)
    best = lowrank_fit(B, X, k)
    beside = best._replace(left=best.left + 0.1 * draw.normal(e, k), right=best.right + 0.1 * draw.normal(e, k))
    elsewhere = best._replace(left=draw.normal(e, k), right=draw.normal(e, k))
    found = torch.tensor([lowest_found(B, X, start) for start in (beside, elsewhere)], dtype=torch.float64)
    return ClaimResult(at_most(misfit(B, X, best.Z), found), figures={"value of Z = 0": float(B.square().sum())})


@statement("S3.20", "2", HOLDS).says(
    r"$f(Z) = \lVert B - XZX^\top \rVert_F^2$ is convex.",
    correction="Strictly so if and only if $X$ has full column rank.",
    compares="$f$ at a point between two others, and on the chord there",
)
@between(n=(1, 11), e=(1, 7), share=(0.0, 1.0))
def convexity_of_the_fit(draw: Draws, n: int = 7, e: int = 5, share: float = 0.3) -> ClaimResult:
    """For the figure X loses its last column, and Z changes in its last entry alone."""
    X, B, Z, other = draw.normal(n, e), draw.normal(n, n), draw.normal(e, e), draw.normal(e, e)

    def sides(X: Tensor, Z: Tensor, other: Tensor) -> tuple[Tensor, Tensor]:
        ends = share * misfit(B, X, Z) + (1 - share) * misfit(B, X, other)
        return misfit(B, X, share * Z + (1 - share) * other), ends

    narrow, moved = X.clone(), Z.clone()
    narrow[:, -1], moved[-1, -1] = 0.0, moved[-1, -1] + 1.0
    below, above = sides(narrow, Z, moved)
    figures = {"gap of the two sides without full column rank": float(above - below)}
    return ClaimResult(at_most(*sides(X, Z, other)), figures=figures)


def _slope(B: Tensor, X: Tensor, Z: Tensor) -> Tensor:
    """The gradient of f, by automatic differentiation."""
    Z = Z.clone().requires_grad_()
    return torch.autograd.grad(misfit(B, X, Z), Z)[0]


@statement("S3.21", "2", HOLDS).says(
    r"$\nabla_Z f = -2X^\top(B - XZX^\top)X$",
    compares="entry of the printed gradient, and by automatic differentiation",
)
@between(n=(1, 11), e=(1, 7))
def gradient_of_the_fit(draw: Draws, n: int = 7, e: int = 5) -> ClaimResult:
    X, B, Z = draw.normal(n, e), draw.normal(n, n), draw.normal(e, e)
    return ClaimResult(same(-2 * X.mT @ (B - X @ Z @ X.mT) @ X, _slope(B, X, Z)))


@statement("S3.22", "2", HOLDS).says(
    r"$\nabla_Z f = 0 \Leftrightarrow X^\top XZX^\top X = X^\top BX$",
    compares="entry of left less right side of the equation, and of half the gradient",
)
@between(n=(1, 11), e=(1, 7))
def normal_equations(draw: Draws, n: int = 7, e: int = 5) -> ClaimResult:
    """Half the gradient is the difference of the two sides, at any Z."""
    X, B, Z = draw.normal(n, e), draw.normal(n, n), draw.normal(e, e)
    gram = X.mT @ X
    return ClaimResult(same(gram @ Z @ gram - X.mT @ B @ X, _slope(B, X, Z) / 2))


@statement("S3.23", "2", HOLDS).says(
    r"If $d_e \le d_s$ and $\operatorname{rank}(X) = d_e$: $Z^\ast = (X^\top X)^{-1} X^\top B X (X^\top X)^{-1}$.",
    correction="In floating point better by QR or SVD than by the inverse.",
    compares=r"entry of the printed $Z^\ast$, and of our fit",
)
@between(e=(1, 7), extra=(0, 4), condition=(1.0, 10.0))
def solution_with_full_rank(draw: Draws, e: int = 5, extra: int = 2, condition: float = 3.0) -> ClaimResult:
    X, B = states(draw, e + extra, e, condition), draw.normal(e + extra, e + extra)
    inverse = torch.linalg.inv(X.mT @ X)
    Z = inverse @ X.mT @ B @ X @ inverse
    figures = {"slope at the solution": float(_slope(B, X, Z).norm())}
    return ClaimResult(same(Z, lowrank_fit(B, X, e).Z), figures=figures)


@statement("S3.24", "2", HOLDS).says(
    r"In general: $Z^\ast = X^+ B (X^+)^\top$.",
    correction="It is the solution of least norm.",
    compares=r"entry of $X^\top XZ^\ast X^\top X$, and of $X^\top BX$ (or of our fit, or of $X^+XZ^\ast X^+X$, and of "
    r"$Z^\ast$)",
)
@between(rank=(1, 7), rows=(0, 4), columns=(0, 4))
def solution_in_general(draw: Draws, rank: int = 3, rows: int = 2, columns: int = 2) -> ClaimResult:
    """It solves the normal equations, and has no part outside the rows of X, which would make it longer."""
    n, e = rank + rows, rank + columns
    X, B = states(draw, n, e, 3.0, rank), draw.normal(n, n)
    inverse = torch.linalg.pinv(X)
    Z, gram, seen = inverse @ B @ inverse.mT, X.mT @ X, inverse @ X
    ours = truncated_fit(B, X, e).Z
    return ClaimResult(same(torch.stack([gram @ Z @ gram, seen @ Z @ seen, ours]), torch.stack([X.mT @ B @ X, Z, Z])))


@statement("S3.25", "2", FALSE).says(
    r"In general, $X^+ = (X^\top X)^{-1} X^\top$ is the Moore-Penrose inverse.",
    correction=r"Only with full column rank. Else $(X^\top X)^{-1}$ does not exist (always so for $d_s < d_e$), and "
    r"$X^+ = V\Sigma^+U^\top$.",
    compares=r"rank of $X^\top X$, and the $d_e$ that its inverse needs; corrected: entries of both sides of Penrose's "
    "equations",
)
@between(rank=(1, 7), rows=(0, 4), missing=(1, 4))
def inverse_in_general(draw: Draws, rank: int = 3, rows: int = 2, missing: int = 2) -> ClaimResult:
    """The inverse would need rank d_e. The four equations of Penrose say what the general one is."""
    n, e = rank + rows, rank + missing
    X = states(draw, n, e, 3.0, rank)
    U, s, Vh = torch.linalg.svd(X)
    inverse = Vh[:rank].mT / s[:rank] @ U[:, :rank].mT
    left, right = inverse @ X, X @ inverse
    products = [X @ inverse @ X, inverse @ X @ inverse, left, right]
    expected = [X, inverse, left.mT, right.mT]
    return ClaimResult(
        same(torch.linalg.matrix_rank(X.mT @ X), e),
        corrected=same(*(torch.cat([part.flatten() for part in parts]) for parts in (products, expected))),
    )


@statement("S3.26", "2", CONDITION).says(
    r"If $d_{k'} \ge d_e$: $W_Q = Z^\ast$ and $W_K = I_{d_e}$.",
    correction="For $d_{k'} = d_e$; for more, with columns of zeros beside both.",
    compares="misfit with these factors, and the least one (or columns, and $d_e$); without: columns of $W_K$, and "
    "$d_{k'} > d_e$",
)
@between(n=(1, 11), e=(1, 7), extra=(1, 4))
def factors_without_a_limit(draw: Draws, n: int = 7, e: int = 5, extra: int = 2) -> ClaimResult:
    """Product and number of columns; without the condition there are fewer columns than d_k'."""
    X, B = states(draw, n, e, 3.0), draw.normal(n, n)
    W_Q, W_K = truncated_fit(B, X, e).Z, torch.eye(e, dtype=torch.float64)
    best = lowrank_fit(B, X, e + extra)
    found, columns = stacked(misfit(B, X, W_Q @ W_K.mT), W_K.shape[1]), best.right.shape[1]
    return ClaimResult(same(found, stacked(best.value, e)), without=same(W_K.shape[1], columns))


@statement("S3.27", "2", FALSE, heavy=True).says(
    r"By Eckart, Young and Mirsky, the truncated SVD of $Z^\ast = X^+B(X^+)^\top$ is the best solution of rank "
    "$d_{k'}$.",
    correction=r"It is nearest to $Z^\ast$, not best for the problem. With $X = U\Sigma V^\top$ (thin), $Z_k = "
    r"V\Sigma^{-1}[U^\top BU]_k\Sigma^{-1}V^\top = X^+[\Pi B\Pi]_k(X^+)^\top$, $\Pi = XX^+$. The two are equal for "
    r"every $B$ if and only if $X^\top X \propto I$ on its range.",
    compares=r"misfit of the truncated $Z^\ast$, and of the closed form; corrected: of the closed form, and the least "
    "that descent finds",
)
@between(n_extra=(0, 4), k=(1, 3), extra=(1, 4), condition=(3.0, 100.0))
def truncated_solution(
    draw: Draws, n_extra: int = 3, k: int = 2, extra: int = 2, condition: float = 10.0
) -> ClaimResult:
    """Corrected: gradient descent from the printed solution finds nothing better than the closed form."""
    e = k + extra
    n = e + n_extra
    X, B = states(draw, n, e, condition), draw.normal(n, n)
    printed, best = truncated_fit(B, X, k), lowrank_fit(B, X, k)
    least, level = misfit(B, X, best.Z), states(draw, n, e)
    figures = {
        "value as printed over the least one": printed.value / best.value,
        "the same where all singular values of X are equal": truncated_fit(B, level, k).value
        / lowrank_fit(B, level, k).value,
        "value of Z = 0 over the least one": float(B.square().sum()) / best.value,
    }
    return ClaimResult(
        at_most(printed.value, least), corrected=at_most(least, lowest_found(B, X, printed)), figures=figures
    )


@statement("S3.28", "2", TYPO).says(
    r"$Z^\ast = U\Sigma V^\top$, of which the $d_{k'}$ largest singular values are kept, has "
    r"$\operatorname{rank}(Z^\ast_k) = d_{k'}$ (printed a second time without its right side).",
    correction=r"$\operatorname{rank}(Z^\ast_k) = \min(d_{k'}, \operatorname{rank} Z^\ast)$",
    compares=r"rank of the truncated $Z^\ast$, and $d_{k'}$; corrected: and $\min(d_{k'}, \operatorname{rank}Z^\ast)$",
)
@between(rank=(1, 7), extra=(1, 4), spare=(0, 4))
def rank_of_the_truncation(draw: Draws, rank: int = 2, extra: int = 2, spare: int = 2) -> ClaimResult:
    """B has a lower rank than d_k'; corrected, also a B of full rank."""
    k = rank + extra
    e = k + spare
    X, full = states(draw, e + 2, e, 3.0), draw.normal(e + 2, e + 2)
    low = X @ draw.orthonormal(e, rank) @ draw.orthonormal(e, rank).mT @ X.mT
    kept, whole = (
        torch.tensor([int(torch.linalg.matrix_rank(truncated_fit(B, X, width).Z, rtol=1e-9)) for B in (low, full)])
        for width in (k, e)
    )
    return ClaimResult(same(kept[0], k), corrected=same(kept, whole.clamp_max(k)))


@statement("S3.29", "2", HOLDS).says(
    r"$W_Q^\ast = U_k\Sigma_k^{1/2}$ and $W_K^\ast = V_k\Sigma_k^{1/2}$",
    correction=r"For the right $Z_k$, by the SVD of $Z_k$ itself. Unique up to $W_QA$ and $W_KA^{-\top}$.",
    compares="entry of the product of the printed factors (or of one with itself), and of ours",
)
@between(e=(1, 7), k=(1, 7))
def factors_of_the_solution(draw: Draws, e: int = 5, k: int = 2) -> ClaimResult:
    """Any two factors give the same product as those of its SVD, whose squares are both Sigma_k."""
    k = min(e, k)
    left, right = draw.orthonormal(e, k) @ draw.normal(k, k), draw.orthonormal(e, k)
    U, s, Vh = torch.linalg.svd(left @ right.mT)
    W_Q, W_K = U[:, :k] * s[:k].sqrt(), Vh[:k].mT * s[:k].sqrt()
    evened = balanced(left, right)
    found = [W_Q @ W_K.mT, W_Q.mT @ W_Q, W_K.mT @ W_K]
    expected = [evened[0] @ evened[1].mT, evened[0].mT @ evened[0], evened[1].mT @ evened[1]]
    return ClaimResult(same(*(torch.cat([part.flatten() for part in parts]) for parts in (found, expected))))


@statement("S3.30", "remark 2.1", FALSE).says(
    r"$\min \lVert B - XW_QW_K^\top X^\top \rVert_F^2 = \sum_{i > d_{k'}} \sigma_i^2$ with the singular values "
    r"$\sigma_i$ of $Z^\ast$",
    correction=r"$\min = \lVert B \rVert_F^2 - \lVert \Pi B \Pi \rVert_F^2 + \sum_{i > k} \sigma_i(\Pi B \Pi)^2$ with "
    r"$\Pi = XX^+$. As printed only if $X$ has orthonormal columns and $B = \Pi B \Pi$.",
    compares="the printed sum, and the least misfit; corrected: the right formula, and the least misfit",
)
@between(n_extra=(0, 4), k=(1, 3), extra=(1, 4), condition=(3.0, 100.0))
def least_value(draw: Draws, n_extra: int = 3, k: int = 2, extra: int = 2, condition: float = 10.0) -> ClaimResult:
    e = k + extra
    n = e + n_extra
    X, B = states(draw, n, e, condition), draw.normal(n, n)
    inverse = torch.linalg.pinv(X)
    inside = X @ inverse @ B @ X @ inverse
    least = misfit(B, X, lowrank_fit(B, X, k).Z)
    printed = _beyond(inverse @ B @ inverse.mT, k)
    level = states(draw, n, e)
    special = level @ draw.normal(e, e) @ level.mT
    figures = {
        "orthonormal columns, B within: the least value": lowrank_fit(special, level, k).value,
        "orthonormal columns, B within: as printed": float(_beyond(level.mT @ special @ level, k)),
    }
    return ClaimResult(
        same(printed, least),
        corrected=same(B.square().sum() - inside.square().sum() + _beyond(inside, k), least),
        figures=figures,
    )


def _beyond(Z: Tensor, k: int) -> Tensor:
    """The sum of squares of all singular values but the k largest."""
    return torch.linalg.svdvals(Z)[k:].square().sum()


@statement("S3.31", "2", CONDITION).says(
    "The gradient with respect to $S$, just before the softmax, avoids the softmax's non-linearity.",
    correction=r"In the step from $Z = W_QW_K^\top$ to $S$, which is linear, so that the fit is a linear regression. "
    r"The loss as a function of $S$ keeps the softmax: $\nabla_S\mathcal L$ contains its Jacobian, and the first order "
    "leaves a rest of second order (S3.10).",
    compares="entry of the scores of $Z_1 + Z_2$, and of the sum of both scores; without: loss after a step, and by "
    "the first order",
)
@between(n=(2, 11), e=(1, 7), k=(1, 7), step=(0.1, 3.0))
def linear_before_the_softmax(draw: Draws, n: int = 5, e: int = 3, k: int = 2, step: float = 1.0) -> ClaimResult:
    head = one_head(draw, draw.normal(n, e), k, 2)
    other = head._replace(W_Q=draw.normal(e, k), W_K=draw.normal(e, k))
    Z = head.W_Q @ head.W_K.mT + other.W_Q @ other.W_K.mT
    G, change = head.gradient(), draw.normal(n, n)
    change *= step / change.norm()
    return ClaimResult(
        same(head.scale * head.X @ Z @ head.X.mT, head.S + other.S),
        without=same(head.loss(head.S + change), head.loss(head.S) + (G * change).sum()),
        figures={"norm of the gradient": float(G.norm())},
    )
