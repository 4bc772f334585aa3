"""S1: the rank post on heads, paths and rank."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.exam.linalg.bounds import rounding_of_rows, row_diameter
from attnworks.exam.linalg.spectrum import second_ratio, singular_values
from attnworks.models.multihead import Observation
from attnworks.theory.cases import Draws
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, NOT_CHECKABLE, TYPO, ClaimResult, between, statement
from attnworks.theory.networks import (
    Network,
    collapsing_network,
    drawn_network,
    network_with_drawn_maps,
    numeric_rank,
    self_attending_network,
)
from attnworks.theory.sides import at_most, more, same
from attnworks.traces.paths import path_counts


def identity(n: int) -> Float[Tensor, "n n"]:
    return torch.eye(n, dtype=torch.float64)


@statement("S1.1", "title", CONDITION).says(
    "Pure attention losses rank doubly exponentially with depth.",
    correction=r"(Loses rank.) For $c\rho^2 < 1$ with $c$ and $\rho$ as in D5 or D6, and of the distance of rows: it "
    r"falls as $(c\rho^2)^{(3^L-1)/2}$. The rank itself mostly stays (S1.2).",
    compares=r"share of the diameter that is left after all layers over $(c\rho^2)^{(3^L-1)/2}$, and 1; without: the "
    "same if every row sees itself alone",
)
@between(n=(2, 13), e=(1, 7), share=(0.3, 0.9), layers=(1, 3))
def doubly_exponential(draw: Draws, n: int = 5, e: int = 3, share: float = 0.5, layers: int = 3) -> ClaimResult:
    """c rho^2 = share by D6, and each layer leaves its third power. Without: nothing changes from layer to layer."""
    X = draw.shifted_rows(n, e)
    promised = share ** ((3**layers - 1) / 2)

    def over_promise(network: Network, X: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
        exit = network.run(X).exit
        return row_diameter(exit) / (promised * row_diameter(X) + rounding_of_rows(exit))

    network = collapsing_network(draw, X, share=share, layers=layers)
    return ClaimResult(
        at_most(over_promise(network, X), 1.0),
        without=at_most(over_promise(self_attending_network(n, layers=layers), identity(n)), 1.0),
        figures={f"diameter after {at} layers": float(row_diameter(Z)) for at, Z in enumerate(network.run(X).states)},
    )


@statement("S1.2", "introduction", FALSE).says(
    "Without skip connections and feed-forward layers, rank converges to 1 as depth increases, regardless of queries.",
    correction=r"It depends on the weights of queries and keys (D6). The rank itself mostly stays $\min(n, d)$; only "
    "the ratios of singular values fall.",
    compares="rank after all layers of sharp attention, and 1; corrected: second over first singular value after all "
    "layers of small weights, and zero",
)
@between(n=(2, 13), e=(2, 7), share=(0.05, 0.9), layers=(7, 9))
def rank_converges_to_one(draw: Draws, n: int = 5, e: int = 3, share: float = 0.5, layers: int = 7) -> ClaimResult:
    """Sharp attention of every row to itself; then weights so small that the second singular value vanishes."""
    kept = self_attending_network(n, layers=layers).run(identity(n)).exit
    X = draw.shifted_rows(n, e)
    states = collapsing_network(draw, X, share=share, layers=layers).run(X).states
    ratios = [second_ratio(singular_values(Z)) for Z in states]
    return ClaimResult(
        same(numeric_rank(kept), 1),
        corrected=same(ratios[-1], 0.0),
        figures={
            "second over first singular value, input": float(ratios[0]),
            "after one layer of small weights": float(ratios[1]),
            "rank after one layer of small weights": numeric_rank(states[1]),
        },
    )


@statement("S1.3", "introduction", HOLDS).says(
    r"$\mathrm{MHA}(X) = \operatorname{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_H)W^O + b^O = \sum_h "
    r"\mathrm{head}_hW_h^O + b^O$",
    correction="$W_h^O$ is the $h$-th block of rows of $W^O$.",
    compares="entry of the product with heads side by side (or of the layer's output), and of the sum over heads",
)
@between(n=(1, 7), e=(1, 7), heads=(1, 3), v=(1, 7), sharpness=(0.01, 10.0))
def heads_side_by_side(
    draw: Draws, n: int = 5, e: int = 7, heads: int = 3, v: int = 2, sharpness: float = 1.0
) -> ClaimResult:
    network, X = drawn_network(draw, e=e, heads=heads, v=v, qk=sharpness), draw.normal(n, e)
    layer, seen = network.layers[0], list[Observation]()
    network.model(X.unsqueeze(0), observe=seen.append)
    Y = seen[0].Y[0]
    W_O, b_O = layer.head_first()[3], layer.b_O
    assert b_O is not None
    side_by_side = torch.cat(Y.unbind(), -1) @ torch.cat(W_O.unbind()) + b_O
    return ClaimResult(same(torch.stack([side_by_side, network.run(X).exit]), (Y @ W_O).sum(0) + b_O))


@statement("S1.4", "introduction", TYPO).says(
    r"For $H$ heads and $L$ layers $\mathrm{SA}(X) = \sum_h P_hXW_h$, where $\mathrm{head}_h = P_hX$.",
    correction=r"That is one layer, and $\mathrm{head}_h = P_hXW_{V,h}$, $W_h = W_{V,h}W_h^O$.",
    compares=r"entry of $\sum_h P_hXW_h^O$, and of the layer's output; corrected: of $\sum_h P_hXW_{V,h}W_h^O$, and of "
    "the output",
)
@between(n=(1, 7), e=(1, 7), heads=(1, 3))
def head_without_values(draw: Draws, n: int = 5, e: int = 3, heads: int = 2) -> ClaimResult:
    network, X = drawn_network(draw, e=e, v=e, heads=heads, layers=2, bias=False), draw.normal(n, e)
    run = network.run(X)
    _, _, W_V, W_O = network.layers[0].head_first()
    printed, fixed = (run.maps[0] @ X @ W_O).sum(0), (run.maps[0] @ X @ W_V @ W_O).sum(0)
    return ClaimResult(
        same(printed, run.states[1]),
        corrected=same(fixed, run.states[1]),
        figures={"distance to two layers": float((fixed - run.exit).abs().max())},
    )


@statement("S1.5", "introduction", HOLDS).says(
    "$P_h$ is row-stochastic: every row sums to 1.",
    correction="And no entry is negative.",
    compares="sum of a row of $P_h$ (or of its absolute values), and 1",
)
@between(n=(1, 13), e=(1, 7), heads=(1, 3), sharpness=(0.01, 10.0))
def rows_are_distributions(draw: Draws, n: int = 5, e: int = 3, heads: int = 2, sharpness: float = 1.0) -> ClaimResult:
    P = drawn_network(draw, e=e, heads=heads, qk=sharpness).run(draw.normal(n, e)).maps[0]
    return ClaimResult(same(torch.stack([P.sum(-1), P.abs().sum(-1)]), 1.0))


@statement("S1.6", "introduction", HOLDS).says(
    r"$Y = \sum (P^L_{h_L}\cdots P^1_{h_1})X(W^1_{h_1}\cdots W^L_{h_L})$",
    correction="The right order, unlike S0.9. $P$ is that of the forward pass, frozen; biases are left out.",
    compares="entry of the sum over all paths, and of the output",
)
@between(n=(1, 7), e=(1, 7), heads=(1, 3), layers=(1, 4), sharpness=(0.01, 10.0))
def paths_in_right_order(
    draw: Draws, n: int = 5, e: int = 3, heads: int = 3, layers: int = 3, sharpness: float = 1.0
) -> ClaimResult:
    network = drawn_network(draw, e=e, heads=heads, layers=layers, bias=False, qk=sharpness)
    X = draw.normal(n, e)
    run = network.run(X)
    return ClaimResult(same(network.sum_of_paths(X, run.maps), run.exit), figures={"paths": heads**layers})


@statement("S1.7", "introduction", FALSE).says(
    "The key insight is that a product of row-stochastic matrices is row-stochastic; therefore the expression can be "
    "simplified to a sum over paths.",
    correction="The sum over paths follows from distributivity alone. That rows sum to one matters for the bias "
    r"(S0.10), and for reading $P_{\mathrm{path}}$ as averaging.",
    compares="largest distance of the sum over all paths from the output, relative, and zero; corrected: entry of that "
    "sum, and of the output",
)
@between(n=(2, 13), e=(1, 7), heads=(1, 3), layers=(1, 4))
def paths_of_any_matrices(draw: Draws, n: int = 5, e: int = 3, heads: int = 2, layers: int = 3) -> ClaimResult:
    """Maps of any real numbers: their rows sum to nothing in particular, and the paths still add up."""
    network, X, maps = network_with_drawn_maps(draw, n, e, heads, layers)
    summed, exit = network.sum_of_paths(X, maps), network.output_with_maps(X, maps)
    return ClaimResult(
        more((summed - exit).abs().max() / exit.abs().max(), 0.0),
        corrected=same(summed, exit),
        figures={"smallest row sum": float(torch.stack(maps).sum(-1).min())},
    )


@statement("S1.8", "introduction", HOLDS).says(
    "A path is the sequence of heads that an input follows, a tuple in $[H]^L$.",
    correction="With skip connections in $[H+1]^L$.",
    compares="paths, counted one by one or by length, and $H^L$ (with skip $(H+1)^L$)",
)
@between(heads=(1, 3), layers=(1, 4), skip=(0, 1))
def path_as_tuple(draw: Draws, heads: int = 3, layers: int = 3, skip: int = 0) -> ClaimResult:
    network, X = drawn_network(draw, e=3, heads=heads, layers=layers, skip=bool(skip)), draw.normal(2, 3)
    maps = network.run(X).maps
    tuples = {path.heads for path in network.paths(X, maps)}
    counts = torch.tensor([len(tuples), sum(path_counts(network.steps(maps)))])
    return ClaimResult(same(counts, (heads + skip) ** layers))


statement("S1.9", "images", NOT_CHECKABLE).not_computed(
    "Two images: paths, and expressivity.", why_not="images that the text lacks"
)


def cancelling(draw: Draws, pairs: int, e: int) -> Float[Tensor, "n e"]:
    """u v^T with u = (1, -1, 1, -1, ...): of rank one, with a mean row of zero."""
    u = torch.tensor([1.0, -1.0] * pairs, dtype=torch.float64)
    return u[:, None] * draw.normal(1, e)
