"""S0: Xie 2021, definition 2.1: the composite norm and the residual."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from attnworks.exam.linalg.bounds import diameter
from attnworks.exam.linalg.residual import (
    NORMS,
    composite,
    frobenius,
    quasi_norm_constant,
    residual,
    residual_norm,
    spectral,
)
from attnworks.theory.cases import Draw
from attnworks.theory.collapse_shares import row_and_column
from attnworks.theory.contract import Between, Finding, Verdict, statement
from attnworks.theory.sides import at_most

Rows = Annotated[int, Between(2, 13)]
Width = Annotated[int, Between(1, 13)]
Spread = Annotated[float, Between(1.0, 5.0)]


def peaked(draw: Draw, m: int, n: int, power: float) -> Tensor:
    """Normal numbers, the large ones larger still, so that norms differ."""
    M = draw.normal(m, n)
    return M.sign() * M.abs() ** power


@statement(
    "S0.13",
    where="definition 2.1",
    says=r"The composite norm $\lVert X\rVert_{1,\infty} = \sqrt{\lVert X\rVert_1 \lVert X\rVert_\infty}$ is a norm.",
    verdict=Verdict.FALSE,
    correction=r"The triangle inequality fails. It is definite, homogeneous and submultiplicative, and a quasi-norm "
    r"with the sharp constant $K_{m,n} = \frac{1}{2}((mn)^{1/4} + (mn)^{-1/4})$, which is $\frac{n+1}{2\sqrt n}$ for "
    r"square matrices; and $\lVert X\rVert_2 \le \lVert X\rVert_{1,\infty} \le (mn)^{1/4}\lVert X\rVert_2$.",
    compares=r"$\lVert A + B\rVert$, and $\lVert A\rVert + \lVert B\rVert$ in this norm; corrected: largest ratio of "
    r"left to right side of these laws, and 1",
)
def composite_norm(draw: Draw, m: Width = 5, n: Rows = 7, power: Spread = 3.0) -> Finding:
    """A matrix with one column of ones and one with one row of ones: their sum is larger than both together."""
    A, B = row_and_column(m, n)
    C, D, F = peaked(draw, m, n, power), peaked(draw, m, n, power), peaked(draw, n, m, power)
    K = quasi_norm_constant(m, n)
    attained = composite(A + B) / (K * (composite(A) + composite(B)))
    laws = [
        attained,
        1 / attained,
        composite(C + D) / (K * (composite(C) + composite(D))),
        composite(-power * C) / (power * composite(C)),
        composite(C @ F) / (composite(C) * composite(F)),
        spectral(C) / composite(C),
        composite(C) / ((m * n) ** 0.25 * spectral(C)),
    ]
    return Finding(
        stated=at_most(composite(A + B), composite(A) + composite(B)),
        corrected=at_most(torch.stack(laws), 1.0),
        figures={"sum over what a norm allows": float(K * attained), "quasi-norm constant": K},
    )


@statement(
    "S0.14",
    where="definition 2.1",
    says=r"$\operatorname{res}(X) = X - \mathbf 1x^\top$ with $x = \arg\min_x \lVert X - \mathbf 1x^\top\rVert_2$",
    verdict=Verdict.CONDITION,
    correction=r"The norm must be named. Frobenius: $x$ is the mean of each column, and unique. Spectral, and every "
    r"unitarily invariant norm: the mean is a minimiser, but not the only one. Induced 1: the median of each column. "
    r"Entrywise maximum: the midrange. Induced $\infty$ and composite: no closed form, linear programs (D4). The "
    r"residual from the mean is at most $2(1 - 1/n)$ times the best one in each of 1, $\infty$ and composite.",
    compares="norm of the residual from the mean, and from another row (or its bound); without: largest row sum from "
    "the mean, and the least one",
    heavy=True,
)
def mean_row(
    draw: Draw,
    n: Annotated[int, Between(3, 7)] = 5,
    e: Annotated[int, Between(1, 5)] = 3,
    power: Spread = 3.0,
) -> Finding:
    """Without: in the induced norm of rows, the mean of one row 1 and n - 1 rows 0 is further from 1 than one half."""
    X = peaked(draw, n, e, power)
    R, others = residual(X), draw.normal(17, 1, e)
    from_mean = [norm(R).expand(17) for norm in (frobenius, spectral)]
    from_others = [norm(R - others) for norm in (frobenius, spectral)]
    for name in ("one", "inf", "composite"):
        from_mean.append(NORMS[name](R).view(1))
        from_others.append(2 * (1 - 1 / n) * residual_norm(X, name).view(1))
    single = torch.eye(n, 1, dtype=torch.float64)
    cross = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    tie = torch.tensor([0.0, 0.5], dtype=torch.float64)
    return Finding(
        stated=at_most(torch.cat(from_mean), torch.cat(from_others)),
        without=at_most(NORMS["inf"](residual(single)), residual_norm(single, "inf")),
        figures={
            "composite residual from the mean": float(composite(R)),
            "least composite residual": float(residual_norm(X, "composite")),
            "spectral tie, from the mean": float(spectral(residual(cross))),
            "spectral tie, from another row": float(spectral(cross - tie)),
        },
    )


@statement(
    "S0.35",
    where="§2.4, problem 2",
    says="If a norm does not satisfy the triangle inequality, can it represent distance?",
    verdict=Verdict.CONDITION,
    correction=r"It is no metric, but equivalent to the spectral norm within $(mn)^{1/4}$, so that its tending to "
    r"zero means something. Sums over heads may lose a factor $K_{n,d}$: the constant for several heads is not $H$ "
    r"(S1.14). $\operatorname{diam}_2$ is a true seminorm.",
    compares=r"a norm or diameter, and its bound; without: $\lVert A + B\rVert_{1,\infty}$, and $\lVert "
    r"A\rVert_{1,\infty} + \lVert B\rVert_{1,\infty}$",
)
def as_a_distance(draw: Draw, m: Width = 5, n: Rows = 7, power: Spread = 3.0) -> Finding:
    """Without: the triangle inequality on a matrix of one column and one of one row."""
    X, Z = peaked(draw, m, n, power), peaked(draw, m, n, power)
    A, B = row_and_column(m, n)
    left = torch.stack([spectral(X), composite(X), diameter(X + Z)])
    right = torch.stack([composite(X), (m * n) ** 0.25 * spectral(X), diameter(X) + diameter(Z)])
    return Finding(stated=at_most(left, right), without=at_most(composite(A + B), composite(A) + composite(B)))
