"""S1: the rank post, on "Attention is not all you need" by Dong, Cordonnier and Loukas."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.exam.linalg.bounds import LARGEST_ROW_RANGE, diameter, published_bound, rounding_of_rows, skip_bounds
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
from attnworks.models.multihead import Observation
from attnworks.reshape.growth.solvers import lowrank_fit
from attnworks.theory.cases import Draw
from attnworks.theory.collapse_cases import signed_head, two_heads
from attnworks.theory.collapse_shares import (
    composite_share,
    converges_below_one,
    cubic_share,
    of_row_range,
    rank,
    rows_with_a_common_part,
)
from attnworks.theory.contract import Between, Finding, Verdict, not_computed, statement
from attnworks.theory.networks import Network, collapsing, drawn_network, frozen_attention, given_network, rewired
from attnworks.theory.path_sums import every_path, folded, frozen_exit, sum_of_paths, with_any_maps
from attnworks.theory.sides import at_least, at_most, less, more, same
from attnworks.theory.together import together
from attnworks.traces.paths import path_counts, paths_by_length

Rows = Annotated[int, Between(2, 13)]
Width = Annotated[int, Between(1, 7)]
Heads = Annotated[int, Between(1, 3)]
Layers = Annotated[int, Between(1, 4)]
Sharpness = Annotated[float, Between(0.01, 10.0)]
Share = Annotated[float, Between(0.05, 0.9)]
Deep = Annotated[int, Between(7, 9)]


def identity(n: int) -> Float[Tensor, "n n"]:
    return torch.eye(n, dtype=torch.float64)


@statement(
    "S1.1",
    where="title",
    says="Pure attention losses rank doubly exponentially with depth.",
    verdict=Verdict.CONDITION,
    correction=r"(Loses rank.) For $c\rho^2 < 1$ with $c$ and $\rho$ as in D5 or D6, and of the distance of rows: it "
    r"falls as $(c\rho^2)^{(3^L-1)/2}$. The rank itself mostly stays (S1.2).",
    compares=r"share of the diameter that is left after all layers over $(c\rho^2)^{(3^L-1)/2}$, and 1; without: the "
    "same if every row sees itself alone",
)
def doubly_exponential(
    draw: Draw,
    n: Rows = 5,
    e: Width = 3,
    share: Annotated[float, Between(0.3, 0.9)] = 0.5,
    layers: Annotated[int, Between(1, 3)] = 3,
) -> Finding:
    """c rho^2 = share by D6, and each layer leaves its third power. Without: nothing changes from layer to layer."""
    X = rows_with_a_common_part(draw, n, e)
    promised = share ** ((3**layers - 1) / 2)

    def over_promise(network: Network, X: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
        exit = network.run(X).exit
        return diameter(exit) / (promised * diameter(X) + rounding_of_rows(exit))

    network = collapsing(draw, X, share=share, layers=layers)
    return Finding(
        stated=at_most(over_promise(network, X), 1.0),
        without=at_most(over_promise(frozen_attention(n, layers=layers), identity(n)), 1.0),
        figures={f"diameter after {at} layers": float(diameter(Z)) for at, Z in enumerate(network.run(X).states)},
    )


@statement(
    "S1.2",
    where="introduction",
    says="Without skip connections and feed-forward layers, rank converges to 1 as depth increases, regardless of "
    "queries.",
    verdict=Verdict.FALSE,
    correction=r"It depends on the weights of queries and keys (D6). The rank itself mostly stays $\min(n, d)$; only "
    r"the ratios of singular values fall.",
    compares="rank after all layers of sharp attention, and 1; corrected: second over first singular value after all "
    "layers of small weights, and zero",
)
def rank_converges_to_one(
    draw: Draw, n: Rows = 5, e: Annotated[int, Between(2, 7)] = 3, share: Share = 0.5, layers: Deep = 7
) -> Finding:
    """Sharp attention of every row to itself; then weights so small that the second singular value vanishes."""
    kept = frozen_attention(n, layers=layers).run(identity(n)).exit
    X = rows_with_a_common_part(draw, n, e)
    states = collapsing(draw, X, share=share, layers=layers).run(X).states
    ratios = [second_ratio(singular_values(Z)) for Z in states]
    return Finding(
        stated=same(rank(kept), 1),
        corrected=same(ratios[-1], 0.0),
        figures={
            "second over first singular value, input": float(ratios[0]),
            "after one layer of small weights": float(ratios[1]),
            "rank after one layer of small weights": rank(states[1]),
        },
    )


@statement(
    "S1.3",
    where="introduction",
    says=r"$\mathrm{MHA}(X) = \operatorname{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_H)W^O + b^O = \sum_h "
    r"\mathrm{head}_hW_h^O + b^O$",
    verdict=Verdict.HOLDS,
    correction=r"$W_h^O$ is the $h$-th block of rows of $W^O$.",
    compares="entry of the product with heads side by side (or of the layer's output), and of the sum over heads",
)
def heads_side_by_side(
    draw: Draw, n: Width = 5, e: Width = 7, heads: Heads = 3, v: Width = 2, sharpness: Sharpness = 1.0
) -> Finding:
    network, X = drawn_network(draw, e=e, heads=heads, v=v, qk=sharpness), draw.normal(n, e)
    layer, seen = network.layers[0], list[Observation]()
    network.model(X.unsqueeze(0), observe=seen.append)
    Y = seen[0].Y[0]
    W_O, b_O = layer.head_first()[3], layer.b_O
    assert b_O is not None
    side_by_side = torch.cat(Y.unbind(), -1) @ torch.cat(W_O.unbind()) + b_O
    return Finding(same(torch.stack([side_by_side, network.run(X).exit]), (Y @ W_O).sum(0) + b_O))


@statement(
    "S1.4",
    where="introduction",
    says=r"For $H$ heads and $L$ layers $\mathrm{SA}(X) = \sum_h P_hXW_h$, where $\mathrm{head}_h = P_hX$.",
    verdict=Verdict.TYPO,
    correction=r"That is one layer, and $\mathrm{head}_h = P_hXW_{V,h}$, $W_h = W_{V,h}W_h^O$.",
    compares=r"entry of $\sum_h P_hXW_h^O$, and of the layer's output; corrected: of $\sum_h P_hXW_{V,h}W_h^O$, and "
    r"of the output",
)
def head_without_values(draw: Draw, n: Width = 5, e: Width = 3, heads: Heads = 2) -> Finding:
    network, X = drawn_network(draw, e=e, v=e, heads=heads, layers=2, bias=False), draw.normal(n, e)
    run = network.run(X)
    _, _, W_V, W_O = network.layers[0].head_first()
    printed, fixed = (run.maps[0] @ X @ W_O).sum(0), (run.maps[0] @ X @ W_V @ W_O).sum(0)
    return Finding(
        stated=same(printed, run.states[1]),
        corrected=same(fixed, run.states[1]),
        figures={"distance to two layers": float((fixed - run.exit).abs().max())},
    )


@statement(
    "S1.5",
    where="introduction",
    says=r"$P_h$ is row-stochastic: every row sums to 1.",
    verdict=Verdict.HOLDS,
    correction="And no entry is negative.",
    compares="sum of a row of $P_h$ (or of its absolute values), and 1",
)
def rows_are_distributions(
    draw: Draw, n: Annotated[int, Between(1, 13)] = 5, e: Width = 3, heads: Heads = 2, sharpness: Sharpness = 1.0
) -> Finding:
    P = drawn_network(draw, e=e, heads=heads, qk=sharpness).run(draw.normal(n, e)).maps[0]
    return Finding(same(torch.stack([P.sum(-1), P.abs().sum(-1)]), 1.0))


@statement(
    "S1.6",
    where="introduction",
    says=r"$Y = \sum (P^L_{h_L}\cdots P^1_{h_1})X(W^1_{h_1}\cdots W^L_{h_L})$",
    verdict=Verdict.HOLDS,
    correction=r"The right order, unlike S0.9. $P$ is that of the forward pass, frozen; biases are left out.",
    compares="entry of the sum over all paths, and of the output",
)
def paths_in_right_order(
    draw: Draw, n: Width = 5, e: Width = 3, heads: Heads = 3, layers: Layers = 3, sharpness: Sharpness = 1.0
) -> Finding:
    network = drawn_network(draw, e=e, heads=heads, layers=layers, bias=False, qk=sharpness)
    X = draw.normal(n, e)
    run = network.run(X)
    return Finding(same(sum_of_paths(network, X, run.maps), run.exit), figures={"paths": heads**layers})


@statement(
    "S1.7",
    where="introduction",
    says="The key insight is that a product of row-stochastic matrices is row-stochastic; therefore the expression "
    "can be simplified to a sum over paths.",
    verdict=Verdict.FALSE,
    correction=r"The sum over paths follows from distributivity alone. That rows sum to one matters for the bias "
    r"(S0.10), and for reading $P_{\mathrm{path}}$ as averaging.",
    compares="largest distance of the sum over all paths from the output, relative, and zero; corrected: entry of "
    "that sum, and of the output",
)
def paths_of_any_matrices(draw: Draw, n: Rows = 5, e: Width = 3, heads: Heads = 2, layers: Layers = 3) -> Finding:
    """Maps of any real numbers: their rows sum to nothing in particular, and the paths still add up."""
    network, X, maps = with_any_maps(draw, n, e, heads, layers)
    summed, exit = sum_of_paths(network, X, maps), frozen_exit(network, X, maps)
    return Finding(
        stated=more((summed - exit).abs().max() / exit.abs().max(), 0.0),
        corrected=same(summed, exit),
        figures={"smallest row sum": float(torch.stack(maps).sum(-1).min())},
    )


@statement(
    "S1.8",
    where="introduction",
    says=r"A path is the sequence of heads that an input follows, a tuple in $[H]^L$.",
    verdict=Verdict.HOLDS,
    correction=r"With skip connections in $[H+1]^L$.",
    compares="paths, counted one by one or by length, and $H^L$ (with skip $(H+1)^L$)",
)
def path_as_tuple(draw: Draw, heads: Heads = 3, layers: Layers = 3, skip: Annotated[int, Between(0, 1)] = 0) -> Finding:
    network, X = drawn_network(draw, e=3, heads=heads, layers=layers, skip=bool(skip)), draw.normal(2, 3)
    maps = network.run(X).maps
    tuples = {path.heads for path in every_path(X, maps, folded(network)[0], skip=bool(skip))}
    counts = torch.tensor([len(tuples), sum(path_counts(network.steps(maps)))])
    return Finding(same(counts, (heads + skip) ** layers))


not_computed("S1.9", where="images", says="Two images: paths, and expressivity.", why_not="images that the text lacks")


def cancelling(draw: Draw, pairs: int, e: int) -> Float[Tensor, "n e"]:
    """u v^T with u = (1, -1, 1, -1, ...): of rank one, with a mean row of zero."""
    u = torch.tensor([1.0, -1.0] * pairs, dtype=torch.float64)
    return u[:, None] * draw.normal(1, e)


Pairs = Annotated[int, Between(1, 6)]


@statement(
    "S1.10",
    where="residual",
    says="The residual quantifies how close a matrix is to being of rank 1.",
    verdict=Verdict.FALSE,
    correction=r"It measures the distance to identical rows $\mathbf 1x^\top$, which are few among the matrices of "
    r"rank at most 1. A small residual implies nearly rank at most 1, but not conversely.",
    compares="distance to identical rows, and to the nearest matrix of rank one; corrected: to rank one, and to "
    "identical rows (Frobenius)",
)
def residual_as_rank(
    draw: Draw, pairs: Pairs = 2, n: Rows = 5, e: Annotated[int, Between(1, 13)] = 3, spread: Sharpness = 1.0
) -> Finding:
    """Rows v and -v in turn: of rank one, and as far from identical rows as from zero."""
    X, Z = cancelling(draw, pairs, e), rows_with_a_common_part(draw, n, e, spread)
    return Finding(
        stated=same(frobenius(residual(X)), rank_one_error(X)),
        corrected=at_most(rank_one_error(Z), frobenius(residual(Z))),
        figures={"relative residual of a matrix of rank one": float(relative_residual(X))},
    )


def rank_one_error(X: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
    """The Frobenius distance of X to the nearest matrix of rank one."""
    return frobenius(X - lowrank_fit(X, identity(len(X)), 1, identity(X.shape[1])).Z)


@statement(
    "S1.11",
    where="residual",
    says=r"$\operatorname{res}(X) = X - \mathbf 1x^\top$ with $x = \arg\min_x\lVert X - \mathbf 1x^\top\rVert_\infty$",
    verdict=Verdict.CONDITION,
    correction=r"The norm must be named. Induced $\infty$, the largest row sum: $x$ is an $l_1$-centre of the rows, "
    r"from a linear program, and not unique. Entrywise maximum: $x$ is the midrange of each column, and the value "
    r"half the largest range of a column. The paper leaves the norm open; the inequality after it needs the composite "
    r"one.",
    compares="norm of the residual, and from another row (or half the largest range); without: largest row sum from "
    "the midrange, and the least one",
)
def row_of_least_maximum(
    draw: Draw, n: Annotated[int, Between(3, 7)] = 5, e: Annotated[int, Between(1, 5)] = 3, spread: Sharpness = 1.0
) -> Finding:
    """Without: the midrange, read as the minimiser of the largest row sum, on the rows of an identity."""
    X, others = draw.normal(n, e, scale=spread), draw.normal(17, 1, e, scale=spread)
    middle = X - best_row(X, "max")
    half_range = (X.amax(0) - X.amin(0)).max() / 2
    least = [residual_norm(X, "inf").expand(17), residual_norm(X, "max").expand(17)]
    least.append(torch.stack([entrywise_max(middle), half_range]))
    from_others = [induced_inf(X - others), entrywise_max(X - others)]
    from_others.append(torch.stack([half_range, entrywise_max(middle)]))
    rows = identity(n)
    return Finding(
        stated=at_most(torch.cat(least), torch.cat(from_others)),
        without=at_most(induced_inf(rows - best_row(rows, "max")), residual_norm(rows, "inf")),
        figures={
            "largest row sum, its own minimiser": float(residual_norm(X, "inf")),
            "largest row sum, from the midrange": float(induced_inf(middle)),
        },
    )


@statement(
    "S1.12",
    where="residual",
    says=r"$x$ represents the most significant low-rank approximation of $X$.",
    verdict=Verdict.FALSE,
    correction=r"$\mathbf 1x^\top$ is the best approximation by identical rows in the chosen norm; the best one of "
    r"rank 1 is $\sigma_1u_1v_1^\top$.",
    compares="error of the best identical rows, and of the best matrix of rank one; corrected: the latter, and by "
    "singular values",
)
def best_of_rank_one(draw: Draw, pairs: Pairs = 2, n: Rows = 5, e: Annotated[int, Between(2, 13)] = 3) -> Finding:
    """Rows v and -v in turn: of rank one, and no identical rows are nearer than zero."""
    X, Z = cancelling(draw, pairs, e), draw.normal(n, e)
    rest = singular_values(Z)[1:].square().sum().sqrt()
    return Finding(
        stated=at_most(residual_norm(X, "frobenius"), rank_one_error(X)),
        corrected=same(rank_one_error(Z), rest),
        figures={
            "error of identical rows": float(residual_norm(X, "frobenius")),
            "error of rank one": float(rank_one_error(X)),
        },
    )


@statement(
    "S1.13",
    where="key inequality",
    says=r"$\beta$ is a bound on the weights with $\lVert W_{QK}\rVert_1\lVert W_V\rVert_\infty \le \beta$.",
    verdict=Verdict.FALSE,
    correction=r"The paper has the composite norm $\lVert W_V\rVert_{1,\infty}$. With $\lVert W_V\rVert_\infty$ alone "
    r"the inequality fails from about 2000 rows on; with the composite norm it still needs the condition of D5 "
    "(S0.17).",
    compares="residual of the output, and its bound with row sums of $W_V$; corrected: share of the bound with the "
    "composite norm that is used, there and under the condition of D5, and 1",
    note="With the composite norm this counterexample is no longer one; others are (S0.17).",
    heavy=True,
)
def beta_by_row_sums(
    draw: Draw,
    pairs: Annotated[int, Between(2048, 500_000)] = 2053,
    n: Rows = 5,
    e: Width = 3,
    row_range: Annotated[float, Between(0.01, LARGEST_ROW_RANGE)] = 1.0,
) -> Finding:
    """Rows that attend to themselves, and values that are a column of signs: row sums 1, composite norm sqrt(n)."""
    printed, composite = signed_head(2 * pairs), signed_head(2 * pairs, norm_of_value=math.sqrt(2 * pairs))
    X = rows_with_a_common_part(draw, n, e)
    within = composite_share(of_row_range(drawn_network(draw, e=e), X, row_range), X)
    return Finding(
        stated=at_most(printed.residual, printed.allowed), corrected=at_most(together(composite.ratio, within), 1.0)
    )


@statement(
    "S1.14",
    where="key inequality",
    says=r"$\lVert \operatorname{res}Y\rVert_{1,\infty} \le (\frac{4\beta H}{\sqrt{d_{qk}}})^{(3^L-1)/2}\lVert "
    r"\operatorname{res}X\rVert_{1,\infty}^{3^L}$",
    verdict=Verdict.FALSE,
    correction=r"It has the defects of S0.17, and a second one: the sum over heads uses a triangle inequality that "
    r"does not hold. Safe is $H\sqrt{\beta_1\beta_\infty}$ in place of $H\beta$, with $\beta_1 = \max_h\lVert "
    r"W_{QK,h}\rVert_1\lVert W_h\rVert_1$ and $\beta_\infty = \max_h\lVert W_{QK,h}\rVert_1\lVert W_h\rVert_\infty$, "
    r"for rows of $E$ of range at most 4.229; or D6 with $\sum_h$.",
    compares="residual of the output of two heads, and its printed bound; corrected: largest share of a bound that "
    "is used, and 1",
    heavy=True,
)
def sum_over_heads(
    draw: Draw,
    pairs: Annotated[int, Between(16_384, 500_000)] = 131_071,
    n: Rows = 5,
    e: Width = 3,
    heads: Annotated[int, Between(1, 3)] = 2,
    row_range: Annotated[float, Between(0.01, LARGEST_ROW_RANGE)] = 1.0,
) -> Finding:
    """One head writes a row, the other a column: together they are larger than both."""
    broken, X = two_heads(2 * pairs), rows_with_a_common_part(draw, n, e)
    one_layer = of_row_range(drawn_network(draw, e=e, heads=heads), X, row_range)
    two_layers = drawn_network(draw, e=e, heads=heads, layers=2)
    return Finding(
        stated=at_most(broken.residual, broken.allowed),
        corrected=at_most(torch.stack([composite_share(one_layer, X), cubic_share(two_layers, X)]), 1.0),
        figures={"left over right side": broken.ratio},
    )


@statement(
    "S1.15",
    where="key inequality",
    says=r"If the term in the parentheses is less than 1, $\lVert \operatorname{res}(Y)\rVert$ decays exponentially "
    r"with $L$.",
    verdict=Verdict.FALSE,
    correction=r"The condition is $c\rho^2 < 1$ (S0.18), with $c$ the term in the parentheses and $\rho$ the residual "
    r"of the input, and the decay is doubly exponential in $L$: the exponent is $3^L$.",
    compares=r"bound for four layers, and for one, with $c < 1$; corrected: drawn $(c, \rho)$ that bear the "
    r"correction out, and all of them",
)
def decay_below_one(
    draw: Draw, c: Annotated[float, Between(0.01, 0.99)] = 0.5, size: Annotated[float, Between(1.1, 4.0)] = 2.0
) -> Finding:
    """c < 1 and c rho^2 = size > 1: the bound grows."""
    rho = torch.tensor((size / c) ** 0.5, dtype=torch.float64)
    deep, shallow = (published_bound(rho, c, layers) for layers in (4, 1))
    return Finding(stated=less(deep, shallow), corrected=converges_below_one(draw))


@statement(
    "S1.16",
    where="conclusion",
    says="Feed-forward layers and skip connections prevent rank collapse.",
    verdict=Verdict.CONDITION,
    correction=r"Paper: with skip connections there are weights without collapse, by the path of length 0; an MLP "
    r"only slows it, by its Lipschitz constant. Skip connections keep the rows apart (S0.19), but the residual "
    r"relative to the whole may still fall.",
    compares="relative residual after six layers with skip, and zero; without: after layers that add nine times the "
    "mean row",
    heavy=True,
)
def skip_prevents_collapse(
    draw: Draw, n: Rows = 5, e: Width = 3, share: Annotated[float, Between(0.05, 0.5)] = 0.2
) -> Finding:
    """Within: values that turn the common part. Without: each layer adds nine times the mean row."""
    X, layers = rows_with_a_common_part(draw, n, e), 6
    heads = collapsing(draw, X, share=share, layers=layers)
    with_skip, alone = (rewired(heads, skip=skip, size=0.25) for skip in (True, False))
    kept = with_skip.run(X).states
    grown = given_network(*(size * identity(e).expand(20, 1, e, e) for size in (0.0, 9.0)), skip=True).run(X).exit
    low, _ = skip_bounds(diameter(X), with_skip.sizes[0], with_skip.scale)
    return Finding(
        stated=more(relative_residual(kept[-1]), 0.0),
        without=more(relative_residual(grown), 0.0),
        figures={
            "relative residual of the input": float(relative_residual(X)),
            "with skip": float(relative_residual(kept[-1])),
            "without": float(relative_residual(alone.run(X).exit)),
            "diameter after a layer with skip": float(diameter(kept[1])),
            "its lower bound": float(low),
        },
    )


@statement(
    "S1.17",
    where="conclusion",
    says="It is not the path length but the number of paths that influences expressivity.",
    verdict=Verdict.FALSE,
    correction="The paper concludes the opposite: paths express less the longer they are, and a network with skip "
    "connections acts like an ensemble of shallow ones. The many long paths are the collapsed ones.",
    compares="relative residual of paths of the commonest length, and of length zero; corrected: the same (or of the "
    "longest paths)",
)
def number_of_paths(
    draw: Draw,
    n: Annotated[int, Between(5, 13)] = 11,
    e: Annotated[int, Between(3, 7)] = 5,
    layers: Annotated[int, Between(4, 6)] = 6,
) -> Finding:
    """Residuals of all paths of one length together: that of most paths against the single one of length zero."""
    network = drawn_network(draw, e=e, heads=2, layers=layers, skip=True, bias=False, qk=0.3, vo=0.3)
    X = draw.normal(n, e)
    steps = network.steps(network.run(X).maps)
    counts = path_counts(steps)
    residuals = relative_residual(paths_by_length(X.unsqueeze(0), steps)[:, 0])
    most = counts.index(max(counts))
    return Finding(
        stated=at_least(residuals[most], residuals[0]),
        corrected=less(residuals[[most, -1]], residuals[0]),
        figures={
            "most paths of a length": counts[most],
            "that length": most,
            "relative residual there": float(residuals[most]),
            "relative residual of length zero": float(residuals[0]),
            "relative residual of the longest": float(residuals[-1]),
        },
    )


@statement(
    "S1.18",
    where="conclusion",
    says="Attention focuses on smaller regions of the input, inherently reducing rank.",
    verdict=Verdict.FALSE,
    correction="Attention to one token each can be a permutation and keeps the rank; broad averaging collapses it.",
    compares="rank after all layers if every row sees itself alone, and before; corrected: and $n$ (or rank after "
    "averaging, and 1)",
)
def focus_reduces_rank(draw: Draw, n: Rows = 5, layers: Annotated[int, Between(1, 50)] = 13) -> Finding:
    """Attention of every row to itself alone, then to all rows alike."""
    focused = frozen_attention(n, layers=layers).run(identity(n))
    no_scores = given_network(*(size * identity(n).expand(1, 1, n, n) for size in (0.0, 1.0)))
    averaged = no_scores.run(draw.normal(n, n)).exit
    return Finding(
        stated=less(rank(focused.exit), rank(focused.states[0])),
        corrected=same(torch.tensor([rank(focused.exit), rank(averaged)]), torch.tensor([n, 1])),
        figures={"rank, averaged": rank(averaged)},
    )


not_computed(
    "S1.19",
    where="conclusion",
    says="Transformers outperform other models by strategically collapsing and expanding rank.",
    why_not="an opinion",
)


@statement(
    "S1.20",
    where="proof",
    says="A product of row-stochastic matrices is row-stochastic: no entry is negative, and every row sums to 1.",
    verdict=Verdict.HOLDS,
    correction="The proof is right.",
    compares="sum of a row of the product (or of its absolute values), and 1",
)
def products_of_distributions(draw: Draw, n: Rows = 5, m: Rows = 3, j: Rows = 7, sharpness: Sharpness = 1.0) -> Finding:
    C = draw.stochastic(n, m, sharpness=sharpness) @ draw.stochastic(m, j, sharpness=sharpness)
    return Finding(same(torch.stack([C.sum(-1), C.abs().sum(-1)]), 1.0))


@statement(
    "S1.21",
    where="residual",
    says=r"Minimising $\lVert X - \mathbf 1x\rVert_\infty$ corresponds to minimising the absolute error between "
    r"$X_{ij}$ and $\mathbf 1x$.",
    verdict=Verdict.CONDITION,
    correction=r"The largest one, for the entrywise maximum; for the induced $\infty$ norm the largest sum over a row. "
    r"The sum of all absolute errors is least at the medians of the columns (D4), not at either of these.",
    compares="largest absolute error (or largest sum over a row) from its minimiser, and from another row; without: "
    "sum of all absolute errors from the minimiser of the largest, and from the medians",
)
def least_absolute_error(
    draw: Draw, n: Annotated[int, Between(3, 7)] = 5, e: Annotated[int, Between(1, 5)] = 3, spread: Sharpness = 1.0
) -> Finding:
    """Without: one row of ones and all others zero, whose midrange is one half and whose median is zero."""
    X, others = draw.normal(n, e, scale=spread), draw.normal(17, e, scale=spread)
    norms = {"max": entrywise_max, "inf": induced_inf}
    least = torch.stack([norm(X - best_row(X, name)) for name, norm in norms.items()])
    from_others = torch.stack([norm(X - others.unsqueeze(1)) for norm in norms.values()])
    skewed = torch.zeros(n, e, dtype=torch.float64)
    skewed[0] = 1.0
    sums = [(skewed - best_row(skewed, name)).abs().sum() for name in ("max", "one")]
    return Finding(
        stated=at_most(least[:, None], from_others),
        without=at_most(*sums),
    )


@statement(
    "S1.22",
    where="residual",
    says=r"Rank collapse occurs when the residual error $\operatorname{res}(X)$ is small.",
    verdict=Verdict.CONDITION,
    correction=r"If it is small relative to $X$: $\sigma_2 \le \lVert \operatorname{res}(X)\rVert_2$, so that "
    r"$\sigma_2/\sigma_1 \le \lVert \operatorname{res}(X)\rVert_2/\lVert X\rVert_2$. A small residual alone says "
    r"nothing: $\epsilon I$ has one. And a matrix of rank 1 may have a large one (S1.10).",
    compares="second over first singular value, and the residual over the norm of $X$; without: of a small multiple "
    "of the identity, and the residual itself",
)
def small_residual_means_collapse(
    draw: Draw,
    n: Rows = 5,
    e: Width = 3,
    spread: Sharpness = 0.1,
    size: Annotated[float, Between(1e-9, 0.1)] = 1e-3,
) -> Finding:
    X, tiny = rows_with_a_common_part(draw, n, e, spread), size * identity(n + 1)
    ratios = [second_ratio(singular_values(Z)) if min(Z.shape) > 1 else torch.tensor(0.0) for Z in (X, tiny)]
    return Finding(
        stated=at_most(ratios[0], spectral(residual(X)) / spectral(X)),
        without=at_most(ratios[1], spectral(residual(tiny))),
        figures={"residual of the multiple of the identity": float(spectral(residual(tiny)))},
    )
