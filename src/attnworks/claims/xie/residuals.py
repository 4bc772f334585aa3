"""S0: Xie 2021, definition 2.1: the composite norm and the residual."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from attnworks.claims.contract import Between, Finding, Verdict, statement
from attnworks.claims.drawing import Draw
from attnworks.claims.sides import at_most
from attnworks.linalg.norms import NORMS, composite, frobenius, quasi_norm_constant, spectral
from attnworks.linalg.residual import residual, residual_norm

Rows = Annotated[int, Between(2, 13)]
Width = Annotated[int, Between(1, 13)]
Spread = Annotated[float, Between(1.0, 5.0)]


def row_and_column(m: int, n: int) -> tuple[Tensor, Tensor]:
    """A = s 1 e_0^T and B = e_0 1^T with equal composite norms, whose sum is as large as it can be (D3)."""
    A, B = torch.zeros(2, m, n, dtype=torch.float64).unbind()
    A[:, 0], B[0] = (n / m) ** 0.5, 1.0
    return A, B


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
)
def composite_norm(draw: Draw, m: Width = 5, n: Rows = 7, power: Spread = 3.0) -> Finding:
    """A matrix with one column of ones and one with one row of ones: their sum is larger than both together."""
    A, B = row_and_column(m, n)
    C, D, F = peaked(draw, m, n, power), peaked(draw, m, n, power), peaked(draw, n, m, power)
    K = quasi_norm_constant(m, n)
    laws = [
        composite(A + B) / (K * (composite(A) + composite(B))),
        composite(C + D) / (K * (composite(C) + composite(D))),
        composite(C @ F) / (composite(C) * composite(F)),
        spectral(C) / composite(C),
        composite(C) / ((m * n) ** 0.25 * spectral(C)),
    ]
    return Finding(
        stated=at_most(composite(A + B), composite(A) + composite(B)),
        corrected=at_most(torch.stack(laws), 1.0),
        figures={"sum over what a norm allows": float(K * laws[0]), "quasi-norm constant": K},
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
    shares = [norm(R) / norm(R - others) for norm in (frobenius, spectral)]
    worst = 2 * (1 - 1 / n)
    shares += [(NORMS[name](R) / (worst * residual_norm(X, name))).view(1) for name in ("one", "inf", "composite")]
    single = torch.eye(n, 1, dtype=torch.float64)
    cross = torch.tensor([[3.0, 0.0], [-3.0, 0.0], [0.0, 1.0], [0.0, -1.0]], dtype=torch.float64)
    tie = torch.tensor([0.0, 0.5], dtype=torch.float64)
    return Finding(
        stated=at_most(torch.cat(shares), 1.0),
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
)
def as_a_distance(draw: Draw, m: Width = 5, n: Rows = 7, power: Spread = 3.0) -> Finding:
    """Without: the triangle inequality on a matrix of one column and one of one row."""
    X = peaked(draw, m, n, power)
    within = torch.stack([spectral(X) / composite(X), composite(X) / ((m * n) ** 0.25 * spectral(X))])
    A, B = row_and_column(m, n)
    return Finding(stated=at_most(within, 1.0), without=at_most(composite(A + B), composite(A) + composite(B)))
