"""S4: Conti 2024, section 2.1.1 on sparse attention: BigBird and Longformer (S4.73-S4.87, S4.154)."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool
from torch import Tensor

from attnworks.attention import Context, Geometry, complexity
from attnworks.attention.bigbird import BigBird
from attnworks.attention.dense import Dense
from attnworks.attention.graph import Graph
from attnworks.attention.heads import fold_values
from attnworks.attention.longformer import Longformer
from attnworks.attention.patterns import GlobalPattern, WindowPattern
from attnworks.attention.window import WindowAttention, window_edges
from attnworks.theory.cases import Draws
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, NOT_CHECKABLE, ClaimResult, between, statement
from attnworks.theory.networks import mechanism_outputs
from attnworks.theory.sides import at_least, at_most, less, more, same, stacked

_UNSCALED = Context(scale=1.0)

# --- BigBird ----------------------------------------------------------------------------------------------------------


def _bigbird(draw: Draws, side: int, n_global: int, n_random: int) -> BigBird:
    return BigBird(window=side, n_global=n_global, n_random=n_random, block=1, seed=int(draw.integers(1, below=2**16)))


@statement("S4.73", "§2.1.1, figure 7", HOLDS).says(
    "BigBird combines $g$ global tokens, a window of $w$ tokens and $r$ random tokens for each query; the figure has "
    "$r = 2$, $w = 3$, $g = 2$.",
    correction="The image is not in the text, but the pattern can be built from the three parts.",
    compares="random keys of a query, and $r$; edges of window and global tokens are all there as well",
)
@between(n=(11, 31), side=(0, 2), n_global=(0, 3), n_random=(0, 3))
def parts_of_bigbird(draw: Draws, n: int = 13, side: int = 1, n_global: int = 2, n_random: int = 2) -> ClaimResult:
    table = _bigbird(draw, side, n_global, n_random).pattern.table(1, n)[0]
    two_parts = (WindowPattern(side) | GlobalPattern(n_global)).table(1, n)[0]
    drawn = (table & ~two_parts)[n_global:].sum(-1)
    figures = {"edges": float(complexity.edge_count(table)), "edges of full attention": n * n}
    return ClaimResult(
        same(stacked(drawn, table[two_parts]), stacked(torch.full_like(drawn, n_random), two_parts[two_parts])),
        figures=figures,
    )


def _graph_attention(
    draw: Draws, n: int, d: int, k: int, heads: int, table: Bool[Tensor, "n n"]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """X, the queries and keys of each head, its values X W_V W_O, and equation 11 by our mechanism."""
    X = draw.normal(n, d)
    W_Q, W_K, W_V = draw.normal(3, heads, d, k).unbind()
    W_O = draw.normal(heads, k, d)
    W, _ = fold_values(W_V, W_O)
    Q, K, V = X @ W_Q, X @ W_K, X @ W
    attended = [mechanism_outputs(Graph(graph=table), *head, context=_UNSCALED) for head in zip(Q, K, V, strict=True)]
    return X, Q, K, V, X + torch.stack(attended).sum(0)


@statement("S4.74", "§2.1.1, (11)", HOLDS).says(
    r"$\operatorname{ATTN}_D(X)_i = x_i + \sum_h \sigma(Q_h(x_i) K_h(X_{N(i)})^\top) V_h(X_{N(i)})$ with $V_h: \mathbb "
    r"R^d \to \mathbb R^d$.",
    correction=r"As in the BigBird paper: $V_h$ is $W_V W_O \in \mathbb R^{d \times d}$, and there is no "
    r"$\frac{1}{\sqrt k}$.",
    compares="entry of our attention along the graph, and of (11) in loops",
)
@between(n=(2, 13), d=(1, 7), k=(1, 7), heads=(1, 3))
def attention_along_a_graph(draw: Draws, n: int = 7, d: int = 5, k: int = 3, heads: int = 2) -> ClaimResult:
    table = (draw.uniform(n, n) < 0.4) | torch.eye(n, dtype=torch.bool)
    X, Q, K, V, ours = _graph_attention(draw, n, d, k, heads, table)
    rows = []
    for i, seen in enumerate(table):
        row = X[i]
        for q, keys, values in zip(Q[:, i], K[:, seen], V[:, seen], strict=True):
            row = row + (keys @ q).softmax(-1) @ values
        rows.append(row)
    return ClaimResult(same(ours, torch.stack(rows)))


@statement("S4.75", "§2.1.1", FALSE).says(
    "(11) reduces to (5) when $N(i)$ is full.",
    correction=r"It reduces to $X + \operatorname{MultiHead}(X)$ with scores that are not scaled. (5) is one head, "
    "scaled, without the residual $X$.",
    compares="entry of (11) on the full graph, and of (5); corrected: the same, and of $X$ plus all heads, not scaled",
)
@between(n=(2, 13), d=(1, 7), k=(1, 7), heads=(1, 3))
def full_graph(draw: Draws, n: int = 7, d: int = 5, k: int = 3, heads: int = 2) -> ClaimResult:
    X, Q, K, V, printed = _graph_attention(draw, n, d, k, heads, torch.ones(n, n, dtype=torch.bool))
    scaled, unscaled = (
        torch.stack([mechanism_outputs(Dense(), *head, context=context) for head in zip(Q, K, V, strict=True)])
        for context in (Context(), _UNSCALED)
    )
    return ClaimResult(
        same(printed, scaled[0]),
        corrected=same(printed, X + unscaled.sum(0)),
        figures={"difference from all heads, scaled": float((printed - scaled.sum(0)).abs().max())},
    )


@statement("S4.76", "§2.1.1", CONDITION).says(
    r"In a window of width $w$ token $i$ attends the tokens $j$ with $i - \frac w2 \le j \le i + \frac w2$, which are "
    "$w$ tokens.",
    correction="An odd $w$ gives $w$ tokens, an even $w$ gives $w + 1$.",
    compares="tokens in a window of odd width $w$, and $w$; without: in one of even width, and $w$",
)
@between(side=(1, 13))
def tokens_in_a_window(draw: Draws, side: int = 2) -> ClaimResult:
    odd, even = 2 * side + 1, 2 * side
    places = torch.arange(-even, even + 1)
    seen_odd, seen_even = ((places.abs() <= width / 2).sum() for width in (odd, even))
    ours = WindowPattern(side).table(1, len(places))[0, even].sum()
    return ClaimResult(same(stacked(seen_odd, ours), odd), without=same(seen_even, even))


statement("S4.77", "§2.1.1", NOT_CHECKABLE).not_computed(
    "Local attention captures the more relevant context, and random attention makes the model more robust.",
    why_not="an opinion that no formula carries",
    correction="A rationale, to be judged by experiments.",
)


@statement("S4.78", "§2.1.1", HOLDS).says(
    "Global tokens connect any pair of tokens indirectly.",
    correction=r"With $g \ge 1$ the graph has a diameter of at most 2: two layers.",
    compares="layers until every token depends on every other, and 2",
)
@between(n=(1, 31), side=(0, 2), n_global=(1, 3), n_random=(0, 3))
def two_layers_connect_all(
    draw: Draws, n: int = 23, side: int = 1, n_global: int = 1, n_random: int = 0
) -> ClaimResult:
    layers = complexity.graph_diameter(_bigbird(draw, side, n_global, n_random).pattern.table(1, n)[0])
    assert layers is not None
    window = complexity.graph_diameter(WindowPattern(max(side, 1)).table(1, n)[0])
    assert window is not None
    return ClaimResult(at_most(layers, 2), figures={"layers with a window alone": window})


@statement("S4.79", "§2.1.1", CONDITION, heavy=True).says(
    "Every complete graph can be approximated by random graphs.",
    correction="In the sense of spectra, for Erdős-Rényi graphs and expanders with enough edges: with a fixed share of "
    "all pairs, the second eigenvalue of a random walk falls to that of the complete graph, zero, as $n$ grows. With "
    "one edge for each token it does not. It says nothing of attention values.",
    compares="second eigenvalue of the walk with $4n$ tokens, and with $n$; without: the same with one edge per token",
)
@between(n=(29, 41), share=(0.3, 0.7))
def random_graphs_near_the_complete_one(draw: Draws, n: int = 31, share: float = 0.5) -> ClaimResult:
    near, far = (_second_eigenvalue(draw, size, share) for size in (n, 4 * n))
    few_near, few_far = (_second_eigenvalue(draw, size, 1 / size) for size in (n, 4 * n))
    figures = {"tokens": n, "of the larger graph": 4 * n}
    return ClaimResult(less(far, near), without=less(few_far, few_near), figures=figures)


def _second_eigenvalue(draw: Draws, n: int, share: float) -> float:
    """Of a random walk on a graph that has each edge with this chance, and every token's edge to itself."""
    upper = (draw.uniform(n, n) < share).triu(1)
    return 1 - float(complexity.spectral_gap(upper | upper.mT | torch.eye(n, dtype=torch.bool)))


statement("S4.80", "§2.1.1", FALSE).not_computed(
    "As proven in theorem 3 of the BigBird paper, the complexity reduces to $O(n)$.",
    why_not="what is wrong is the citation; the count itself is S4.81",
    correction="Theorem 3 there says that some sparse attention with $O(n)$ inner products is Turing complete. That "
    "the cost is $O(n)$ is plain counting (S4.81). Proposition 1 there: some tasks need about $n^{1 - o(1)}$ sparse "
    "layers.",
)


@statement("S4.81", "§2.1.1, figure 8", HOLDS).says(
    "The number of edges is the number of inner products that attention takes.",
    correction=r"Exactly, with the first $g$ tokens global, $h = \frac{w-1}{2}$ tokens to each side and $r$ random "
    r"keys outside of both: $gn + (n-g)(g + r + 2h + 1) - h(h+1) \le n(w + r + 2g)$.",
    compares="edges of the pattern and of our count, and the formula",
)
@between(n=(11, 31), side=(0, 2), n_global=(0, 3), n_random=(0, 3))
def edges_of_bigbird(draw: Draws, n: int = 13, side: int = 1, n_global: int = 2, n_random: int = 2) -> ClaimResult:
    bigbird = _bigbird(draw, side, n_global, n_random)
    edges, width = complexity.edge_count(bigbird.pattern.table(1, n)[0]), 2 * side + 1
    formula = n_global * n + (n - n_global) * (n_global + n_random + width) - side * (side + 1)
    return ClaimResult(
        same(stacked(edges, bigbird.cost(n, n, Geometry(1, 1, 1)).edges), formula),
        figures={"upper bound": n * (width + n_random + 2 * n_global), "pairs of full attention": n * n},
    )


# --- Longformer -------------------------------------------------------------------------------------------------------


@statement("S4.82", "§2.1.1", HOLDS).says(
    r"In Longformer each token attends $\frac w2$ tokens on each side, at a cost of $O(n \times w)$.",
    correction=r"With itself a token has $w + 1$ keys; in all $n(w+1) - h(h+1)$ with $h = \frac w2$.",
    compares="edges of the window and of our count, and the formula",
)
@between(n=(11, 31), side=(0, 10))
def edges_of_a_window(draw: Draws, n: int = 23, side: int = 3) -> ClaimResult:
    width, table = 2 * side, WindowAttention(window=side).pattern.table(1, n)[0]
    return ClaimResult(
        same(stacked(complexity.edge_count(table), window_edges(n, n, side)), n * (width + 1) - side * (side + 1)),
        figures={"pairs of full attention": n * n},
    )


@statement("S4.83", "§2.1.1", CONDITION).says(
    r"The receptive field of $L$ layers is $L \times d \times w$, $d$ being the dilation.",
    correction="As a distance between the two ends (even $w$): the span is $Ldw + 1$ positions. With the same dilation "
    "everywhere only every $d$-th of these is reached, $Lw + 1$ in all. Heads of several dilations fill the gaps.",
    compares="distance of the two ends of the field, and $Ldw$; without: positions seen besides the token itself, and "
    "$Ldw$",
)
@between(layers=(1, 7), side=(1, 3), d=(2, 5))
def receptive_field_of_dilated_windows(draw: Draws, layers: int = 6, side: int = 3, d: int = 3) -> ClaimResult:
    span, seen = complexity.receptive_field(layers, side, (d,))
    claimed = layers * d * 2 * side
    mixed = complexity.receptive_field(layers, side, (1, d)).seen
    return ClaimResult(
        same(span - 1, claimed),
        without=same(seen - 1, claimed),
        figures={"span": span, "seen": seen, "seen by heads with and without dilation": mixed},
    )


@statement("S4.84", "§2.1.1", CONDITION).says(
    'The sliding window is dilated "by gaps of size dilation $d$".',
    correction="Keys are $d$ apart, so that $d - 1$ tokens are skipped between two of them.",
    compares="distance of two neighbouring keys, and $d$; without: tokens between them, and $d$",
)
@between(side=(1, 3), d=(2, 5))
def gaps_of_a_dilated_window(draw: Draws, side: int = 2, d: int = 3) -> ClaimResult:
    n = 2 * side * d + 1
    keys = WindowPattern(side, (d,)).table(1, n)[0, side * d].nonzero().flatten()
    return ClaimResult(same(keys.diff(), d), without=same(keys.diff() - 1, d))


@statement("S4.85", "§2.1.1", CONDITION).says(
    "Stacked layers of windows capture information across the entire input.",
    correction=r"From one end to the other if $L \lfloor \frac w2 \rfloor d \ge n - 1$; with a dilation $d > 1$ only "
    "every $d$-th token on the way (S4.83).",
    compares="pairs connected by the layers needed, and all pairs; without: by one layer fewer, and all pairs",
)
@between(n=(2, 31), side=(1, 3))
def layers_of_windows(draw: Draws, n: int = 23, side: int = 2) -> ClaimResult:
    table, layers = WindowPattern(side).table(1, n)[0], complexity.layers_needed(n, side)
    assert layers is not None
    enough, too_few = (complexity.reached(table, count).sum() for count in (layers, layers - 1))
    return ClaimResult(same(enough, n * n), without=same(too_few, n * n), figures={"layers needed": layers})


@statement("S4.86", "§2.1.1", HOLDS).says(
    "A few global tokens, independent of $n$, keep the complexity at $O(n)$.",
    compares="edges that $n$ further tokens add to $2n$, and to $n$",
)
@between(n=(11, 31), side=(0, 2), n_global=(0, 3))
def global_tokens_cost_little(draw: Draws, n: int = 31, side: int = 2, n_global: int = 2) -> ClaimResult:
    longformer = Longformer(window=side, n_global=n_global)
    once, twice, thrice = (longformer.edges(times * n, times * n, 1, False) for times in (1, 2, 3))
    return ClaimResult(same(thrice - twice, twice - once), figures={"edges for each further token": (twice - once) / n})


@statement("S4.87", "§2.1.1", HOLDS).says(
    "$Q_s, K_s, V_s$ give the scores of the sliding window and $Q_g, K_g, V_g$ those of global attention.",
    correction="Two sets of projections; the second is that of the rows of global tokens.",
    compares="output with both sets of projections, and dense rows of the second and window rows of the first",
)
@between(n=(11, 31), k=(1, 7), side=(0, 2), n_global=(1, 3))
def two_sets_of_projections(draw: Draws, n: int = 13, k: int = 3, side: int = 1, n_global: int = 2) -> ClaimResult:
    local, around = draw.normal(2, 3, n, k)
    second = tuple(T[None, None] for T in around)
    longformer = Longformer(window=side, n_global=n_global)
    both = mechanism_outputs(longformer, *local, context=Context(global_qkv=(second[0], second[1], second[2])))
    alone, everywhere = mechanism_outputs(longformer, *local), mechanism_outputs(Dense(), *around)
    return ClaimResult(same(both, torch.cat([everywhere[:n_global], alone[n_global:]])))


@statement("S4.154", "§2.1.1", CONDITION).says(
    "In Longformer, different dilations for different heads improve performance.",
    correction="The paper reports it. What can be computed is the reason: heads without dilation see the tokens that "
    "the others skip. Heads of one dilation see no more than one head does.",
    compares="positions seen by heads of dilations 1 and $d$, and by one head of $d$; without: by two heads of $d$, "
    "and by one",
)
@between(layers=(1, 7), side=(1, 3), d=(2, 5))
def dilations_by_head(draw: Draws, layers: int = 6, side: int = 3, d: int = 3) -> ClaimResult:
    one, mixed, alike = (complexity.receptive_field(layers, side, steps) for steps in ((d,), (1, d), (d, d)))
    return ClaimResult(
        more(mixed.seen, one.seen),
        without=more(alike.seen, one.seen),
        figures={"share of the span that is seen": mixed.seen / mixed.span},
    )


@statement("S4.158", "§2.1.1", CONDITION).says(
    r"The receptive field $L \times d \times w$ can reach tens of thousands of tokens even for small values of $d$.",
    correction=r"If $Lw$ is large already: twelve layers of windows of 512 need $d \ge 4$ for a span above 20,000, six "
    r"layers of windows of 64 need $d \ge 53$. And it is the span: with one dilation, $Lw + 1$ tokens of it are seen "
    "(S4.83).",
    compares="span of the field with windows of 512, and 20,000; without: with six layers of windows of 64",
)
@between(layers=(12, 24), d=(4, 8))
def tens_of_thousands_of_tokens(draw: Draws, layers: int = 12, d: int = 4) -> ClaimResult:
    wide, narrow = complexity.receptive_field(layers, 256, (d,)), complexity.receptive_field(6, 32, (d,))
    needed = [math.ceil((_TENS_OF_THOUSANDS - 1) / (count * width)) for count, width in ((12, 512), (6, 64))]
    return ClaimResult(
        at_least(wide.span, _TENS_OF_THOUSANDS),
        without=at_least(narrow.span, _TENS_OF_THOUSANDS),
        figures={
            "tokens seen": wide.seen,
            "dilation needed, twelve layers of 512": needed[0],
            "dilation needed, six layers of 64": needed[1],
        },
    )


_TENS_OF_THOUSANDS = 20_000
