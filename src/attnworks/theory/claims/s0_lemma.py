"""S0: Xie 2021, definition 2.1, (6)-(10) and lemma A.3: residuals, and how near attention is to equal rows."""

from __future__ import annotations

import torch
from torch import Tensor

from attnworks.attention.softmax import score_range
from attnworks.exam.linalg.bounds import row_diameter
from attnworks.exam.linalg.residual import (
    NORMS,
    best_row,
    composite,
    frobenius,
    quasi_norm_constant,
    residual,
    residual_norm,
    spectral,
)
from attnworks.theory.cases import Draws, maximise
from attnworks.theory.collapse_cases import LARGEST_LEMMA_RANGE, entrywise_gap, row_change, split_logits
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, ClaimResult, between, statement
from attnworks.theory.networks import drawn_network, row_and_column
from attnworks.theory.sides import Sides, at_least, at_most, same, stacked


@statement("S0.30", "§2.4, (6)-(7)", HOLDS).says(
    r"$PX = P(\mathbf 1x^\top + R) = \mathbf 1x^\top + PR$",
    correction="For any $x$, and any $P$ whose rows sum to one.",
    compares=r"entry of $PX$, and of $\mathbf 1x^\top + PR$",
)
@between(n=(1, 13), e=(1, 13), sharpness=(0.01, 10.0))
def common_row_passes(draw: Draws, n: int = 5, e: int = 3, sharpness: float = 1.0) -> ClaimResult:
    P, X, x = draw.stochastic(n, n, sharpness=sharpness), draw.normal(n, e), draw.normal(e)
    return ClaimResult(same(P @ X, x + P @ (X - x)))


@statement("S0.31", "§2.4, (8)", HOLDS).says(
    r"$P = \operatorname{softmax}(\mathbf 1r^\top + E)$ with $E = \frac{RW_{QK}R^\top}{\sqrt{d_{qk}}}$ and $\tilde A = "
    r"\mathbf 1r^\top$",
    correction=r"$r = \frac{RW_{QK}^\top x}{\sqrt{d_{qk}}}$, plus $\frac{RW_Kb_Q}{\sqrt{d_{qk}}}$ with a bias of the "
    r"queries; the bias of the keys and the terms with $x^\top W_{QK}x$ add the same to a whole row and drop out.",
    compares=r"entry of $\operatorname{softmax}(\mathbf 1r^\top + E)$, and attention weight of the layer",
)
@between(n=(1, 13), e=(1, 13), k=(1, 13), sharpness=(0.01, 10.0))
def scores_without_the_common_row(
    draw: Draws, n: int = 5, e: int = 3, k: int = 2, sharpness: float = 1.0
) -> ClaimResult:
    network, X, x = drawn_network(draw, e=e, k=k, qk=sharpness), draw.normal(n, e), draw.normal(e)
    layer = network.layers[0]
    assert layer.b_Q is not None
    split = split_logits(X, layer.folded()[0][0], x, network.scale, layer.W_K[0] @ layer.b_Q[0])
    return ClaimResult(same(split.P, network.run(X).maps[0][0]))


def printed_sides(size: float, weight: float, factor: float) -> tuple[Tensor, Tensor]:
    """PX, and 1 (x^T + softmax(r)^T R) + factor D 1 softmax(r)^T R, for two tokens X = (a, -a) and W_QK = w.

    Their mean is zero, hence r is zero too, and softmax(r)^T R with it.
    """
    X, W = stacked(size, -size)[:, None], stacked(weight)[:, None]
    x = best_row(X, "frobenius")
    split = split_logits(X, W, x)
    mixed = split.r.softmax(-1) @ split.R
    return split.P @ X, x + mixed + factor * score_range(split.E).unsqueeze(-1) * mixed


def gap_within_both(draw: Draws, n: int, e: int, row_range: float) -> Sides:
    """|PX - 1 y^T| over the bound of the lemma and over that by total variation, on scores of the given range."""
    X, W = draw.normal(n, e) + 3 * draw.normal(1, e), draw.normal(e, e)
    x = best_row(X, "frobenius")
    W = W * row_range / score_range(split_logits(X, W, x).E).max()
    gap, by_lemma, by_variation = entrywise_gap(X, W, x)
    floor = 1e-12 * X.abs().max()
    return at_most(torch.stack([gap / (by_lemma + floor), gap / (by_variation + floor)]), 1.0)


@statement("S0.32", "§2.4, (9)-(10)", FALSE).says(
    r"Entry by entry $PX \le \mathbf 1(x^\top + \operatorname{softmax}(r)^\top R) + 2D\mathbf "
    r"1\operatorname{softmax}(r)^\top R$.",
    correction=r"To multiply $P \le (I + 2D)\tilde P$ by $R$ is allowed for $R \ge 0$ only. True is $\lvert PX - "
    r"\mathbf 1y^\top\rvert \le 2D\mathbf 1\operatorname{softmax}(r)^\top\lvert R\rvert$ with $y = x + "
    r"R^\top\operatorname{softmax}(r)$ if $D_{ii} \le 1.2564$; and without condition $\lvert PX - \mathbf "
    r"1y^\top\rvert_{ij} \le \tanh(D_{ii}/4)\operatorname{osc}_j(X)$. This is what is wrong with the proof of problem "
    "1.",
    compares="entry of $PX$, and of the printed right side; corrected: largest share of a bound that is used, and 1",
)
@between(n=(2, 13), e=(1, 13), row_range=(0.01, LARGEST_LEMMA_RANGE), size=(0.3, 2.0), weight=(0.1, 2.0))
def upper_side_of_the_mix(
    draw: Draws, n: int = 5, e: int = 3, row_range: float = 1.0, size: float = 1.0, weight: float = 0.5
) -> ClaimResult:
    """Two tokens a and -a: the right side is zero, and attention keeps them apart."""
    left, right = printed_sides(size, weight, 2.0)
    return ClaimResult(at_most(left, right), corrected=gap_within_both(draw, n, e, row_range))


@statement("S0.33", "§2.4", FALSE).says(
    r"Likewise $PX \ge \mathbf 1(x^\top + \operatorname{softmax}(r)^\top R) - D\mathbf 1\operatorname{softmax}(r)^\top "
    "R$.",
    correction="The same slip of signs; the two-sided bounds of S0.32 take its place.",
    compares="entry of $PX$, and of the printed right side; corrected: largest share of a bound that is used, and 1",
)
@between(n=(2, 13), e=(1, 13), row_range=(0.01, LARGEST_LEMMA_RANGE), size=(0.3, 2.0), weight=(0.1, 2.0))
def lower_side_of_the_mix(
    draw: Draws, n: int = 5, e: int = 3, row_range: float = 1.0, size: float = 1.0, weight: float = 0.5
) -> ClaimResult:
    """Two tokens a and -a: the right side is zero, and attention keeps them apart."""
    left, right = printed_sides(size, weight, -1.0)
    return ClaimResult(at_least(left, right), corrected=gap_within_both(draw, n, e, row_range))


@statement("S0.34", "lemma A.3", CONDITION, heavy=True).says(
    r"$(I - D)\tilde P \le P \le (I + 2D)\tilde P$ with $D_{ii}$ the range of row $i$ of $E$ and $\tilde P = "
    r"\operatorname{softmax}(\mathbf 1r^\top)$.",
    correction=r"The left side always; the right side if and only if $e^{D} \le 1 + 2D$, that is $D_{ii} \le 1.25643$, "
    "which is never said. Without condition the ratio of the entries lies in $[e^{-D}, e^{D}]$, and the total "
    r"variation is at most $\tanh(D/4)$.",
    compares="largest ratio of left to right side of these bounds, and 1; without: ratio of an entry of $P$ to that of "
    r"$\tilde P$, and $1 + 2D$",
)
@between(n=(2, 13), row_range=(0.01, LARGEST_LEMMA_RANGE), beyond=(1.3, 8.0), sharpness=(0.01, 10.0))
def attention_near_equal_rows(
    draw: Draws, n: int = 5, row_range: float = 1.0, beyond: float = 1.5, sharpness: float = 2.0
) -> ClaimResult:
    """Without: a key of little weight whose score grows by D has e^D times that weight."""
    r, E = draw.normal(n, scale=sharpness), draw.normal(n, n)
    near = row_change(r, E * row_range / score_range(E).max())
    wide = row_change(r, 10 * E)
    rare = torch.tensor([0.0, 30.0], dtype=torch.float64)
    beyond_it = row_change(rare, torch.tensor([[beyond, 0.0]], dtype=torch.float64))
    always = torch.stack([wide.most / wide.range.exp(), (-wide.range).exp() / wide.least])
    left = torch.cat([(1 - change.range).clamp(min=0) / change.least for change in (near, wide)])
    lemma = torch.cat([near.most / (1 + 2 * near.range), left])
    variation = torch.cat([change.variation / (change.range / 4).tanh() for change in (near, wide)])
    return ClaimResult(
        at_most(torch.cat([lemma, always.flatten(), variation]), 1.0),
        without=at_most(beyond_it.most, 1 + 2 * beyond_it.range),
        figures={
            "largest range for the right side": LARGEST_LEMMA_RANGE,
            "tightest ratio found, total variation": maximise(_variation_ratio, (r, E), steps=40),
        },
    )


def _variation_ratio(r: Tensor, E: Tensor) -> Tensor:
    change = row_change(r, E)
    return (change.variation / (change.range / 4).tanh()).max()


def peaked(draw: Draws, m: int, n: int, power: float) -> Tensor:
    """Normal numbers, the large ones larger still, so that norms differ."""
    M = draw.normal(m, n)
    return M.sign() * M.abs() ** power


@statement("S0.13", "definition 2.1", FALSE).says(
    r"The composite norm $\lVert X\rVert_{1,\infty} = \sqrt{\lVert X\rVert_1 \lVert X\rVert_\infty}$ is a norm.",
    correction="The triangle inequality fails. It is definite, homogeneous and submultiplicative, and a quasi-norm "
    r"with the sharp constant $K_{m,n} = \frac{1}{2}((mn)^{1/4} + (mn)^{-1/4})$, which is $\frac{n+1}{2\sqrt n}$ for "
    r"square matrices; and $\lVert X\rVert_2 \le \lVert X\rVert_{1,\infty} \le (mn)^{1/4}\lVert X\rVert_2$.",
    compares=r"$\lVert A + B\rVert$, and $\lVert A\rVert + \lVert B\rVert$ in this norm; corrected: largest ratio of "
    "left to right side of these laws, and 1",
)
@between(m=(1, 13), n=(2, 13), power=(1.0, 5.0))
def composite_norm(draw: Draws, m: int = 5, n: int = 7, power: float = 3.0) -> ClaimResult:
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
    return ClaimResult(
        at_most(composite(A + B), composite(A) + composite(B)),
        corrected=at_most(torch.stack(laws), 1.0),
        figures={"sum over what a norm allows": float(K * attained), "quasi-norm constant": K},
    )


@statement("S0.14", "definition 2.1", CONDITION, heavy=True).says(
    r"$\operatorname{res}(X) = X - \mathbf 1x^\top$ with $x = \arg\min_x \lVert X - \mathbf 1x^\top\rVert_2$",
    correction="The norm must be named. Frobenius: $x$ is the mean of each column, and unique. Spectral, and every "
    "unitarily invariant norm: the mean is a minimiser, but not the only one. Induced 1: the median of each column. "
    r"Entrywise maximum: the midrange. Induced $\infty$ and composite: no closed form, linear programs (D4). The "
    r"residual from the mean is at most $2(1 - 1/n)$ times the best one in each of 1, $\infty$ and composite.",
    compares="norm of the residual from the mean, and from another row (or its bound); without: largest row sum from "
    "the mean, and the least one",
)
@between(n=(3, 7), e=(1, 5), power=(1.0, 5.0))
def mean_row(draw: Draws, n: int = 5, e: int = 3, power: float = 3.0) -> ClaimResult:
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
    return ClaimResult(
        at_most(torch.cat(from_mean), torch.cat(from_others)),
        without=at_most(NORMS["inf"](residual(single)), residual_norm(single, "inf")),
        figures={
            "composite residual from the mean": float(composite(R)),
            "least composite residual": float(residual_norm(X, "composite")),
            "spectral tie, from the mean": float(spectral(residual(cross))),
            "spectral tie, from another row": float(spectral(cross - tie)),
        },
    )


@statement("S0.35", "§2.4, problem 2", CONDITION).says(
    "If a norm does not satisfy the triangle inequality, can it represent distance?",
    correction="It is no metric, but equivalent to the spectral norm within $(mn)^{1/4}$, so that its tending to zero "
    "means something. Sums over heads may lose a factor $K_{n,d}$: the constant for several heads is not $H$ (S1.14). "
    r"$\operatorname{diam}_2$ is a true seminorm.",
    compares=r"a norm or diameter, and its bound; without: $\lVert A + B\rVert_{1,\infty}$, and $\lVert "
    r"A\rVert_{1,\infty} + \lVert B\rVert_{1,\infty}$",
)
@between(m=(1, 13), n=(2, 13), power=(1.0, 5.0))
def as_a_distance(draw: Draws, m: int = 5, n: int = 7, power: float = 3.0) -> ClaimResult:
    """Without: the triangle inequality on a matrix of one column and one of one row."""
    X, Z = peaked(draw, m, n, power), peaked(draw, m, n, power)
    A, B = row_and_column(m, n)
    left = torch.stack([spectral(X), composite(X), row_diameter(X + Z)])
    right = torch.stack([composite(X), (m * n) ** 0.25 * spectral(X), row_diameter(X) + row_diameter(Z)])
    return ClaimResult(at_most(left, right), without=at_most(composite(A + B), composite(A) + composite(B)))
