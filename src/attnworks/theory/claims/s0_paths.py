"""S0: Xie 2021, section 2.1: attention, its heads, and the paths through a stack of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnworks import attention
from attnworks.attention.heads import fold_values
from attnworks.models.multihead import Observation
from attnworks.theory.cases import Draws
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, NOT_CHECKABLE, TYPO, ClaimResult, between, statement
from attnworks.theory.networks import drawn_network, given_network, network_with_drawn_maps
from attnworks.theory.sides import more, same, stacked
from attnworks.traces.paths import path_counts


@statement("S0.1", "§2.1", HOLDS).says(
    r"$\operatorname{Attention}(Q, K, V) = \operatorname{softmax}(\frac{QK^\top}{\sqrt d})V$, softmax by rows.",
    correction="$d$ is the width $d_{qk}$ of queries and keys.",
    compares="entry of our attention's output, and of the formula",
)
@between(n=(1, 13), m=(1, 13), k=(1, 13), v=(1, 13), sharpness=(0.01, 10.0))
def attention_of_one_head(
    draw: Draws, n: int = 5, m: int = 7, k: int = 3, v: int = 2, sharpness: float = 1.0
) -> ClaimResult:
    Q, K, V = draw.normal(n, k, scale=sharpness), draw.normal(m, k), draw.normal(m, v)
    attended = attention.get("dense")()(*(T[None, None] for T in (Q, K, V)))
    figures = {"change with the width of the values under the root": _gap(_attend(Q, K, V, v), attended.Y)}
    return ClaimResult(same(attended.Y[0, 0], _attend(Q, K, V, k)), figures=figures)


def _attend(Q: Tensor, K: Tensor, V: Tensor, d: int) -> Tensor:
    return (Q @ K.mT / math.sqrt(d)).softmax(-1) @ V


def _gap(left: Tensor, right: Tensor) -> float:
    return float((left - right).abs().max())


@statement("S0.2", "§2.1", TYPO).says(
    "$Q = W^Q X$ and $K = W^K X$",
    correction=r"Rows are tokens everywhere else, so $Q = XW_Q$, $K = XW_K$ with $W_Q, W_K \in \mathbb R^{d \times "
    r"d_{qk}}$. With $Q = W^Q X$ and tokens in columns, $QK^\top$ is $d_{qk} \times d_{qk}$, not $n \times n$.",
    compares=r"rows (or columns) of $QK^\top$ as printed, and tokens; corrected: of $XW_Q(XW_K)^\top$, and tokens",
)
@between(n=(7, 13), e=(1, 13), k=(1, 6))
def sides_of_the_projections(draw: Draws, n: int = 11, e: int = 5, k: int = 3) -> ClaimResult:
    X, W_Q, W_K = draw.normal(n, e), draw.normal(e, k), draw.normal(e, k)
    printed = (W_Q.mT @ X.mT) @ (W_K.mT @ X.mT).mT
    fixed = (X @ W_Q) @ (X @ W_K).mT
    return ClaimResult(same(torch.tensor(printed.shape), n), corrected=same(torch.tensor(fixed.shape), n))


@statement("S0.3", "§2.1", HOLDS).says(
    r"$\operatorname{softmax}(A + x\mathbf 1^\top) = \operatorname{softmax}(A)$",
    correction=r"Of rows: $x\mathbf 1^\top$ adds $x_i$ to all of row $i$. $A + \mathbf 1 x^\top$ changes it.",
    compares="attention weight after a shift of its row, and before",
)
@between(n=(2, 13), m=(2, 13))
def shifts_of_rows(draw: Draws, n: int = 5, m: int = 7) -> ClaimResult:
    A, x = draw.normal(n, m), draw.normal(n, scale=3.0)
    P = A.softmax(-1)
    shifted_columns = (A + draw.normal(m)).softmax(-1)
    figures = {"change by a shift of columns": float((shifted_columns - P).abs().max())}
    return ClaimResult(same((A + x[:, None]).softmax(-1), P), figures=figures)


@statement("S0.4", "§2.1", FALSE).says(
    "That softmax does not see shifts of rows is the basis of the path decomposition theorem.",
    correction="The decomposition needs only that a layer is linear once its $P_h$ are frozen and, for the bias, "
    r"$P_h\mathbf 1 = \mathbf 1$. Invariance to shifts is the basis of the residual bound: it reduces the scores to "
    r"$\mathbf 1 r^\top + E$ (S0.31).",
    compares="largest distance of the sum over all paths from the output, relative, and zero; corrected: entry of that "
    "sum, and of the output",
)
@between(n=(2, 13), e=(1, 13), heads=(1, 3), layers=(1, 4))
def paths_without_softmax(draw: Draws, n: int = 5, e: int = 3, heads: int = 2, layers: int = 3) -> ClaimResult:
    """Any numbers in place of P: shifts of rows change the output, and the paths still add up to it."""
    network, X, maps = network_with_drawn_maps(draw, n, e, heads, layers)
    summed, exit = network.sum_of_paths(X, maps), network.output_with_maps(X, maps)
    shifted = network.output_with_maps(X, [P + draw.normal(heads, n, 1) for P in maps])
    return ClaimResult(
        more(_gap(summed, exit) / exit.abs().max(), 0.0),
        corrected=same(summed, exit),
        figures={"change of the output by shifts of rows": _gap(shifted, exit)},
    )


@statement("S0.5", "§2.1", HOLDS).says(
    r"$\mathrm{SA}_h(X) = P_h(XW_{V,h} + \mathbf e b_{V,h}^\top) = P_hXW_{V,h} + \mathbf e b_{V,h}^\top$, since "
    r"$P_h\mathbf e = \mathbf e$.",
    compares=r"entry of the head's output (or of $P_h(XW_{V,h} + \mathbf e b_{V,h}^\top)$), and of $P_hXW_{V,h} + "
    r"\mathbf e b_{V,h}^\top$",
)
@between(n=(1, 13), e=(1, 13), v=(1, 13), sharpness=(0.01, 10.0))
def bias_of_values(draw: Draws, n: int = 5, e: int = 7, v: int = 3, sharpness: float = 1.0) -> ClaimResult:
    network, X, seen = drawn_network(draw, e=e, v=v, qk=sharpness), draw.normal(n, e), list[Observation]()
    network.model(X.unsqueeze(0), observe=seen.append)
    P, Y, layer = seen[0].P[0], seen[0].Y[0], network.layers[0]
    W_V, b_V = layer.head_first()[2], layer.head_first_biases()[2]
    assert b_V is not None
    b_V = b_V.unsqueeze(-2)
    without = {"change if the rows of P summed to two": _gap(2 * P @ (X @ W_V + b_V), 2 * P @ X @ W_V + b_V)}
    return ClaimResult(same(torch.stack([Y, P @ (X @ W_V + b_V)]), P @ X @ W_V + b_V), figures=without)


@statement("S0.6", "§2.1", TYPO).says(
    r"Heads side by side: $\mathrm{SA}(X) = \sum_h (P_hXW_{V,h}W_{O,h} + \mathbf e b_{V,h}^\top W_{O,h})$; with $W_h "
    r":= W_{V,h}W_{O,h}$, $b_{O,h} := b_{V,h}^\top W_{O,h}$ and $b_O = \sum_h b_{O,h}$ the bias is $\mathbf e "
    r"b_O^\top$.",
    correction=r"As written $b_{O,h}$ is a row, but it is transposed later: $\mathbf e b_O^\top$ would multiply a "
    r"column by a column. Use $b_O^\top = b_{\mathrm{out}}^\top + \sum_h b_{V,h}^\top W_{O,h}$; the output bias "
    r"$b_{\mathrm{out}}$ is missing in the document.",
    compares=r"columns of $\mathbf e$, and rows of $b_O^\top$ as printed, which a product needs equal; corrected: "
    "entry of the sum over heads, and of the output",
)
@between(n=(1, 13), e=(2, 13), v=(1, 13), heads=(1, 3))
def bias_of_all_heads(draw: Draws, n: int = 5, e: int = 7, v: int = 3, heads: int = 2) -> ClaimResult:
    network, X = drawn_network(draw, e=e, v=v, heads=heads), draw.normal(n, e)
    run, layer = network.run(X), network.layers[0]
    _, _, W_V, W_O = layer.head_first()
    b_V = layer.head_first_biases()[2]
    row = torch.einsum("hv,hve->e", b_V, W_O).unsqueeze(0)
    W, b = fold_values(W_V, W_O, b_V, layer.b_O)
    columns_of_e, rows_of_bias = 1, row.mT.shape[0]
    return ClaimResult(
        same(columns_of_e, rows_of_bias),
        corrected=same((run.maps[0] @ X @ W).sum(0) + b, run.exit),
        figures={"change without the output bias": _gap((run.maps[0] @ X @ W).sum(0) + row, run.exit)},
    )


statement("S0.7", "figure 1", NOT_CHECKABLE).not_computed(
    "Figure 1, the attention mechanism.", why_not="an image that the text lacks"
)


@statement("S0.8", "§2.1", HOLDS).says(
    r"$\mathrm{SA}(X) = \sum_h P_hXW_h + \mathbf e b_O^\top$",
    compares="entry of the sum over heads, and of the layer's output",
)
@between(n=(1, 13), e=(1, 13), heads=(1, 3), k=(1, 13), v=(1, 13), sharpness=(0.01, 10.0))
def one_layer(
    draw: Draws, n: int = 5, e: int = 7, heads: int = 2, k: int = 3, v: int = 2, sharpness: float = 1.0
) -> ClaimResult:
    network = drawn_network(draw, e=e, heads=heads, k=k, v=v, qk=sharpness)
    X = draw.normal(n, e)
    run = network.run(X)
    _, W, b = network.layers[0].folded()
    return ClaimResult(same((run.maps[0] @ X @ W).sum(0) + b, run.exit))


@statement("S0.9", "§2.1", TYPO).says(
    r"$\mathrm{SA}\circ\mathrm{SA}(X) = \sum_{h_1,h_2} P_{h_1}P_{h_2}XW_{h_1}W_{h_2} + \mathbf e b^\top$",
    correction="Weights multiply in the opposite order to the attention matrices, and the layers differ: "
    "$P^{(2)}_{h_2}P^{(1)}_{h_1}XW^{(1)}_{h_1}W^{(2)}_{h_2}$.",
    compares="entry of the sum over paths in the printed order, and of the output; corrected: in the right order, and "
    "of the output",
)
@between(n=(1, 13), e=(2, 7), heads=(1, 3), skip=(0, 1))
def paths_in_printed_order(draw: Draws, n: int = 5, e: int = 3, heads: int = 2, skip: int = 0) -> ClaimResult:
    network, X = drawn_network(draw, e=e, heads=heads, layers=2, skip=bool(skip)), draw.normal(n, e)
    run, b = network.run(X), network.bias
    printed = network.sum_of_paths(X, run.maps, in_printed_order=True) + b
    figures = {"largest output": float(run.exit.abs().max()), "error as printed": _gap(printed, run.exit)}
    return ClaimResult(
        same(printed, run.exit), corrected=same(network.sum_of_paths(X, run.maps) + b, run.exit), figures=figures
    )


@statement("S0.10", "§2.1", HOLDS).says(
    r"All terms of the biases collapse to one $\mathbf e b^\top$ (it is another $b$ for every depth).",
    correction=r"In closed form, whatever $X$ and every $P$: $b^\top = \sum_l b_l^\top \prod_{m>l} (\sum_h W_h^{(m)} "
    r"[+ I \text{ with skip}])$. $P$ itself depends on the biases through its input.",
    compares="entry of what all paths leave of the output, and of $b$ in closed form",
)
@between(n=(1, 13), e=(1, 13), heads=(1, 3), layers=(1, 4), skip=(0, 1))
def biases_collapse(draw: Draws, n: int = 5, e: int = 3, heads: int = 2, layers: int = 3, skip: int = 0) -> ClaimResult:
    network, X = drawn_network(draw, e=e, heads=heads, layers=layers, skip=bool(skip)), draw.normal(n, e)
    run, b = network.run(X), network.bias
    return ClaimResult(same(run.exit - network.sum_of_paths(X, run.maps), b))


@statement("S0.11", "theorem 2.1", CONDITION).says(
    r"$\mathrm{SAN}(X) = \sum_{\mathrm{path}\in[H]^L} P_{\mathrm{path}}XW_{\mathrm{path}} + \mathbf e b^\top$",
    correction="Exact for the given $X$, with each $P_h^{(l)}$ computed in the real forward pass and then frozen: it "
    r"is no linear map of $X$. $W_{\mathrm{path}}$ has the order of S0.9. It breaks with an MLP, and with LayerNorm "
    "unless its scale of each row is frozen too.",
    compares="entry of the sum over all paths, and of the output; without: with the maps of $X$ for the input $2X$",
)
@between(n=(2, 13), e=(2, 7), heads=(1, 3), layers=(1, 4))
def path_decomposition(draw: Draws, n: int = 5, e: int = 3, heads: int = 2, layers: int = 3) -> ClaimResult:
    """Without: the attention of X on the input 2 X, as if the network were linear."""
    network, X = drawn_network(draw, e=e, heads=heads, layers=layers), draw.normal(n, e)
    run, b = network.run(X), network.bias
    missed = []
    for parts in ({"mlp": True}, {"norm": True}):
        other = drawn_network(draw, e=e, heads=heads, layers=layers, **parts)
        seen = other.run(X)
        missed.append(_gap(other.sum_of_paths(X, seen.maps) + other.bias, seen.exit))
    return ClaimResult(
        same(network.sum_of_paths(X, run.maps) + b, run.exit),
        without=same(network.sum_of_paths(2 * X, run.maps) + b, network.run(2 * X).exit),
        figures={"paths": heads**layers, "error if there are MLPs": missed[0], "error if there are norms": missed[1]},
    )


@statement("S0.12", "theorem 2.1", HOLDS).says(
    "With dummy heads, that is skip connections, there are $(H+1)^L$ paths.",
    correction=r"$P_0 = I_n$ and $W_0 = I_d$. There are $\binom{L}{l}H^l$ paths of length $l$. All lengths can be "
    "summed exactly without taking every path, see D1.",
    compares="paths, counted by the output, one by one, or by length, and by the formula",
)
@between(n=(1, 13), e=(1, 13), heads=(1, 3), layers=(1, 4))
def paths_with_skip(draw: Draws, n: int = 5, e: int = 3, heads: int = 2, layers: int = 3) -> ClaimResult:
    """Heads that hand on equal rows as they are: every path adds the input once, and the output counts the paths."""
    values = torch.eye(e, dtype=torch.float64).expand(layers, heads, e, e)
    network, X = given_network(draw.normal(layers, heads, e, e), values, skip=True), draw.normal(1, e).expand(n, e)
    run = network.run(X)
    lengths = [path.length for path in network.paths(X, run.maps)]
    by_length = [math.comb(layers, length) * heads**length for length in range(layers + 1)]
    one_by_one = [lengths.count(length) for length in range(layers + 1)]
    found = stacked(run.exit / X, len(lengths), *one_by_one, *path_counts(network.steps(run.maps)))
    expected = stacked(*[(heads + 1) ** layers] * (n * e + 1), *by_length, *by_length)
    return ClaimResult(same(found, expected), figures={"paths of full length": by_length[-1]})
