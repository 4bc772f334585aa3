"""D5-D8: bounds on rank collapse that hold, limits of float64, and the error of a random projection."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention import Mask
from attnworks.attention.sketched import sketch_error_formula
from attnworks.core.notation import tolerance
from attnworks.exam.linalg.bounds import (
    LARGEST_ROW_RANGE,
    HeadSizes,
    composite_bound,
    composite_factor,
    cubic_bound,
    diameter_bound,
    published_bound,
    published_factor,
    rounding_of_rows,
    row_diameter,
)
from attnworks.exam.linalg.residual import NORMS, composite, residual_norm, spectral
from attnworks.theory.cases import Draws, maximise
from attnworks.theory.claims.d_paths import LINEAR_PROGRAM_SLACK
from attnworks.theory.collapse_cases import entrywise_gap, split_logits
from attnworks.theory.contract import HOLDS, ClaimResult, between, statement
from attnworks.theory.networks import collapsing_network, drawn_network, given_network, numeric_rank, self_attended
from attnworks.theory.random_projection import exact_low_rank, jl_inner_dim, rows_for_error, sketch_error, union_failure
from attnworks.theory.sides import at_most


@statement("D5", "derived", HOLDS, heavy=True).says(
    r"Theorem 2.2 repaired, for the composite norm. One head, $E = \frac{RW_{QK}R^\top}{\sqrt{d_{qk}}}$, $D$ the "
    r"largest range of a row of $E$, $y = R^\top\operatorname{softmax}(r)$: $\lVert PX - \mathbf "
    r"1(x+y)^\top\rVert_{1,\infty} \le \sqrt{\frac{e^D - 1}{D}}\frac{\lVert W_{QK}\rVert_1}{\sqrt{d_{qk}}}\lVert "
    r"R\rVert_{1,\infty}^3$, times $\lVert W_V\rVert_{1,\infty}$ for the output. The factor is at most 4 if and only "
    r"if $D \le 4.22929$. With the mean residual the constant is $8(1 - 1/n)$. For $L$ layers with $c = "
    r"\frac{4\beta}{\sqrt{d_{qk}}}$, $\rho$ the least residual, $c\rho^2 \le 1$ and $\lVert "
    r"W_{QK}^l\rVert_1\rho^2/\sqrt{d_{qk}} \le 2.1146$: $\rho_L \le c^{(3^L-1)/2}\rho^{3^L}$. For $H$ heads $\beta$ is "
    r"replaced by $H\sqrt{\beta_1\beta_\infty}$ (S1.14).",
    compares="largest share of a bound that is used (or of 4 that the factor reaches at its ends), and 1",
    proof=r"Write $p = \operatorname{softmax}(r)$, $q = \lVert W_{QK}\rVert_1/\sqrt{d_{qk}}$ and $M = (P - \mathbf "
    r"1p^\top)R$, so that $PX - \mathbf 1(x+y)^\top = M$. Start from $\lvert E_{ik}\rvert \le "
    r"\frac{1}{\sqrt{d_{qk}}}\sum_{ab}\lvert R_{ia}\rvert\lvert (W_{QK})_{ab}\rvert\lvert R_{kb}\rvert$. As "
    r"$\sum_i\lvert R_{ia}\rvert \le \lVert R\rVert_1$, summing over $i$ first gives $\sum_i\lvert E_{ik}\rvert \le "
    r"q\lVert R\rVert_1\lVert R_k\rVert_1 \le q\lVert R\rVert_1\lVert R\rVert_\infty$. As $\lvert R_{ia}\rvert \le "
    r"\lVert R\rVert_1$, one entry has the same bound, and $D \le 2q\lVert R\rVert_1\lVert R\rVert_\infty$. Rows: "
    r"$P_i$ and $p$ are at most $\tanh(D/4) \le D/4$ apart in total variation (S0.34), and two rows of $R$ at most "
    r"$2\lVert R\rVert_\infty$, so that $\lVert M\rVert_\infty \le \frac{D}{2}\lVert R\rVert_\infty \le q\lVert "
    r"R\rVert_1\lVert R\rVert_\infty^2$. Columns: with $P^s = \operatorname{softmax}(\mathbf 1r^\top + sE)$, $M_{ij} = "
    r"\int_0^1\sum_kP^s_{ik}E_{ik}(R_{kj} - m_{ij})ds$, where $m_{ij} = \sum_lP^s_{il}R_{lj}$ lies between the entries "
    r"of column $j$, so that $\lvert R_{kj} - m_{ij}\rvert \le \lVert R\rVert_1$; and $P^s_{ik} \le e^{sD}p_k$. Sum "
    r"over $i$, then over $k$, then integrate: $\lVert M\rVert_1 \le \frac{e^D - 1}{D}q\lVert R\rVert_1^2\lVert "
    r"R\rVert_\infty$. Multiply both. For $L$ layers, $2q\rho^2 \le 4.2292$ bounds $D$ in the first and $c\rho^2 \le "
    r"1$ keeps $\rho$ from growing.",
)
@between(n=(2, 13), e=(1, 7), heads=(1, 3), row_range=(0.01, LARGEST_ROW_RANGE), sharpness=(0.01, 10.0))
def composite_theorem(
    draw: Draws, n: int = 5, e: int = 3, heads: int = 2, row_range: float = 1.0, sharpness: float = 1.0
) -> ClaimResult:
    """Any range with the factor of that range; up to 4.22929 with 4 and 8 (1 - 1/n); two layers within conditions."""
    X = draw.shifted_rows(n, e)
    bounded = drawn_network(draw, e=e, heads=heads).with_row_range(X, row_range)
    shares = [bounded.composite_share(X), _any_range_share(X, draw.normal(e, e, scale=sharpness), draw.normal(e, e))]
    shares.append(_two_layer_share(draw, X))
    ranges = torch.tensor([LARGEST_ROW_RANGE, row_range, LARGEST_ROW_RANGE + 1e-5], dtype=torch.float64)
    below, within, beyond = composite_factor(ranges) / 4
    start = X, draw.normal(e, e), draw.normal(e, e)
    return ClaimResult(
        at_most(torch.stack([*shares, below, within, 1 / beyond]), 1.0),
        figures={
            "one layer over its bound": float(shares[0]),
            "tightest ratio found": maximise(_any_range_share, start, steps=40),
        },
    )


def _any_range_share(X: Tensor, W_QK: Tensor, W_V: Tensor) -> Tensor:
    """||(PX - 1 (x + y)^T) W_V|| over its bound with the factor of the range at hand, by the mean row x."""
    x = X.mean(0)
    r, E, R = split = split_logits(X, W_QK, x)
    D = (E.amax(-1) - E.amin(-1)).amax()
    sizes = head_sizes_of(W_QK, W_V)
    left = composite((split.P @ R - r.softmax(-1) @ R) @ W_V)
    bound = composite_bound(composite(R), sizes, 1.0, composite_factor(D))
    return left / (bound + len(X) * rounding_of_rows(R.detach()))


def head_sizes_of(W_QK: Float[Tensor, "e e"], W_V: Float[Tensor, "e e"]) -> HeadSizes:
    """Norms of one head by its two products, with gradients."""
    one, inf = NORMS["one"], NORMS["inf"]
    return HeadSizes(*(size.view(1) for size in (spectral(W_QK), spectral(W_V), one(W_QK), one(W_V), inf(W_V))))


def _two_layer_share(draw: Draws, X: Float[Tensor, "n e"]) -> Tensor:
    """The least residual after two layers over c^4 rho^9, at the edge of both conditions."""
    e, rho = X.shape[-1], residual_norm(X, "composite")
    W_QK, W_V = draw.normal(2, 1, e, e), draw.normal(2, 1, e, e)
    edge = LARGEST_ROW_RANGE / 2
    W_QK = W_QK * edge / (rho.square() * NORMS["one"](W_QK)[..., None, None])
    W_V = W_V / (4 * edge * composite(W_V)[..., None, None])
    network = given_network(W_QK, W_V)
    c = max(float(published_factor(sizes, network.scale)) for sizes in network.sizes)
    exit = network.run(X).exit
    bound = published_bound(rho, c, 2) * (1 + LINEAR_PROGRAM_SLACK)
    return residual_norm(exit, "composite") / (bound + len(X) * rounding_of_rows(X))


@statement("D6", "derived", HOLDS, heavy=True).says(
    "Without condition, sharp, and of a true seminorm: if all queries see the same keys, with any biases, "
    r"$\operatorname{diam}_2(\mathrm{SA}(X)) \le \sum_h\lVert W_h\rVert_2\tanh(\frac{\lVert "
    r"W_{QK,h}\rVert_2\operatorname{diam}_2(X)^2}{4\sqrt{d_{qk}}})\operatorname{diam}_2(X) \le \sum_h\frac{\lVert "
    r"W_h\rVert_2\lVert W_{QK,h}\rVert_2}{4\sqrt{d_{qk}}}\operatorname{diam}_2(X)^3$. Hence "
    r"$\operatorname{diam}_2(\mathrm{SAN}(X)) \le "
    r"(\frac{H\beta_2}{4\sqrt{d_{qk}}})^{(3^L-1)/2}\operatorname{diam}_2(X)^{3^L}$ with $\beta_2 \ge \lVert "
    r"W_{QK,h}\rVert_2\lVert W_h\rVert_2$. With skip, $(1-s)\operatorname{diam}_2(X) \le \operatorname{diam}_2(X + "
    r"\mathrm{SA}(X)) \le (1+s)\operatorname{diam}_2(X)$, $s$ the factor above. A row-wise MLP with Lipschitz constant "
    r"$\lambda$ multiplies by $\lambda$. Entrywise $\lvert PX - \mathbf 1y^\top\rvert_{ij} \le "
    r"\tanh(D_i/4)\operatorname{osc}_j(X)$. Not valid with a causal mask.",
    compares="largest share of a bound that is used (all of it, where it is attained), and 1",
    proof=r"Rows $i$ and $i'$ of $P$ differ by logits $(X_i - X_{i'})W_{QK}X^\top/\sqrt{d_{qk}}$ and a constant, of a "
    r"range of at most $\lVert W_{QK}\rVert_2\operatorname{diam}_2(X)^2/\sqrt{d_{qk}}$. Logits that differ by a range "
    r"$\rho$ move a softmax by at most $\tanh(\rho/4)$ in total variation, and $(P_i - P_{i'})X$ is at most as long as "
    r"that times the diameter. The third power follows from $\tanh x \le x$, and $L$ layers from putting the bound "
    "into itself.",
)
@between(n=(2, 13), e=(1, 7), heads=(1, 3), layers=(1, 3), spread=(0.01, 10.0), sharpness=(0.01, 10.0), size=(0.1, 2.0))
def diameter_theorem(
    draw: Draws,
    n: int = 5,
    e: int = 3,
    heads: int = 2,
    layers: int = 2,
    spread: float = 1.0,
    sharpness: float = 1.0,
    size: float = 0.5,
) -> ClaimResult:
    """Layers with biases; the same with skip; two tokens +-a, which attain the first bound, and break it if causal."""
    X = draw.shifted_rows(n, e, spread)
    network = drawn_network(draw, e=e, heads=heads, layers=layers, qk=sharpness)
    states = network.run(X).states
    shares = [network.cubic_share(X)]
    for before, after, sizes in zip(states, states[1:], network.sizes, strict=False):
        bound = diameter_bound(row_diameter(before), sizes, network.scale)
        # above zero, also where all rows are equal already
        cubic = cubic_bound(row_diameter(before), sizes, network.scale).clamp_min(torch.finfo(torch.float64).tiny)
        shares += [row_diameter(after) / (bound + rounding_of_rows(before, after)), bound / cubic]
    with_skip = drawn_network(draw, e=e, heads=heads, skip=True, qk=sharpness)
    shares += with_skip.skip_shares(X)
    gap = entrywise_gap(X, draw.normal(e, e, scale=sharpness), X.mean(0))
    shares.append((gap.gap / (gap.by_variation + rounding_of_rows(X))).max())
    hidden, out = draw.normal(e, 11), draw.normal(11, e)
    lipschitz = spectral(hidden) * spectral(out)
    shares.append(row_diameter((X @ hidden).relu() @ out) / (lipschitz * row_diameter(X)))
    pair, weight = torch.tensor([[size], [-size]], dtype=torch.float64), torch.ones(1, 1, 1, 1, dtype=torch.float64)
    sharp = given_network(weight, weight)
    allowed = diameter_bound(row_diameter(pair), sharp.sizes[0], 1.0)
    attained, causal = (row_diameter(sharp.run(pair, mask).exit) / allowed for mask in (None, Mask(causal=True)))
    return ClaimResult(
        at_most(torch.stack([*shares, attained, 1 / attained, 1 / causal]), 1.0),
        figures={
            "tightest ratio found": maximise(_diameter_ratio, (draw.normal(3, 2), draw.normal(2, 2)), steps=40),
            "diameter over its bound, two tokens": float(attained),
            "the same under a causal mask": float(causal),
        },
    )


def _diameter_ratio(X: Tensor, W_QK: Tensor) -> Tensor:
    sizes = head_sizes_of(W_QK, torch.eye(2, dtype=torch.float64))
    return row_diameter(self_attended(X, W_QK)) / diameter_bound(row_diameter(X), sizes, 1.0)


@statement("D7", "derived", HOLDS).says(
    r"Where $c\rho^2$ is well below one, the bounds fall below the precision of the machine within three or four "
    r"layers. Differences of rows are compared after one row is subtracted, and within $100\,\epsilon \max \lvert "
    r"Z\rvert$.",
    compares="largest share of a bound and of rounding that a diameter uses, and 1",
)
@between(n=(2, 13), e=(1, 7), heads=(1, 3), share=(0.05, 0.3))
def below_precision(draw: Draws, n: int = 5, e: int = 3, heads: int = 2, share: float = 0.2) -> ClaimResult:
    """Four layers: the bound of the last is below eps max |Z|, and the diameter within rounding of every bound.

    A large number added to all entries leaves the diameter as it is, up to rounding.
    """
    X = draw.shifted_rows(n, e)
    network = collapsing_network(draw, X, share=share, layers=4, heads=heads)
    states, bounds = network.run(X).states, [row_diameter(X)]
    for sizes in network.sizes:
        bounds.append(cubic_bound(bounds[-1], sizes, network.scale))
    eps = torch.finfo(torch.float64).eps
    within = [row_diameter(Z) / (bound + rounding_of_rows(Z)) for Z, bound in zip(states[1:], bounds[1:], strict=True)]
    within += [bounds[-1] / (eps * states[-1].abs().max())]
    far = X + 1e6
    within += [(row_diameter(far) - row_diameter(X)).abs() / rounding_of_rows(far)]
    return ClaimResult(
        at_most(torch.stack(within), 1.0),
        figures={
            "bound after three layers": float(bounds[3]),
            "diameter after three layers": float(row_diameter(states[3])),
            "rounding of the output": float(eps * states[-1].abs().max()),
        },
    )


@statement("D8", "derived", HOLDS, heavy=True).says(
    r"$\mathbb E\lVert PR^\top Rw - Pw\rVert^2 = \frac{1}{k}(\lVert P\rVert_F^2\lVert w\rVert^2 + \lVert Pw\rVert^2)$ "
    r"exactly, for $R$ of $k$ rows with entries from $\mathcal N(0, 1/k)$. So a root mean square relative error "
    r"$\varepsilon$ needs $k = \frac{1}{\varepsilon^2}(1 + \frac{\lVert P\rVert_F^2\lVert w\rVert^2}{\lVert "
    r"Pw\rVert^2})$. Row by row, with error $\varepsilon\lVert u_i\rVert\lVert w\rVert$: $k \ge "
    r"\frac{4\ln(4n/\delta)}{\varepsilon^2 - \varepsilon^3}$. Exact, of rank at most $d_v$: $PVV^+$.",
    compares=r"largest share of what is allowed (six standard errors, $\varepsilon$, rounding, rank $d_v$, chance "
    r"$\delta$) that is used, and 1",
    proof=r"For a row $u$ of $P$, $u^\top R^\top Rw$ is a mean of $k$ independent products of two normal numbers with "
    r"variances $\lVert u\rVert^2$ and $\lVert w\rVert^2$ and covariance $u^\top w$, each of variance $\lVert "
    r"u\rVert^2\lVert w\rVert^2 + (u^\top w)^2$. Sum over the rows.",
)
@between(i=(2, 13), j=(2, 13), v=(1, 7), k=(1, 13), sharpness=(0.01, 10.0), eps=(0.1, 0.9), delta=(0.001, 0.5))
def error_of_projections(
    draw: Draws,
    i: int = 5,
    j: int = 7,
    v: int = 2,
    k: int = 3,
    sharpness: float = 1.0,
    eps: float = 0.5,
    delta: float = 0.1,
) -> ClaimResult:
    """The mean of many draws within six standard errors; k by the formula, and not one less; the map of low rank.

    Row by row, u + w and u - w have to keep their lengths, each of which fails with the chance of one pair of points.
    """
    P, V, trials = draw.stochastic(i, j, sharpness=sharpness), draw.shifted_rows(j, v), 4000
    squares = sketch_error(P.expand(trials, i, j), V.expand(trials, j, v), k, draw.generator).square()
    formula = sketch_error_formula(P, V, k).square()
    enough, exact = rows_for_error(P, V, eps), exact_low_rank(P, V)
    row_by_row = jl_inner_dim(i, eps, delta)
    off = (exact @ V - P @ V).abs().max() / (P @ V).abs().max()
    shares = [
        (squares.mean() - formula).abs() / (6 * squares.std() / trials**0.5),
        sketch_error_formula(P, V, enough) / eps,
        eps / sketch_error_formula(P, V, enough - 1),
        off / tolerance(torch.float64).rtol,
        torch.tensor(numeric_rank(exact) / v),
        torch.tensor(2 * i * union_failure(2, row_by_row, eps) / delta),
    ]
    return ClaimResult(
        at_most(torch.stack(shares), 1.0),
        figures={
            "mean of squared errors": float(squares.mean()),
            "by the formula": float(formula),
            "rows for the error asked for": enough,
            "rows for the error row by row": row_by_row,
            "error of the exact map": float(off),
        },
    )
