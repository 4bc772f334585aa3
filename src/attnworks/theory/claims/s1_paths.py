"""S1: the rank post on heads, paths and rank."""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.exam.linalg.bounds import diameter, rounding_of_rows
from attnworks.exam.linalg.spectrum import second_ratio, singular_values
from attnworks.models.multihead import Observation
from attnworks.theory.cases import Draw
from attnworks.theory.contract import Between, Finding, Verdict, not_computed, statement
from attnworks.theory.networks import (
    Network,
    collapsing,
    drawn_network,
    every_path,
    folded,
    frozen_attention,
    frozen_exit,
    rank,
    rows_with_a_common_part,
    sum_of_paths,
    with_any_maps,
)
from attnworks.theory.sides import at_most, more, same
from attnworks.traces.paths import path_counts

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
