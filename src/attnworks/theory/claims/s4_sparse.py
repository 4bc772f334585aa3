"""S4: Conti 2024, section 2.1.1 on sparse attention: BigBird and Longformer (S4.73-S4.87, S4.154)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Bool
from torch import Tensor

from attnworks.attention import Context, Geometry
from attnworks.attention.bigbird import BigBird
from attnworks.attention.connectivity import diameter, edge_count, layers_needed, reached, receptive_field, spectral_gap
from attnworks.attention.dense import Dense
from attnworks.attention.graph import Graph
from attnworks.attention.heads import fold_values
from attnworks.attention.longformer import Longformer
from attnworks.attention.patterns import Global, Window
from attnworks.attention.window import WindowAttention, window_edges
from attnworks.theory.cases import Draw
from attnworks.theory.contract import Between, Finding, Verdict, not_computed, statement
from attnworks.theory.networks import outputs
from attnworks.theory.sides import at_least, at_most, less, more, same, together

Tokens = Annotated[int, Between(11, 31)]
Side = Annotated[int, Between(0, 2)]
Few = Annotated[int, Between(0, 3)]
Some = Annotated[int, Between(1, 3)]
Rows = Annotated[int, Between(2, 13)]
Width = Annotated[int, Between(1, 7)]
Heads = Annotated[int, Between(1, 3)]
Layers = Annotated[int, Between(1, 7)]
Dilation = Annotated[int, Between(2, 5)]

UNSCALED = Context(scale=1.0)

# --- BigBird ----------------------------------------------------------------------------------------------------------


def _bigbird(draw: Draw, side: int, n_global: int, n_random: int) -> BigBird:
    return BigBird(window=side, n_global=n_global, n_random=n_random, block=1, seed=int(draw.integers(1, below=2**16)))


@statement(
    "S4.73",
    where="§2.1.1, figure 7",
    says=(
        "BigBird combines $g$ global tokens, a window of $w$ tokens and $r$ random tokens for each query; the figure "
        "has $r = 2$, $w = 3$, $g = 2$."
    ),
    verdict=Verdict.HOLDS,
    correction="The image is not in the text, but the pattern can be built from the three parts.",
    compares="random keys of a query, and $r$; edges of window and global tokens are all there as well",
)
def parts_of_bigbird(draw: Draw, n: Tokens = 13, side: Side = 1, n_global: Few = 2, n_random: Few = 2) -> Finding:
    table = _bigbird(draw, side, n_global, n_random).pattern.table(1, n)[0]
    two_parts = (Window(side) | Global(n_global)).table(1, n)[0]
    drawn = (table & ~two_parts)[n_global:].sum(-1)
    figures = {"edges": float(edge_count(table)), "edges of full attention": n * n}
    return Finding(
        same(together(drawn, table[two_parts]), together(torch.full_like(drawn, n_random), two_parts[two_parts])),
        figures=figures,
    )


def _graph_attention(
    draw: Draw, n: int, d: int, k: int, heads: int, table: Bool[Tensor, "n n"]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """X, the queries and keys of each head, its values X W_V W_O, and equation 11 by our mechanism."""
    X = draw.normal(n, d)
    W_Q, W_K, W_V = draw.normal(3, heads, d, k).unbind()
    W_O = draw.normal(heads, k, d)
    W, _ = fold_values(W_V, W_O)
    Q, K, V = X @ W_Q, X @ W_K, X @ W
    attended = [outputs(Graph(graph=table), *head, context=UNSCALED) for head in zip(Q, K, V, strict=True)]
    return X, Q, K, V, X + torch.stack(attended).sum(0)


@statement(
    "S4.74",
    where="§2.1.1, (11)",
    says=(
        r"$\operatorname{ATTN}_D(X)_i = x_i + \sum_h \sigma(Q_h(x_i) K_h(X_{N(i)})^\top) V_h(X_{N(i)})$ with $V_h: "
        r"\mathbb R^d \to \mathbb R^d$."
    ),
    verdict=Verdict.HOLDS,
    correction=(
        r"As in the BigBird paper: $V_h$ is $W_V W_O \in \mathbb R^{d \times d}$, and there is no $\frac{1}{\sqrt k}$."
    ),
    compares="entry of our attention along the graph, and of (11) in loops",
)
def attention_along_a_graph(draw: Draw, n: Rows = 7, d: Width = 5, k: Width = 3, heads: Heads = 2) -> Finding:
    table = (draw.uniform(n, n) < 0.4) | torch.eye(n, dtype=torch.bool)
    X, Q, K, V, ours = _graph_attention(draw, n, d, k, heads, table)
    rows = []
    for i, seen in enumerate(table):
        row = X[i]
        for q, keys, values in zip(Q[:, i], K[:, seen], V[:, seen], strict=True):
            row = row + (keys @ q).softmax(-1) @ values
        rows.append(row)
    return Finding(same(ours, torch.stack(rows)))


@statement(
    "S4.75",
    where="§2.1.1",
    says="(11) reduces to (5) when $N(i)$ is full.",
    verdict=Verdict.FALSE,
    correction=(
        r"It reduces to $X + \operatorname{MultiHead}(X)$ with scores that are not scaled. (5) is one head, scaled, "
        "without the residual $X$."
    ),
    compares="entry of (11) on the full graph, and of (5); corrected: the same, and of $X$ plus all heads, not scaled",
)
def full_graph(draw: Draw, n: Rows = 7, d: Width = 5, k: Width = 3, heads: Heads = 2) -> Finding:
    X, Q, K, V, printed = _graph_attention(draw, n, d, k, heads, torch.ones(n, n, dtype=torch.bool))
    scaled, unscaled = (
        torch.stack([outputs(Dense(), *head, context=context) for head in zip(Q, K, V, strict=True)])
        for context in (Context(), UNSCALED)
    )
    return Finding(
        same(printed, scaled[0]),
        corrected=same(printed, X + unscaled.sum(0)),
        figures={"difference from all heads, scaled": float((printed - scaled.sum(0)).abs().max())},
    )


@statement(
    "S4.76",
    where="§2.1.1",
    says=(
        r"In a window of width $w$ token $i$ attends the tokens $j$ with $i - \frac w2 \le j \le i + \frac w2$, which "
        "are $w$ tokens."
    ),
    verdict=Verdict.CONDITION,
    correction="An odd $w$ gives $w$ tokens, an even $w$ gives $w + 1$.",
    compares="tokens in a window of odd width $w$, and $w$; without: in one of even width, and $w$",
)
def tokens_in_a_window(draw: Draw, side: Annotated[int, Between(1, 13)] = 2) -> Finding:
    odd, even = 2 * side + 1, 2 * side
    places = torch.arange(-even, even + 1)
    seen_odd, seen_even = ((places.abs() <= width / 2).sum() for width in (odd, even))
    ours = Window(side).table(1, len(places))[0, even].sum()
    return Finding(same(together(seen_odd, ours), odd), without=same(seen_even, even))


not_computed(
    "S4.77",
    where="§2.1.1",
    says="Local attention captures the more relevant context, and random attention makes the model more robust.",
    correction="A rationale, to be judged by experiments.",
    why_not="an opinion that no formula carries",
)


@statement(
    "S4.78",
    where="§2.1.1",
    says="Global tokens connect any pair of tokens indirectly.",
    verdict=Verdict.HOLDS,
    correction=r"With $g \ge 1$ the graph has a diameter of at most 2: two layers.",
    compares="layers until every token depends on every other, and 2",
)
def two_layers_connect_all(
    draw: Draw,
    n: Annotated[int, Between(1, 31)] = 23,
    side: Side = 1,
    n_global: Some = 1,
    n_random: Few = 0,
) -> Finding:
    layers = diameter(_bigbird(draw, side, n_global, n_random).pattern.table(1, n)[0])
    assert layers is not None
    window = diameter(Window(max(side, 1)).table(1, n)[0])
    assert window is not None
    return Finding(at_most(layers, 2), figures={"layers with a window alone": window})


@statement(
    "S4.79",
    where="§2.1.1",
    says="Every complete graph can be approximated by random graphs.",
    verdict=Verdict.CONDITION,
    correction=(
        "In the sense of spectra, for Erdős-Rényi graphs and expanders with enough edges: with a fixed share of all "
        "pairs, the second eigenvalue of a random walk falls to that of the complete graph, zero, as $n$ grows. With "
        "one edge for each token it does not. It says nothing of attention values."
    ),
    compares="second eigenvalue of the walk with $4n$ tokens, and with $n$; without: the same with one edge per token",
    heavy=True,
)
def random_graphs_near_the_complete_one(
    draw: Draw, n: Annotated[int, Between(29, 41)] = 31, share: Annotated[float, Between(0.3, 0.7)] = 0.5
) -> Finding:
    near, far = (_second_eigenvalue(draw, size, share) for size in (n, 4 * n))
    few_near, few_far = (_second_eigenvalue(draw, size, 1 / size) for size in (n, 4 * n))
    return Finding(
        less(far, near), without=less(few_far, few_near), figures={"tokens": n, "of the larger graph": 4 * n}
    )


def _second_eigenvalue(draw: Draw, n: int, share: float) -> float:
    """Of a random walk on a graph that has each edge with this chance, and every token's edge to itself."""
    upper = (draw.uniform(n, n) < share).triu(1)
    return 1 - float(spectral_gap(upper | upper.mT | torch.eye(n, dtype=torch.bool)))


not_computed(
    "S4.80",
    where="§2.1.1",
    says="As proven in theorem 3 of the BigBird paper, the complexity reduces to $O(n)$.",
    verdict=Verdict.FALSE,
    correction=(
        "Theorem 3 there says that some sparse attention with $O(n)$ inner products is Turing complete. That the cost "
        "is $O(n)$ is plain counting (S4.81). Proposition 1 there: some tasks need about $n^{1 - o(1)}$ sparse layers."
    ),
    why_not="what is wrong is the citation; the count itself is S4.81",
)


@statement(
    "S4.81",
    where="§2.1.1, figure 8",
    says="The number of edges is the number of inner products that attention takes.",
    verdict=Verdict.HOLDS,
    correction=(
        r"Exactly, with the first $g$ tokens global, $h = \frac{w-1}{2}$ tokens to each side and $r$ random keys "
        r"outside of both: $gn + (n-g)(g + r + 2h + 1) - h(h+1) \le n(w + r + 2g)$."
    ),
    compares="edges of the pattern and of our count, and the formula",
)
def edges_of_bigbird(draw: Draw, n: Tokens = 13, side: Side = 1, n_global: Few = 2, n_random: Few = 2) -> Finding:
    bigbird = _bigbird(draw, side, n_global, n_random)
    edges, width = edge_count(bigbird.pattern.table(1, n)[0]), 2 * side + 1
    formula = n_global * n + (n - n_global) * (n_global + n_random + width) - side * (side + 1)
    return Finding(
        same(together(edges, bigbird.cost(n, n, Geometry(1, 1, 1)).edges), formula),
        figures={"upper bound": n * (width + n_random + 2 * n_global), "pairs of full attention": n * n},
    )


# --- Longformer -------------------------------------------------------------------------------------------------------


@statement(
    "S4.82",
    where="§2.1.1",
    says=r"In Longformer each token attends $\frac w2$ tokens on each side, at a cost of $O(n \times w)$.",
    verdict=Verdict.HOLDS,
    correction=r"With itself a token has $w + 1$ keys; in all $n(w+1) - h(h+1)$ with $h = \frac w2$.",
    compares="edges of the window and of our count, and the formula",
)
def edges_of_a_window(draw: Draw, n: Tokens = 23, side: Annotated[int, Between(0, 10)] = 3) -> Finding:
    width, table = 2 * side, WindowAttention(window=side).pattern.table(1, n)[0]
    return Finding(
        same(together(edge_count(table), window_edges(n, n, side)), n * (width + 1) - side * (side + 1)),
        figures={"pairs of full attention": n * n},
    )


@statement(
    "S4.83",
    where="§2.1.1",
    says=r"The receptive field of $L$ layers is $L \times d \times w$, $d$ being the dilation.",
    verdict=Verdict.CONDITION,
    correction=(
        "As a distance between the two ends (even $w$): the span is $Ldw + 1$ positions. With the same dilation "
        "everywhere only every $d$-th of these is reached, $Lw + 1$ in all. Heads of several dilations fill the gaps."
    ),
    compares="distance of the two ends of the field, and $Ldw$; without: positions seen besides the token itself, "
    "and $Ldw$",
)
def receptive_field_of_dilated_windows(draw: Draw, layers: Layers = 6, side: Some = 3, d: Dilation = 3) -> Finding:
    span, seen = receptive_field(layers, side, (d,))
    claimed = layers * d * 2 * side
    mixed = receptive_field(layers, side, (1, d)).seen
    return Finding(
        same(span - 1, claimed),
        without=same(seen - 1, claimed),
        figures={"span": span, "seen": seen, "seen by heads with and without dilation": mixed},
    )


@statement(
    "S4.84",
    where="§2.1.1",
    says='The sliding window is dilated "by gaps of size dilation $d$".',
    verdict=Verdict.CONDITION,
    correction="Keys are $d$ apart, so that $d - 1$ tokens are skipped between two of them.",
    compares="distance of two neighbouring keys, and $d$; without: tokens between them, and $d$",
)
def gaps_of_a_dilated_window(draw: Draw, side: Some = 2, d: Dilation = 3) -> Finding:
    n = 2 * side * d + 1
    keys = Window(side, (d,)).table(1, n)[0, side * d].nonzero().flatten()
    return Finding(same(keys.diff(), d), without=same(keys.diff() - 1, d))


@statement(
    "S4.85",
    where="§2.1.1",
    says="Stacked layers of windows capture information across the entire input.",
    verdict=Verdict.CONDITION,
    correction=(
        r"From one end to the other if $L \lfloor \frac w2 \rfloor d \ge n - 1$; with a dilation $d > 1$ only every "
        "$d$-th token on the way (S4.83)."
    ),
    compares="pairs connected by the layers needed, and all pairs; without: by one layer fewer, and all pairs",
)
def layers_of_windows(draw: Draw, n: Annotated[int, Between(2, 31)] = 23, side: Some = 2) -> Finding:
    table, layers = Window(side).table(1, n)[0], layers_needed(n, side)
    assert layers is not None
    enough, too_few = (reached(table, count).sum() for count in (layers, layers - 1))
    return Finding(same(enough, n * n), without=same(too_few, n * n), figures={"layers needed": layers})


@statement(
    "S4.86",
    where="§2.1.1",
    says=r"A few global tokens, independent of $n$, keep the complexity at $O(n)$.",
    verdict=Verdict.HOLDS,
    compares="edges that $n$ further tokens add to $2n$, and to $n$",
)
def global_tokens_cost_little(draw: Draw, n: Tokens = 31, side: Side = 2, n_global: Few = 2) -> Finding:
    longformer = Longformer(window=side, n_global=n_global)
    once, twice, thrice = (longformer.edges(times * n, times * n, 1, False) for times in (1, 2, 3))
    return Finding(same(thrice - twice, twice - once), figures={"edges for each further token": (twice - once) / n})


@statement(
    "S4.87",
    where="§2.1.1",
    says=r"$Q_s, K_s, V_s$ give the scores of the sliding window and $Q_g, K_g, V_g$ those of global attention.",
    verdict=Verdict.HOLDS,
    correction="Two sets of projections; the second is that of the rows of global tokens.",
    compares="output with both sets of projections, and dense rows of the second and window rows of the first",
)
def two_sets_of_projections(draw: Draw, n: Tokens = 13, k: Width = 3, side: Side = 1, n_global: Some = 2) -> Finding:
    local, around = draw.normal(2, 3, n, k)
    second = tuple(T[None, None] for T in around)
    longformer = Longformer(window=side, n_global=n_global)
    both = outputs(longformer, *local, context=Context(second=(second[0], second[1], second[2])))
    alone, everywhere = outputs(longformer, *local), outputs(Dense(), *around)
    return Finding(same(both, torch.cat([everywhere[:n_global], alone[n_global:]])))


@statement(
    "S4.154",
    where="§2.1.1",
    says="In Longformer, different dilations for different heads improve performance.",
    verdict=Verdict.CONDITION,
    correction=(
        "The paper reports it. What can be computed is the reason: heads without dilation see the tokens that the "
        "others skip. Heads of one dilation see no more than one head does."
    ),
    compares="positions seen by heads of dilations 1 and $d$, and by one head of $d$; without: by two heads of $d$, "
    "and by one",
)
def dilations_by_head(draw: Draw, layers: Layers = 6, side: Some = 3, d: Dilation = 3) -> Finding:
    one, mixed, alike = (receptive_field(layers, side, steps) for steps in ((d,), (1, d), (d, d)))
    return Finding(
        more(mixed.seen, one.seen),
        without=more(alike.seen, one.seen),
        figures={"share of the span that is seen": mixed.seen / mixed.span},
    )


@statement(
    "S4.158",
    where="§2.1.1",
    says=r"The receptive field $L \times d \times w$ can reach tens of thousands of tokens even for small values "
    "of $d$.",
    verdict=Verdict.CONDITION,
    correction=r"If $Lw$ is large already: twelve layers of windows of 512 need $d \ge 4$ for a span above 20,000, six "
    r"layers of windows of 64 need $d \ge 53$. And it is the span: with one dilation, $Lw + 1$ tokens of it are seen "
    r"(S4.83).",
    compares="span of the field with windows of 512, and 20,000; without: with six layers of windows of 64",
)
def tens_of_thousands_of_tokens(
    draw: Draw, layers: Annotated[int, Between(12, 24)] = 12, d: Annotated[int, Between(4, 8)] = 4
) -> Finding:
    wide, narrow = receptive_field(layers, 256, (d,)), receptive_field(6, 32, (d,))
    needed = [math.ceil((TENS_OF_THOUSANDS - 1) / (count * width)) for count, width in ((12, 512), (6, 64))]
    return Finding(
        at_least(wide.span, TENS_OF_THOUSANDS),
        without=at_least(narrow.span, TENS_OF_THOUSANDS),
        figures={
            "tokens seen": wide.seen,
            "dilation needed, twelve layers of 512": needed[0],
            "dilation needed, six layers of 64": needed[1],
        },
    )


TENS_OF_THOUSANDS = 20_000
