"""S4: Conti 2024 on the nearest member of a set of structured maps (S4.141-S4.155)."""

from __future__ import annotations

import torch
from torch import Tensor

from attnworks.attention import Mask
from attnworks.attention.dense import Dense
from attnworks.attention.softmax import scaled_dot
from attnworks.core.places import Slot
from attnworks.exam.structure.fits import small_errors
from attnworks.exam.structure.search import band_mask, best_order, best_permutation
from attnworks.models.block import Block as DecoderBlock
from attnworks.models.block import Residual, Wiring
from attnworks.models.config import AttentionConfig
from attnworks.reshape.projection.forms import nearest_mix
from attnworks.theory import cases
from attnworks.theory.cases import Draws, filled
from attnworks.theory.claims.s3_heads import drawn_layer
from attnworks.theory.claims.s4_structure import F64, one_block
from attnworks.theory.contract import CONDITION, FALSE, HOLDS, NOT_CHECKABLE, ClaimResult, between, statement
from attnworks.theory.networks import mechanism_weights
from attnworks.theory.sides import at_most, more, same, stacked
from attnworks.theory.structured_sets import BandProjection, identity_map, project_to_band, sample_band


@statement("S4.141", "§3.1.2", FALSE).says(
    r"Up to a permutation of rows all three families are block-diagonal; $\sigma_i$ makes blocks of rare tokens "
    "diagonal.",
    correction="Permutations keep the rank and the sums of columns, and the rank is $n - w + 1 < n$ for $w > 1$: no "
    r"more ones than that can be brought to the diagonal. $\sigma_i$ writes other rows; it is no permutation.",
    compares="ones that the best order of rows brings to the diagonal, and $n$; corrected: the same, and $n - w + 1$",
)
@between(n=(5, 13), w=(2, 4))
def no_order_is_diagonal(draw: Draws, n: int = 7, w: int = 3) -> ClaimResult:
    """The best of all permutations of rows, by the Hungarian method."""
    P = one_block(draw, n, w)
    tau = best_permutation(P, 0.0)
    on_the_diagonal = P.gather(-1, tau.unsqueeze(-1)).sum()
    return ClaimResult(same(on_the_diagonal, n), corrected=same(on_the_diagonal, n - w + 1))


# --- the projection ---------------------------------------------------------------------------------------------------


def _member(draw: Draws, n: int, side: int, eps: float, errors: int) -> Tensor:
    """A band, and errors of up to eps at `errors` places outside of it."""
    outside = ~band_mask(n, side, side)
    B = draw.normal(n, n).masked_fill(outside, 0.0)
    return B + _errors(draw, outside, eps, errors)


def _errors(draw: Draws, outside: Tensor, eps: float, count: int) -> Tensor:
    """Numbers between eps / 2 and eps at `count` places."""
    places = outside.nonzero()
    chosen = places[draw.permutation(len(places))[:count]]
    E = torch.zeros(outside.shape, dtype=F64)
    E[chosen[:, 0], chosen[:, 1]] = eps * draw.uniform(len(chosen), low=0.5)
    return E


@statement("S4.142", "§3.1.2", CONDITION).says(
    r"$\mathcal X = \{B + E\}$ with a band $B$ of width $w$ and a sparse $E$, $\max \lvert e_{ij} \rvert \le "
    r"\epsilon$.",
    correction=r"Without a count of nonzeros $\mathcal X$ is a product: any number in the band, $[-\epsilon, "
    r"\epsilon]$ outside. With at most $s$ of them it is a finite union of such boxes.",
    compares="errors of the nearest matrix of the set without a count, and of a band with $s + 1$ errors; without: "
    "with a count $s$",
)
@between(n=(5, 13), side=(0, 1), eps=(0.01, 0.3), budget=(1, 5))
def set_of_bands_and_errors(draw: Draws, n: int = 7, side: int = 1, eps: float = 0.02, budget: int = 3) -> ClaimResult:
    X, errors = _member(draw, n, side, eps, budget + 1), budget + 1
    free, counted = (_kept_and_lost(project_to_band(X, side, side, eps, allowed)) for allowed in (None, budget))
    return ClaimResult(same(free, stacked(errors, 0)), without=same(counted, stacked(errors, 0)))


def _kept_and_lost(nearest: BandProjection) -> Tensor:
    """How many errors the nearest member has, and how far away it is."""
    return stacked((nearest.E != 0).sum(), nearest.l1)


@statement("S4.143", "§3.1.2, (21)-(22)", HOLDS).says(
    r"A minimiser of $\lvert H - X \rvert = \sum_{ij} \lvert h_{ij} - x_{ij} \rvert$ over $\mathcal X$ exists.",
    correction=r"$\mathcal X$ is closed, with and without a count. In the band $X = H$; outside, $h$ is clipped to "
    r"$[-\epsilon, \epsilon]$ at an error of $\sum_{out} \max(\lvert h \rvert - \epsilon, 0)$. With at most $s$ "
    r"errors, those with the largest $\min(\lvert h \rvert, \epsilon)$ are kept, at $\sum_{out} \lvert h \rvert$ less "
    "their sum.",
    compares="distance of our projection, and the least: by the formula, and by trying all places of $s$ errors",
)
@between(n=(3, 4), eps=(0.01, 0.3), budget=(0, 3))
def nearest_member(draw: Draws, n: int = 4, eps: float = 0.1, budget: int = 2) -> ClaimResult:
    H = draw.normal(n, n, scale=0.2)
    outside = H[~band_mask(n, 0, 0)].abs()
    free, counted = (project_to_band(H, 0, 0, eps, allowed).l1 for allowed in (None, budget))
    formula, best = (outside - eps).clamp_min(0.0).sum(), cases.over_supports(H, 0, eps, budget, 1).min()
    return ClaimResult(same(stacked(free, counted), stacked(formula, best)))


@statement("S4.144", "§3.1.2", FALSE).says(
    r"$\mathcal X$ is convex.",
    correction="With a count of nonzeros it is not: the middle between two members has the errors of both. Without one "
    "it is a box, and convex.",
    compares="errors of the nearest member with a count, and of the middle of two members; corrected: without a count, "
    "and the same",
)
@between(n=(5, 13), eps=(0.01, 0.3), budget=(1, 5))
def middle_of_two_members(draw: Draws, n: int = 5, eps: float = 0.1, budget: int = 1) -> ClaimResult:
    both = _errors(draw, ~band_mask(n, 0, 0), eps, 2 * budget)
    first = small_errors(both, eps, budget)
    middle = (first + (both - first)) / 2
    errors = (middle != 0).sum()
    counted, free = (_kept_and_lost(project_to_band(middle, 0, 0, eps, allowed)) for allowed in (budget, None))
    return ClaimResult(
        same(counted, stacked(errors, 0)),
        corrected=same(free, stacked(errors, 0)),
        figures={"distance of the middle from the set with a count": float(counted[1])},
    )


@statement("S4.145", "§3.1.2", CONDITION).says(
    r"$\mathcal X$ is closed: $X_n = B_n + E_n$ is split, and both parts converge.",
    correction="It is closed, but the proof is none: the split is not unique, and the parts need not converge, as $B_n "
    r"= (-1)^n \frac{\epsilon}{2} I$ and $E_n = -B_n$. Choose $E = 0$ in the band; the limit of matrices with at most "
    "$s$ nonzeros has at most $s$.",
    compares="distance of members and their limit from the set, and 0; without: distance of $B_n$ from $B_{n+1}$, and "
    "0",
)
@between(n=(5, 13), eps=(0.01, 0.3), budget=(1, 5))
def limits_of_members(draw: Draws, n: int = 5, eps: float = 0.1, budget: int = 2) -> ClaimResult:
    X, towards = (_member(draw, n, 1, eps, 0) for _ in range(2))
    E = _errors(draw, ~band_mask(n, 1, 1), eps, budget)
    sequence = torch.stack([X + 2.0**-t * towards + (1 - 2.0**-t) * E for t in range(1, 60)])
    limit = X + E
    B = [(-1) ** t * eps / 2 * identity_map(n, dtype=F64) for t in range(2)]
    outside = project_to_band(torch.cat([sequence, limit[None]]), 1, 1, eps, budget).l1
    distances = stacked(outside, (sequence[-1] - limit).abs().sum())
    return ClaimResult(same(distances, 0), without=same((B[1] - B[0]).abs().sum(), 0))


@statement("S4.146", "§3.1.2", HOLDS).says(
    r"$M_n(\mathbb R)$ with $\lvert M \rvert = \sum_{ij} \lvert m_{ij} \rvert$ is a Banach space.",
    correction=r"A norm, and complete since $\lVert M \rVert_F \le \lvert M \rvert \le n \lVert M \rVert_F$.",
    compares=r"sides of one law: $\lvert tM \rvert$ and $\lvert t \rvert \lvert M \rvert$, the triangle, or the bounds "
    r"by $\lVert M \rVert_F$",
)
@between(n=(1, 13), t=(-10.0, 10.0))
def sum_of_entries_is_a_norm(draw: Draws, n: int = 5, t: float = -3.0) -> ClaimResult:
    M, N = draw.normal(2, n, n)
    size = {name: T.abs().sum() for name, T in (("M", M), ("N", N), ("M + N", M + N), ("tM", t * M))}
    euclid = torch.linalg.matrix_norm(M)
    return ClaimResult(
        at_most(
            stacked(size["M + N"], size["tM"], abs(t) * size["M"], euclid, size["M"]),
            stacked(size["M"] + size["N"], abs(t) * size["M"], size["tM"], size["M"], n * euclid),
        )
    )


@statement("S4.147", "§3.1.2", FALSE).says(
    "By theorem 3.1 the minimiser of (21) is unique.",
    correction="Theorem 3.1 needs the norm of an inner product, which $L_1$ is not (the parallelogram of two unit "
    "vectors has the sides 8 and 4). Without a count the minimiser is unique all the same, entry by entry. With one it "
    r"is not: all $\lvert h \rvert \ge \epsilon$ gain alike. The Frobenius norm breaks the tie, by the larger $\lvert "
    r"h \rvert$.",
    compares="minimisers with one error allowed, and 1; corrected: least distance of other members without a count, "
    "and ours",
)
@between(n=(3, 5), eps=(0.01, 0.3))
def several_minimisers(draw: Draws, n: int = 3, eps: float = 0.1) -> ClaimResult:
    r"""A diagonal, and two entries above $\epsilon$ outside of it, of which one may be an error."""
    H = torch.diag(draw.uniform(n))
    H[0, -1], H[-1, 0] = (float(draw.uniform(1, low=0.3)) + eps for _ in range(2))
    distances = cases.over_supports(H, 0, eps, 1, 1)
    nearest = project_to_band(H, 0, 0, eps, 1)
    minimisers = (distances <= nearest.l1 + 1e-12).sum()
    others = project_to_band(H, 0, 0, 0.0).X + draw.uniform(11, n, n, low=-eps, high=eps)
    squares = cases.over_supports(H, 0, eps, 1, 2).sort().values.tolist()
    u, v = torch.eye(2, dtype=F64)
    return ClaimResult(
        same(minimisers, 1),
        corrected=more((others - H).abs().sum((-2, -1)).min(), project_to_band(H, 0, 0, eps).l1),
        figures={
            "minimisers": float(minimisers),
            "squared Frobenius distance of the first": squares[0],
            "and of the second": squares[1],
            "one side of the parallelogram": float((u + v).norm(1) ** 2 + (u - v).norm(1) ** 2),
            "the other side": float(2 * (u.norm(1) ** 2 + v.norm(1) ** 2)),
        },
    )


@statement("S4.148", "§3.1.2, theorem 3.1", HOLDS).says(
    "In a Hilbert space a closed, convex, non-empty set has one point nearest to any given one.",
    correction=r"In the norm of the inner product. The nearest point $p$ of $q$ is the one with $\langle q - p, x - p "
    r"\rangle \le 0$, that is $\lVert q - p \rVert^2 + \lVert x - p \rVert^2 \le \lVert q - x \rVert^2$, for all $x$ "
    "of the set.",
    compares=r"$\lVert q - p \rVert^2 + \lVert x - p \rVert^2$ for a corner $x$ of the set, and $\lVert q - x "
    r"\rVert^2$",
)
@between(corners=(1, 7), d=(1, 11))
def nearest_point_of_a_convex_set(draw: Draws, corners: int = 5, d: int = 3) -> ClaimResult:
    """The set is the hull of a few points: the inequality holds of all of it if it holds of these."""
    points, q = draw.normal(corners, d), draw.normal(d, scale=2.0)
    p = nearest_mix((points - q) @ (points - q).mT) @ points
    over_p, straight = (p - q).square().sum() + (points - p).square().sum(-1), (points - q).square().sum(-1)
    return ClaimResult(at_most(over_p, straight), figures={"distance": float((p - q).norm())})


@statement("S4.149", "§3.1.2", CONDITION).says(
    r"Heads are projected on $\mathcal X$, and the shape is then adjusted with a proper permutation.",
    correction="Once a search for it is given (D12): the largest weight of each row for maps, the Hungarian method for "
    "permutations, a linear assignment of rows for bands, dynamic programming for blocks of columns.",
    compares="weights inside of the band after the search, and all weights; without: before the search, and all "
    "weights",
)
@between(n=(13, 31), side=(0, 1))
def order_of_the_rows(draw: Draws, n: int = 13, side: int = 1) -> ClaimResult:
    """A band whose rows were moved by half of the tokens."""
    H = sample_band(n, side, side, 0.0, draw.generator, dtype=F64).roll(n // 2, 0)
    ordered = torch.empty_like(H)
    ordered[best_order(H, side, side, 0.0)] = H
    found, unsearched = (project_to_band(T, side, side, 0.0).B.sum() for T in (ordered, H))
    return ClaimResult(same(found, H.sum()), without=same(unsearched, H.sum()))


# --- figures, and the rest --------------------------------------------------------------------------------------------

statement("S4.150", "figures 1, 2, 3, 5, 9, 14, 15", NOT_CHECKABLE).not_computed(
    "Images of attention in seq2seq, of the architecture, embeddings and block, of Longformer's patterns, and of "
    "rare-token and syntactic heads.",
    why_not="images that the text lacks",
    correction="Their patterns are those of S4.13, S4.31, S4.82-S4.84, S4.138 and S4.140.",
)


@statement("S4.151", "§1.2.2, figure 4", HOLDS).says(
    "$W^O$ is what the text calls $W_c$.",
    correction=r"Concatenated heads times $W^O$ are $\sum_h Y_h W_{c,h}$.",
    compares=r"entry of concatenated heads times $W^O$ (and of $\sum_h Y_h W_{c,h}$), and of our layer",
)
@between(n=(2, 13), heads=(1, 7), v=(1, 7), d=(1, 7))
def output_weights(draw: Draws, n: int = 5, heads: int = 2, v: int = 3, d: int = 7) -> ClaimResult:
    X, layer = draw.normal(1, n, d), drawn_layer(draw, d, heads, 3, v, scale=1.0)
    Y, W_c = layer.attend(layer.queries(X), *layer.keys_values(X), Mask()).Y[0], layer.head_first()[3]
    side_by_side, W_O = torch.cat([*Y], -1), torch.cat([*W_c])
    return ClaimResult(same(torch.stack([side_by_side @ W_O, (Y @ W_c).sum(0)]), layer(X)[0]))


@statement("S4.152", "§1.2.5, figure 6", HOLDS).says(
    "The mask is applied after the scaling.",
    correction=r"The order is of no matter for a mask of 0 and $-\infty$, since $\frac{-\infty}{\sqrt k} = -\infty$; "
    "it is for finite masks.",
    compares="weight with the mask before the scale, and with the mask after it, as in our attention",
)
@between(n=(2, 13), k=(2, 7))
def mask_after_the_scale(draw: Draws, n: int = 7, k: int = 5) -> ClaimResult:
    Q, K, V = draw.normal(3, n, k)
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    M, finite = (torch.zeros(n, n, dtype=F64).masked_fill(hidden, value) for value in (-torch.inf, -1.0))
    before, after = ((scaled_dot(Q, K, 1.0) + finite) * k**-0.5, scaled_dot(Q, K, k**-0.5) + finite)
    ours = mechanism_weights(Dense(), Q, K, V, mask=Mask(dense=M))
    figures = {"change where the mask is finite": float((before.softmax(-1) - after.softmax(-1)).abs().max())}
    return ClaimResult(same(((scaled_dot(Q, K, 1.0) + M) * k**-0.5).softmax(-1), ours), figures=figures)


@statement("S4.153", "§1.2.5, the decoder", HOLDS).says(
    "A decoder block is masked self-attention, then cross-attention with queries from the decoder and keys and values "
    "from the encoder, then the feed-forward network, with a residual sum and a norm around each.",
    correction="As in the paper of 2017.",
    compares="entry of our decoder block, and of its parts in this order",
)
@between(n=(2, 13), m=(2, 13), heads=(1, 7), k=(1, 7))
def order_of_the_decoder(draw: Draws, n: int = 5, m: int = 7, heads: int = 2, k: int = 3) -> ClaimResult:
    d, config = 11, AttentionConfig(heads=heads, d_k=k, d_v=k)
    attention = {"self_attention": (Slot("decoder", 0), config), "cross_attention": (Slot("cross", 0), config)}
    block = filled(draw, lambda: DecoderBlock(d, Wiring(), d_ff=13, **attention), scale=0.3)
    X, Z, causal = draw.normal(1, n, d), draw.normal(1, m, d), Mask(causal=True)
    assert block.cross is not None and block.mlp is not None
    U = _normed(block.attention_residual, X + block.attention(X, mask=causal))
    U = _normed(block.cross_residual, U + block.cross(U, Z))
    U = _normed(block.mlp_residual, U + block.mlp(U))
    return ClaimResult(same(block(X, causal, Z), U))


def _normed(residual: Residual, X: Tensor) -> Tensor:
    assert residual.norm is not None
    return residual.norm(X)


statement("S4.155", "§1 and elsewhere", NOT_CHECKABLE).not_computed(
    "Introductions and narrative: language models since 2017, the bottleneck of recurrent networks, depth, cost, the "
    "locality of language.",
    why_not="no formal statement is made",
    correction="No formal statement.",
)
