"""S1: the rank post on the decay of residuals, skip connections, and attention to few keys."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.exam.linalg.bounds import LARGEST_ROW_RANGE, row_diameter, skip_bounds
from attnworks.exam.linalg.residual import (
    best_row,
    entrywise_max,
    frobenius,
    induced_inf,
    relative_residual,
    residual,
    residual_norm,
    spectral,
)
from attnworks.exam.linalg.spectrum import second_ratio, singular_values
from attnworks.reshape.growth.solvers import lowrank_fit
from attnworks.theory.cases import Draws
from attnworks.theory.claims.s0_theorem import right_side_vanishes
from attnworks.theory.claims.s1_paths import cancelling, identity
from attnworks.theory.collapse_cases import signed_head, two_heads
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, NOT_CHECKABLE, ClaimResult, between, statement
from attnworks.theory.networks import (
    collapsing_network,
    drawn_network,
    given_network,
    numeric_rank,
    self_attending_network,
)
from attnworks.theory.sides import at_least, at_most, less, more, same, stacked
from attnworks.traces.paths import path_counts, paths_by_length


@statement("S1.10", "residual", FALSE).says(
    "The residual quantifies how close a matrix is to being of rank 1.",
    correction=r"It measures the distance to identical rows $\mathbf 1x^\top$, which are few among the matrices of "
    "rank at most 1. A small residual implies nearly rank at most 1, but not conversely.",
    compares="distance to identical rows, and to the nearest matrix of rank one; corrected: to rank one, and to "
    "identical rows (Frobenius)",
)
@between(pairs=(1, 6), n=(2, 13), e=(1, 13), spread=(0.01, 10.0))
def residual_as_rank(draw: Draws, pairs: int = 2, n: int = 5, e: int = 3, spread: float = 1.0) -> ClaimResult:
    """Rows v and -v in turn: of rank one, and as far from identical rows as from zero."""
    X, Z = cancelling(draw, pairs, e), draw.shifted_rows(n, e, spread)
    return ClaimResult(
        same(frobenius(residual(X)), rank_one_error(X)),
        corrected=at_most(rank_one_error(Z), frobenius(residual(Z))),
        figures={"relative residual of a matrix of rank one": float(relative_residual(X))},
    )


def rank_one_error(X: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
    """The Frobenius distance of X to the nearest matrix of rank one."""
    return frobenius(X - lowrank_fit(X, identity(len(X)), 1, identity(X.shape[1])).Z)


@statement("S1.11", "residual", CONDITION).says(
    r"$\operatorname{res}(X) = X - \mathbf 1x^\top$ with $x = \arg\min_x\lVert X - \mathbf 1x^\top\rVert_\infty$",
    correction=r"The norm must be named. Induced $\infty$, the largest row sum: $x$ is an $l_1$-centre of the rows, "
    "from a linear program, and not unique. Entrywise maximum: $x$ is the midrange of each column, and the value half "
    "the largest range of a column. The paper leaves the norm open; the inequality after it needs the composite one.",
    compares="norm of the residual, and from another row (or half the largest range); without: largest row sum from "
    "the midrange, and the least one",
)
@between(n=(3, 7), e=(1, 5), spread=(0.01, 10.0))
def row_of_least_maximum(draw: Draws, n: int = 5, e: int = 3, spread: float = 1.0) -> ClaimResult:
    """Without: the midrange, read as the minimiser of the largest row sum, on the rows of an identity."""
    X, others = draw.normal(n, e, scale=spread), draw.normal(17, 1, e, scale=spread)
    middle = X - best_row(X, "max")
    half_range = (X.amax(0) - X.amin(0)).max() / 2
    least = *(residual_norm(X, name).expand(17) for name in ("inf", "max")), entrywise_max(middle), half_range
    from_others = induced_inf(X - others), entrywise_max(X - others), half_range, entrywise_max(middle)
    rows = identity(n)
    return ClaimResult(
        at_most(stacked(*least), stacked(*from_others)),
        without=at_most(induced_inf(rows - best_row(rows, "max")), residual_norm(rows, "inf")),
        figures={
            "largest row sum, its own minimiser": float(residual_norm(X, "inf")),
            "largest row sum, from the midrange": float(induced_inf(middle)),
        },
    )


@statement("S1.12", "residual", FALSE).says(
    "$x$ represents the most significant low-rank approximation of $X$.",
    correction=r"$\mathbf 1x^\top$ is the best approximation by identical rows in the chosen norm; the best one of "
    r"rank 1 is $\sigma_1u_1v_1^\top$.",
    compares="error of the best identical rows, and of the best matrix of rank one; corrected: the latter, and by "
    "singular values",
)
@between(pairs=(1, 6), n=(2, 13), e=(2, 13))
def best_of_rank_one(draw: Draws, pairs: int = 2, n: int = 5, e: int = 3) -> ClaimResult:
    """Rows v and -v in turn: of rank one, and no identical rows are nearer than zero."""
    X, Z = cancelling(draw, pairs, e), draw.normal(n, e)
    rest = singular_values(Z)[1:].square().sum().sqrt()
    return ClaimResult(
        at_most(residual_norm(X, "frobenius"), rank_one_error(X)),
        corrected=same(rank_one_error(Z), rest),
        figures={
            "error of identical rows": float(residual_norm(X, "frobenius")),
            "error of rank one": float(rank_one_error(X)),
        },
    )


@statement("S1.13", "key inequality", FALSE, heavy=True).says(
    r"$\beta$ is a bound on the weights with $\lVert W_{QK}\rVert_1\lVert W_V\rVert_\infty \le \beta$.",
    correction=r"The paper has the composite norm $\lVert W_V\rVert_{1,\infty}$. With $\lVert W_V\rVert_\infty$ alone "
    "the inequality fails from about 2000 rows on; with the composite norm it still needs the condition of D5 (S0.17).",
    compares="residual of the output, and its bound with row sums of $W_V$; corrected: share of the bound with the "
    "composite norm that is used, there and under the condition of D5, and 1",
    note="With the composite norm this counterexample is no longer one; others are (S0.17).",
)
@between(pairs=(2048, 500_000), n=(2, 13), e=(1, 7), row_range=(0.01, LARGEST_ROW_RANGE))
def beta_by_row_sums(draw: Draws, pairs: int = 2053, n: int = 5, e: int = 3, row_range: float = 1.0) -> ClaimResult:
    """Rows that attend to themselves, and values that are a column of signs: row sums 1, composite norm sqrt(n)."""
    printed, composite = signed_head(2 * pairs), signed_head(2 * pairs, norm_of_value=math.sqrt(2 * pairs))
    X = draw.shifted_rows(n, e)
    within = drawn_network(draw, e=e).with_row_range(X, row_range).composite_share(X)
    return ClaimResult(
        at_most(printed.residual, printed.allowed), corrected=at_most(stacked(composite.ratio, within), 1.0)
    )


@statement("S1.14", "key inequality", FALSE, heavy=True).says(
    r"$\lVert \operatorname{res}Y\rVert_{1,\infty} \le (\frac{4\beta H}{\sqrt{d_{qk}}})^{(3^L-1)/2}\lVert "
    r"\operatorname{res}X\rVert_{1,\infty}^{3^L}$",
    correction="It has the defects of S0.17, and a second one: the sum over heads uses a triangle inequality that does "
    r"not hold. Safe is $H\sqrt{\beta_1\beta_\infty}$ in place of $H\beta$, with $\beta_1 = \max_h\lVert "
    r"W_{QK,h}\rVert_1\lVert W_h\rVert_1$ and $\beta_\infty = \max_h\lVert W_{QK,h}\rVert_1\lVert W_h\rVert_\infty$, "
    r"for rows of $E$ of range at most 4.229; or D6 with $\sum_h$.",
    compares="residual of the output of two heads, and its printed bound; corrected: largest share of a bound that is "
    "used, and 1",
)
@between(pairs=(16_384, 500_000), n=(2, 13), e=(1, 7), heads=(1, 3), row_range=(0.01, LARGEST_ROW_RANGE))
def sum_over_heads(
    draw: Draws, pairs: int = 131_071, n: int = 5, e: int = 3, heads: int = 2, row_range: float = 1.0
) -> ClaimResult:
    """One head writes a row, the other a column: together they are larger than both."""
    broken, X = two_heads(2 * pairs), draw.shifted_rows(n, e)
    one_layer = drawn_network(draw, e=e, heads=heads).with_row_range(X, row_range)
    two_layers = drawn_network(draw, e=e, heads=heads, layers=2)
    return ClaimResult(
        at_most(broken.residual, broken.allowed),
        corrected=at_most(torch.stack([one_layer.composite_share(X), two_layers.cubic_share(X)]), 1.0),
        figures={"left over right side": broken.ratio},
    )


@statement("S1.15", "key inequality", FALSE).says(
    r"If the term in the parentheses is less than 1, $\lVert \operatorname{res}(Y)\rVert$ decays exponentially with "
    "$L$.",
    correction=r"The condition is $c\rho^2 < 1$ (S0.18), with $c$ the term in the parentheses and $\rho$ the residual "
    "of the input, and the decay is doubly exponential in $L$: the exponent is $3^L$.",
    compares=r"bound for four layers, and for one, with $c < 1$; corrected: drawn $(c, \rho)$ that bear the correction "
    "out, and all of them",
)
@between(c=(0.01, 0.99), size=(1.1, 4.0))
def decay_below_one(draw: Draws, c: float = 0.5, size: float = 2.0) -> ClaimResult:
    """c < 1 and c rho^2 = size > 1: the bound grows."""
    return right_side_vanishes(draw, c, size)


@statement("S1.16", "conclusion", CONDITION, heavy=True).says(
    "Feed-forward layers and skip connections prevent rank collapse.",
    correction="Paper: with skip connections there are weights without collapse, by the path of length 0; an MLP only "
    "slows it, by its Lipschitz constant. Skip connections keep the rows apart (S0.19), but the residual relative to "
    "the whole may still fall.",
    compares="relative residual after six layers with skip, and zero; without: after layers that add nine times the "
    "mean row",
)
@between(n=(2, 13), e=(1, 7), share=(0.05, 0.5))
def skip_prevents_collapse(draw: Draws, n: int = 5, e: int = 3, share: float = 0.2) -> ClaimResult:
    """Within: values that turn the common part. Without: each layer adds nine times the mean row."""
    X, layers = draw.shifted_rows(n, e), 6
    heads = collapsing_network(draw, X, share=share, layers=layers)
    with_skip, alone = (heads.rewired(skip=skip, size=0.25) for skip in (True, False))
    kept = with_skip.run(X).states
    grown = given_network(*(size * identity(e).expand(20, 1, e, e) for size in (0.0, 9.0)), skip=True).run(X).exit
    low, _ = skip_bounds(row_diameter(X), with_skip.sizes[0], with_skip.scale)
    return ClaimResult(
        more(relative_residual(kept[-1]), 0.0),
        without=more(relative_residual(grown), 0.0),
        figures={
            "relative residual of the input": float(relative_residual(X)),
            "with skip": float(relative_residual(kept[-1])),
            "without": float(relative_residual(alone.run(X).exit)),
            "diameter after a layer with skip": float(row_diameter(kept[1])),
            "its lower bound": float(low),
        },
    )


@statement("S1.17", "conclusion", FALSE).says(
    "It is not the path length but the number of paths that influences expressivity.",
    correction="The paper concludes the opposite: paths express less the longer they are, and a network with skip "
    "connections acts like an ensemble of shallow ones. The many long paths are the collapsed ones.",
    compares="relative residual of paths of the commonest length, and of length zero; corrected: the same (or of the "
    "longest paths)",
)
@between(n=(5, 13), e=(3, 7), layers=(4, 6))
def number_of_paths(draw: Draws, n: int = 11, e: int = 5, layers: int = 6) -> ClaimResult:
    """Residuals of all paths of one length together: that of most paths against the single one of length zero."""
    network = drawn_network(draw, e=e, heads=2, layers=layers, skip=True, bias=False, qk=0.3, vo=0.3)
    X = draw.normal(n, e)
    steps = network.steps(network.run(X).maps)
    counts = path_counts(steps)
    residuals = relative_residual(paths_by_length(X.unsqueeze(0), steps)[:, 0])
    most = counts.index(max(counts))
    return ClaimResult(
        at_least(residuals[most], residuals[0]),
        corrected=less(residuals[[most, -1]], residuals[0]),
        figures={
            "most paths of a length": counts[most],
            "that length": most,
            "relative residual there": float(residuals[most]),
            "relative residual of length zero": float(residuals[0]),
            "relative residual of the longest": float(residuals[-1]),
        },
    )


@statement("S1.18", "conclusion", FALSE).says(
    "Attention focuses on smaller regions of the input, inherently reducing rank.",
    correction="Attention to one token each can be a permutation and keeps the rank; broad averaging collapses it.",
    compares="rank after all layers if every row sees itself alone, and before; corrected: and $n$ (or rank after "
    "averaging, and 1)",
)
@between(n=(2, 13), layers=(1, 50))
def focus_reduces_rank(draw: Draws, n: int = 5, layers: int = 13) -> ClaimResult:
    """Every row attends to itself alone; then every row attends uniformly to all rows."""
    focused = self_attending_network(n, layers=layers).run(identity(n))
    no_scores = given_network(*(size * identity(n).expand(1, 1, n, n) for size in (0.0, 1.0)))
    averaged = no_scores.run(draw.normal(n, n)).exit
    return ClaimResult(
        less(numeric_rank(focused.exit), numeric_rank(focused.states[0])),
        corrected=same(torch.tensor([numeric_rank(focused.exit), numeric_rank(averaged)]), torch.tensor([n, 1])),
        figures={"rank, averaged": numeric_rank(averaged)},
    )


statement("S1.19", "conclusion", NOT_CHECKABLE).not_computed(
    "Transformers outperform other models by strategically collapsing and expanding rank.", why_not="an opinion"
)


@statement("S1.20", "proof", HOLDS).says(
    "A product of row-stochastic matrices is row-stochastic: no entry is negative, and every row sums to 1.",
    correction="The proof is right.",
    compares="sum of a row of the product (or of its absolute values), and 1",
)
@between(n=(2, 13), m=(2, 13), j=(2, 13), sharpness=(0.01, 10.0))
def products_of_distributions(draw: Draws, n: int = 5, m: int = 3, j: int = 7, sharpness: float = 1.0) -> ClaimResult:
    C = draw.stochastic(n, m, sharpness=sharpness) @ draw.stochastic(m, j, sharpness=sharpness)
    return ClaimResult(same(torch.stack([C.sum(-1), C.abs().sum(-1)]), 1.0))


@statement("S1.21", "residual", CONDITION).says(
    r"Minimising $\lVert X - \mathbf 1x\rVert_\infty$ corresponds to minimising the absolute error between $X_{ij}$ "
    r"and $\mathbf 1x$.",
    correction=r"The largest one, for the entrywise maximum; for the induced $\infty$ norm the largest sum over a row. "
    "The sum of all absolute errors is least at the medians of the columns (D4), not at either of these.",
    compares="largest absolute error (or largest sum over a row) from its minimiser, and from another row; without: "
    "sum of all absolute errors from the minimiser of the largest, and from the medians",
)
@between(n=(3, 7), e=(1, 5), spread=(0.01, 10.0))
def least_absolute_error(draw: Draws, n: int = 5, e: int = 3, spread: float = 1.0) -> ClaimResult:
    """Without: one row of ones and all others zero, whose midrange is one half and whose median is zero."""
    X, others = draw.normal(n, e, scale=spread), draw.normal(17, e, scale=spread)
    norms = {"max": entrywise_max, "inf": induced_inf}
    least = torch.stack([norm(X - best_row(X, name)) for name, norm in norms.items()])
    from_others = torch.stack([norm(X - others.unsqueeze(1)) for norm in norms.values()])
    skewed = torch.zeros(n, e, dtype=torch.float64)
    skewed[0] = 1.0
    sums = [(skewed - best_row(skewed, name)).abs().sum() for name in ("max", "one")]
    return ClaimResult(at_most(least[:, None], from_others), without=at_most(*sums))


@statement("S1.22", "residual", CONDITION).says(
    r"Rank collapse occurs when the residual error $\operatorname{res}(X)$ is small.",
    correction=r"If it is small relative to $X$: $\sigma_2 \le \lVert \operatorname{res}(X)\rVert_2$, so that "
    r"$\sigma_2/\sigma_1 \le \lVert \operatorname{res}(X)\rVert_2/\lVert X\rVert_2$. A small residual alone says "
    r"nothing: $\epsilon I$ has one. And a matrix of rank 1 may have a large one (S1.10).",
    compares="second over first singular value, and the residual over the norm of $X$; without: of a small multiple of "
    "the identity, and the residual itself",
)
@between(n=(2, 13), e=(1, 7), spread=(0.01, 10.0), size=(1e-9, 0.1))
def small_residual_means_collapse(
    draw: Draws, n: int = 5, e: int = 3, spread: float = 0.1, size: float = 1e-3
) -> ClaimResult:
    X, tiny = draw.shifted_rows(n, e, spread), size * identity(n + 1)
    ratios = [second_ratio(singular_values(Z)) if min(Z.shape) > 1 else torch.tensor(0.0) for Z in (X, tiny)]
    return ClaimResult(
        at_most(ratios[0], spectral(residual(X)) / spectral(X)),
        without=at_most(ratios[1], spectral(residual(tiny))),
        figures={"residual of the multiple of the identity": float(spectral(residual(tiny)))},
    )
