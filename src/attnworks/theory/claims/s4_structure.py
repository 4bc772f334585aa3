"""S4: Conti 2024, section 3.1 on the structure of attention maps, and what is left (S4.129-S4.155)."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from torch import Tensor

from attnworks.attention import Mask
from attnworks.attention.dense import Dense
from attnworks.attention.softmax import entropy, scaled_dot, score_range
from attnworks.exam.linalg.residual import spectral
from attnworks.exam.linalg.spectrum import numerical_rank, singular_values
from attnworks.exam.structure.families import (
    Block,
    assignment,
    band_mask,
    column_blocks,
    drop_band,
    identity,
    is_assignment,
    is_band,
    is_permutation,
    sample_band,
)
from attnworks.exam.structure.fits import fit
from attnworks.exam.structure.projection import Projection, project, renormalised, row_report, small_errors
from attnworks.exam.structure.search import best_order, best_permutation
from attnworks.models.block import Block as DecoderBlock
from attnworks.models.block import Residual, Wiring
from attnworks.models.config import AttentionConfig
from attnworks.models.multihead import MultiHead
from attnworks.reshape.projection.forms import nearest_mix
from attnworks.theory import exhaustive_search
from attnworks.theory.adversary import highest
from attnworks.theory.cases import Draw
from attnworks.theory.contract import Between, Finding, Verdict, not_computed, statement
from attnworks.theory.filling import filled
from attnworks.theory.one_head import weights
from attnworks.theory.sides import Sides, at_most, more, same
from attnworks.theory.together import together

F64 = torch.float64
Rows = Annotated[int, Between(2, 13)]
Tokens = Annotated[int, Between(5, 13)]
Many = Annotated[int, Between(13, 31)]
Width = Annotated[int, Between(1, 7)]
Window = Annotated[int, Between(2, 4)]
Before = Annotated[int, Between(0, 5)]
Side = Annotated[int, Between(0, 2)]
Eps = Annotated[float, Between(0.01, 0.3)]
Budget = Annotated[int, Between(1, 5)]

# --- the experiment ---------------------------------------------------------------------------------------------------

not_computed(
    "S4.129",
    where="§3.1, figures 11-12",
    says="A transformer of one layer with 1 or 8 heads, trained for 20 epochs, shows few kinds of heads.",
    correction="Neither the images nor the model are in the text.",
    why_not="the images and the model are not available; `attnworks train conti-8h` trains one like it",
)


@statement(
    "S4.130",
    where="§3.1",
    says=r'All attention matrices are "full rank with low $l_2$ norm".',
    verdict=Verdict.CONDITION,
    correction=(
        r"Rows that sum to one have $1 \le \lVert P \rVert_2 \le \sqrt n$ (and $\lVert P \rVert_F \ge 1$), so that "
        '"low" cannot be below 1. Full rank is what drawn scores give; a head in which all tokens attend one has rank '
        r"one and the norm $\sqrt n$."
    ),
    compares=r"tokens, and rank of $P$ (1, its norm and $\sqrt n$ in this order as well); without: the same where all "
    "attend one",
)
def rank_and_norm(draw: Draw, n: Rows = 7, sharpness: Annotated[float, Between(0.5, 2.0)] = 1.0) -> Finding:
    P, one = draw.stochastic(n, n, sharpness=sharpness), assignment(torch.zeros(n, dtype=torch.long), n, dtype=F64)
    tightest = highest(lambda S: spectral(S.softmax(-1)) / n**0.5, [P.log()], steps=30, rate=0.5)
    figures = {
        "norm": float(spectral(P)),
        "norm where all attend one": float(spectral(one)),
        "tightest ratio found": tightest,
    }
    return Finding(_full_rank_and_low(P), without=_full_rank_and_low(one), figures=figures)


def _full_rank_and_low(P: Tensor) -> Sides:
    n, norm, rank = len(P), spectral(P), numerical_rank(singular_values(P))
    return at_most(together(1, norm, n), together(norm, n**0.5, rank))


@statement(
    "S4.131",
    where="§3.1.1",
    says="Three structures can be found: positional, syntactic and rare-token heads.",
    verdict=Verdict.CONDITION,
    correction=(
        "The classes of Voita et al. 2019, for encoders that translate. Heads of the three families are told apart; "
        "others, such as an even one, belong to none."
    ),
    compares="heads whose family is found, and heads; without: heads in one of the three families, and heads",
    heavy=True,
)
def three_kinds_of_heads(draw: Draw, n: Annotated[int, Between(13, 23)] = 17) -> Finding:
    kinds = {
        "identity": identity(n, dtype=F64),
        "band": sample_band(n, 2, 2, 0.0, draw.generator, dtype=F64),
        "columns": column_blocks(n, [Block(1, 5, 3), Block(7, 6, 9)], dtype=F64),
        "uniform": torch.full((n, n), 1 / n, dtype=F64),
    }
    noisy = [0.9 * P + 0.1 / n for P in kinds.values()]
    found = fit(torch.stack(noisy), families=("zero", *kinds)).names
    right = sum(name == family for name, family in zip(found, kinds, strict=True))
    in_the_three = sum(name in ("identity", "band", "columns") for name in found)
    return Finding(same(right, len(kinds)), without=same(in_the_three, len(kinds)))


@statement(
    "S4.132",
    where="§3.1.1",
    says='Scores are "never spread" but concentrated around the diagonal, up to a permutation.',
    verdict=Verdict.FALSE,
    correction=(
        "Not for encoders in general. A head with small scores is even, in any order of its rows: row $i$ is within "
        r"$\tanh(\frac{D_i}{4})$ of the even distribution in total variation, $D_i$ being the range of its scores."
    ),
    compares="share of weights in the band by the best order, and one half; corrected: distance of a row from even, "
    "and its bound",
)
def spread_heads(
    draw: Draw,
    n: Many = 23,
    k: Width = 5,
    side: Side = 2,
    softness: Annotated[float, Between(0.01, 0.1)] = 0.1,
) -> Finding:
    """Queries and keys of a head with small weights; the rows are put in the order that has most inside the band."""
    Q, K = softness * draw.normal(n, k), draw.normal(n, k)
    P, S = weights(Dense(), Q, K, draw.normal(n, 1)), scaled_dot(Q, K, k**-0.5)
    inside = band_mask(n, side, side)[best_order(P, side, side, 0.0)]
    tightest = highest(lambda S: (_from_even(S.softmax(-1)) / (score_range(S) / 4).tanh()).max(), [S], steps=30)
    return Finding(
        more((P * inside).sum() / n, 0.5),
        corrected=at_most(_from_even(P), (score_range(S) / 4).tanh()),
        figures={
            "entropy, as a share of the largest": float(entropy(P).mean()) / math.log(n),
            "tightest ratio found": tightest,
        },
    )


def _from_even(P: Tensor) -> Tensor:
    """The distance of each row from the even distribution, in total variation."""
    return (P - 1 / P.shape[-1]).abs().sum(-1) / 2


@statement(
    "S4.133",
    where="§3.1.1, (19)",
    says=r"$f(P, \tilde E) = I_n P + \tilde E$ gives the attention scores, and $(I_n P + \tilde E) V$ the values.",
    verdict=Verdict.CONDITION,
    correction=(
        "As a model only: $I_n P = P$, rows need not sum to one, and entries may be negative. They are weights again "
        "once negative entries are set to zero and rows are divided by their sums."
    ),
    compares="sum of a row without negative entries and divided by its sum, and 1; without: sum of a row as it is, "
    "and 1",
)
def structure_plus_error(draw: Draw, n: Rows = 7, eps: Eps = 0.02) -> Finding:
    P = assignment(draw.integers(n, below=n), n, dtype=F64)
    X = identity(n, dtype=F64) @ P + draw.uniform(n, n, low=-eps, high=eps)
    sums, negatives = row_report(X)
    again = row_report(renormalised(X))
    return Finding(
        same(together(again.sums, again.negatives), together(torch.ones(n), 0)),
        without=same(sums, 1),
        figures={"negative entries": float(negatives)},
    )


@statement(
    "S4.134",
    where="§3.1.1",
    says="$P$ is a permutation matrix.",
    verdict=Verdict.FALSE,
    correction=(
        r"Members of $\Sigma_3$ are maps of 0 and 1 in which columns repeat, singular of rank $n - w + 1$; those of "
        r"$\Sigma_2$ are not of 0 and 1. Only $\Sigma_1$ is a permutation."
    ),
    compares="largest sum of a column, and 1 as of a permutation; corrected: rank, and $n - w + 1$",
)
def maps_are_no_permutations(draw: Draw, n: Tokens = 7, w: Window = 3) -> Finding:
    P, band = _one_block(draw, n, w), sample_band(n, 1, 1, 0.0, draw.generator, dtype=F64)
    rank, kinds = numerical_rank(singular_values(P)), (is_assignment(P), is_permutation(P), is_assignment(band))
    return Finding(
        same(P.sum(0).max(), 1),
        corrected=same(together(rank, *kinds, is_permutation(identity(n, dtype=F64))), together(n - w + 1, 1, 0, 0, 1)),
        figures={"determinant": float(torch.linalg.det(P))},
    )


def _one_block(draw: Draw, n: int, w: int) -> Tensor:
    start, column = (int(draw.integers(1, below=count)) for count in (n - w + 1, w))
    return column_blocks(n, [Block(start, w, start + column)], dtype=F64)


@statement(
    "S4.135",
    where="§3.1.1",
    says=r"$\tilde E$ is a sparse matrix with $\lvert \epsilon_{ij} \rvert \le \epsilon$.",
    verdict=Verdict.CONDITION,
    correction="Sparse means nothing until a number $s$ of nonzeros is given; with none, all entries may be errors.",
    compares="errors that are not zero, and $s$; without: the same without a number $s$",
)
def errors_within_a_budget(draw: Draw, n: Tokens = 5, eps: Eps = 0.02, budget: Budget = 3) -> Finding:
    R = draw.normal(n, n)
    few, all_of_them = (_count_and_size(small_errors(R, eps, allowed)) for allowed in (budget, None))
    return Finding(at_most(few, together(budget, eps)), without=at_most(all_of_them, together(budget, eps)))


def _count_and_size(E: Tensor) -> Tensor:
    return together((E != 0).sum(), E.abs().max())


@statement(
    "S4.136",
    where="§3.1.1, figure 13",
    says="The permutation makes tokens 3, 4 and 5 attend token 4.",
    verdict=Verdict.CONDITION,
    correction=r"As a map $\tau(3) = \tau(4) = \tau(5) = 4$; it is no permutation, which has one 1 in each column.",
    compares="token that tokens 3, 4 and 5 attend, and 4; without: sum of a column, and 1 as of a permutation",
)
def three_tokens_attend_one(draw: Draw, n: Tokens = 7) -> Finding:
    P = column_blocks(n, [Block(2, 3, 3)], dtype=F64)
    attended = P[2:5] @ torch.arange(1, n + 1, dtype=F64)
    return Finding(same(attended, 4), without=same(P.sum(0), 1))


# --- the families -----------------------------------------------------------------------------------------------------


@statement(
    "S4.137",
    where="§3.1.1, (20)",
    says=r"$\Sigma = \Sigma_1 \cup \Sigma_2 \cup \Sigma_3$ with $\Sigma_1 = I_n$ and $\Sigma_2 = \Sigma_2(w)$.",
    verdict=Verdict.TYPO,
    correction=(
        r"$\Sigma_1 = \{I_n\}$, and $\Sigma_2$ depends on $(w_1, w_2, p)$: bands of one width $w$ differ by side."
    ),
    compares="entries in both of two bands of width $w$, and in each; corrected: nonzeros inside of their band, and "
    "all nonzeros",
)
def parameters_of_the_bands(
    draw: Draw, n: Tokens = 7, w: Annotated[int, Between(1, 4)] = 2, p: Annotated[float, Between(0.0, 0.9)] = 0.5
) -> Finding:
    left, right = (band_mask(n, *sides) for sides in ((w, 0), (0, w)))
    member = sample_band(n, w, 0, p, draw.generator, dtype=F64) != 0
    return Finding(same((left & right).sum(), left.sum()), corrected=same((member & left).sum(), member.sum()))


@statement(
    "S4.138",
    where="§3.1.2",
    says=(
        r"The base case of $\Sigma_3$ consists of $I_{d_1}$, $P_r$ and $I_{d_2}$ with $w$ ones in column $i$; $P_r$ "
        "has ones in its first column."
    ),
    verdict=Verdict.CONDITION,
    correction=(
        "As a direct sum, for a token that is the first of its window. For a token surrounded by its window $P_r$ has "
        r"its ones in column $c$, $1 \le c \le w$. Either is idempotent, of rank $n - w + 1$."
    ),
    compares="rows in which the direct sum is our member with the token first, and all; without: with the token "
    "last, and all",
)
def direct_sum_of_blocks(draw: Draw, w: Window = 3, before: Before = 2, after: Before = 2) -> Finding:
    n = before + w + after
    summed = _direct_sum(before, w, after)
    first, last = (column_blocks(n, [Block(before, w, before + c)], dtype=F64) for c in (0, w - 1))
    ranks = numerical_rank(singular_values(torch.stack([first, last])))
    return Finding(
        same(
            together(_same_rows(summed, first), ranks, first @ first, last @ last),
            together(n, torch.full_like(ranks, n - w + 1), first, last),
        ),
        without=same(_same_rows(summed, last), n),
        figures={"rank": float(ranks[0])},
    )


def _same_rows(A: Tensor, B: Tensor) -> Tensor:
    """How many rows of two matrices are equal."""
    return (A == B).all(-1).sum()


def _printed_block(w: int) -> Tensor:
    return assignment(torch.zeros(w, dtype=torch.long), w, dtype=F64)


def _direct_sum(before: int, w: int, after: int) -> Tensor:
    return torch.block_diag(identity(before, dtype=F64), _printed_block(w), identity(after, dtype=F64))


@statement(
    "S4.139",
    where="§3.1.2",
    says='The general case is "just a concatenation of matrices".',
    verdict=Verdict.TYPO,
    correction="A direct sum, with blocks along the diagonal; windows must be disjoint.",
    compares="rows of the blocks side by side, and tokens; corrected: rows in which the direct sum is our member, "
    "and all",
)
def concatenation(draw: Draw, w: Window = 3, blocks: Annotated[int, Between(2, 4)] = 2) -> Finding:
    parts, n = [_printed_block(w)] * blocks, blocks * w
    beside = torch.cat(parts, -1)
    places = [Block(w * b, w, w * b) for b in range(blocks)]
    return Finding(
        same(beside.shape[0], n),
        corrected=same(_same_rows(torch.block_diag(*parts), column_blocks(n, places, dtype=F64)), n),
    )


@statement(
    "S4.140",
    where="§3.1.2",
    says=r"$\Sigma_2$: $b_{ij} = 0$ if $i > j + w_1$ or $j > i + w_2$, and $P = \operatorname{dropout}(B, p)$.",
    verdict=Verdict.CONDITION,
    correction=(
        "One has to say whether survivors are divided by $1 - p$. Either way the rows of $P$ do not sum to one, unless "
        "they are divided by their sums."
    ),
    compares="sum of a row that is divided by its sum, and 1; without: sum of a row as dropout leaves it, and 1",
)
def bands_with_holes(
    draw: Draw,
    n: Many = 13,
    left: Annotated[int, Between(1, 3)] = 1,
    right: Annotated[int, Between(1, 3)] = 2,
    p: Annotated[float, Between(0.5, 0.9)] = 0.5,
) -> Finding:
    B = sample_band(n, left, right, 0.0, draw.generator, dtype=F64)
    P = drop_band(B, p, draw.generator)
    some = (P != 0).any(-1)
    return Finding(
        same(together(is_band(P, left, right), renormalised(P)[some].sum(-1)), 1),
        without=same(P.sum(-1), 1),
        figures={"share of entries that are left": float((P != 0).sum() / (B != 0).sum())},
    )


@statement(
    "S4.141",
    where="§3.1.2",
    says=(
        r"Up to a permutation of rows all three families are block-diagonal; $\sigma_i$ makes blocks of rare tokens "
        "diagonal."
    ),
    verdict=Verdict.FALSE,
    correction=(
        "Permutations keep the rank and the sums of columns, and the rank is $n - w + 1 < n$ for $w > 1$: no more than "
        r"so many ones can be brought to the diagonal. $\sigma_i$ writes other rows; it is no permutation."
    ),
    compares="ones that the best order of rows brings to the diagonal, and $n$; corrected: the same, and $n - w + 1$",
)
def no_order_is_diagonal(draw: Draw, n: Tokens = 7, w: Window = 3) -> Finding:
    """The best of all permutations of rows, by the Hungarian method."""
    P = _one_block(draw, n, w)
    tau = best_permutation(P, 0.0)
    on_the_diagonal = P.gather(-1, tau.unsqueeze(-1)).sum()
    return Finding(same(on_the_diagonal, n), corrected=same(on_the_diagonal, n - w + 1))


# --- the projection ---------------------------------------------------------------------------------------------------


def _member(draw: Draw, n: int, side: int, eps: float, errors: int) -> Tensor:
    """A band, and errors of up to eps at `errors` places outside of it."""
    outside = ~band_mask(n, side, side)
    B = draw.normal(n, n).masked_fill(outside, 0.0)
    return B + _errors(draw, outside, eps, errors)


def _errors(draw: Draw, outside: Tensor, eps: float, count: int) -> Tensor:
    """Numbers between eps / 2 and eps at `count` places."""
    places = outside.nonzero()
    chosen = places[draw.permutation(len(places))[:count]]
    E = torch.zeros(outside.shape, dtype=F64)
    E[chosen[:, 0], chosen[:, 1]] = eps * draw.uniform(len(chosen), low=0.5)
    return E


@statement(
    "S4.142",
    where="§3.1.2",
    says=(
        r"$\mathcal X = \{B + E\}$ with a band $B$ of width $w$ and a sparse $E$, $\max \lvert e_{ij} \rvert \le "
        r"\epsilon$."
    ),
    verdict=Verdict.CONDITION,
    correction=(
        r"Without a count of nonzeros $\mathcal X$ is a product: any number in the band, $[-\epsilon, \epsilon]$ "
        "outside. With at most $s$ of them it is a finite union of such boxes."
    ),
    compares="errors of the nearest matrix of the set without a count, and of a band with $s + 1$ errors; without: "
    "with a count $s$",
)
def set_of_bands_and_errors(
    draw: Draw, n: Tokens = 7, side: Annotated[int, Between(0, 1)] = 1, eps: Eps = 0.02, budget: Budget = 3
) -> Finding:
    X, errors = _member(draw, n, side, eps, budget + 1), budget + 1
    free, counted = (_kept_and_lost(project(X, side, side, eps, allowed)) for allowed in (None, budget))
    return Finding(same(free, together(errors, 0)), without=same(counted, together(errors, 0)))


def _kept_and_lost(nearest: Projection) -> Tensor:
    """How many errors the nearest member has, and how far away it is."""
    return together((nearest.E != 0).sum(), nearest.l1)


@statement(
    "S4.143",
    where="§3.1.2, (21)-(22)",
    says=r"A minimiser of $\lvert H - X \rvert = \sum_{ij} \lvert h_{ij} - x_{ij} \rvert$ over $\mathcal X$ exists.",
    verdict=Verdict.HOLDS,
    correction=(
        r"$\mathcal X$ is closed, with and without a count. In the band $X = H$; outside, $h$ is clipped to "
        r"$[-\epsilon, \epsilon]$ at an error of $\sum_{out} \max(\lvert h \rvert - \epsilon, 0)$. With at most $s$ "
        r"errors, those with the largest $\min(\lvert h \rvert, \epsilon)$ are kept, at $\sum_{out} \lvert h \rvert$ "
        "less their sum."
    ),
    compares="distance of our projection, and the least: by the formula, and by trying all places of $s$ errors",
)
def nearest_member(
    draw: Draw, n: Annotated[int, Between(3, 4)] = 4, eps: Eps = 0.1, budget: Annotated[int, Between(0, 3)] = 2
) -> Finding:
    H = draw.normal(n, n, scale=0.2)
    outside = H[~band_mask(n, 0, 0)].abs()
    free, counted = (project(H, 0, 0, eps, allowed).l1 for allowed in (None, budget))
    formula, best = (outside - eps).clamp_min(0.0).sum(), exhaustive_search.over_supports(H, 0, eps, budget, 1).min()
    return Finding(same(together(free, counted), together(formula, best)))


@statement(
    "S4.144",
    where="§3.1.2",
    says=r"$\mathcal X$ is convex.",
    verdict=Verdict.FALSE,
    correction=(
        "With a count of nonzeros it is not: the middle between two members has the errors of both. Without one it is "
        "a box, and convex."
    ),
    compares="errors of the nearest member with a count, and of the middle of two members; corrected: without a "
    "count, and the same",
)
def middle_of_two_members(draw: Draw, n: Tokens = 5, eps: Eps = 0.1, budget: Budget = 1) -> Finding:
    both = _errors(draw, ~band_mask(n, 0, 0), eps, 2 * budget)
    first = small_errors(both, eps, budget)
    middle = (first + (both - first)) / 2
    errors = (middle != 0).sum()
    counted, free = (_kept_and_lost(project(middle, 0, 0, eps, allowed)) for allowed in (budget, None))
    return Finding(
        same(counted, together(errors, 0)),
        corrected=same(free, together(errors, 0)),
        figures={"distance of the middle from the set with a count": float(counted[1])},
    )


@statement(
    "S4.145",
    where="§3.1.2",
    says=r"$\mathcal X$ is closed: $X_n = B_n + E_n$ is split, and both parts converge.",
    verdict=Verdict.CONDITION,
    correction=(
        "It is closed, but the proof is none: the split is not unique, and the parts need not converge, as $B_n = "
        r"(-1)^n \frac{\epsilon}{2} I$ and $E_n = -B_n$. Choose $E = 0$ in the band; the limit of matrices with at "
        "most $s$ nonzeros has at most $s$."
    ),
    compares="distance of members and their limit from the set, and 0; without: distance of $B_n$ from $B_{n+1}$, "
    "and 0",
)
def limits_of_members(draw: Draw, n: Tokens = 5, eps: Eps = 0.1, budget: Budget = 2) -> Finding:
    X, towards = (_member(draw, n, 1, eps, 0) for _ in range(2))
    E = _errors(draw, ~band_mask(n, 1, 1), eps, budget)
    sequence = torch.stack([X + 2.0**-t * towards + (1 - 2.0**-t) * E for t in range(1, 60)])
    limit = X + E
    B = [(-1) ** t * eps / 2 * identity(n, dtype=F64) for t in range(2)]
    outside = project(torch.cat([sequence, limit[None]]), 1, 1, eps, budget).l1
    return Finding(
        same(together(outside, (sequence[-1] - limit).abs().sum()), 0),
        without=same((B[1] - B[0]).abs().sum(), 0),
    )


@statement(
    "S4.146",
    where="§3.1.2",
    says=r"$M_n(\mathbb R)$ with $\lvert M \rvert = \sum_{ij} \lvert m_{ij} \rvert$ is a Banach space.",
    verdict=Verdict.HOLDS,
    correction=r"A norm, and complete since $\lVert M \rVert_F \le \lvert M \rvert \le n \lVert M \rVert_F$.",
    compares=r"sides of one law: $\lvert tM \rvert$ and $\lvert t \rvert \lvert M \rvert$, the triangle, or the "
    r"bounds by $\lVert M \rVert_F$",
)
def sum_of_entries_is_a_norm(
    draw: Draw, n: Annotated[int, Between(1, 13)] = 5, t: Annotated[float, Between(-10.0, 10.0)] = -3.0
) -> Finding:
    M, N = draw.normal(2, n, n)
    size = {name: T.abs().sum() for name, T in (("M", M), ("N", N), ("M + N", M + N), ("tM", t * M))}
    euclid = torch.linalg.matrix_norm(M)
    return Finding(
        at_most(
            together(size["M + N"], size["tM"], abs(t) * size["M"], euclid, size["M"]),
            together(size["M"] + size["N"], abs(t) * size["M"], size["tM"], size["M"], n * euclid),
        )
    )


@statement(
    "S4.147",
    where="§3.1.2",
    says="By theorem 3.1 the minimiser of (21) is unique.",
    verdict=Verdict.FALSE,
    correction=(
        "Theorem 3.1 needs the norm of an inner product, which $L_1$ is not (the parallelogram of two unit vectors has "
        "the sides 8 and 4). Without a count the minimiser is unique all the same, entry by entry. With one it is not: "
        r"all $\lvert h \rvert \ge \epsilon$ gain alike. The Frobenius norm breaks the tie, by the larger $\lvert h "
        r"\rvert$."
    ),
    compares="minimisers with one error allowed, and 1; corrected: least distance of other members without a count, "
    "and ours",
)
def several_minimisers(draw: Draw, n: Annotated[int, Between(3, 5)] = 3, eps: Eps = 0.1) -> Finding:
    r"""A diagonal, and two entries above $\epsilon$ outside of it, of which one may be an error."""
    H = torch.diag(draw.uniform(n))
    H[0, -1], H[-1, 0] = (float(draw.uniform(1, low=0.3)) + eps for _ in range(2))
    distances = exhaustive_search.over_supports(H, 0, eps, 1, 1)
    nearest = project(H, 0, 0, eps, 1)
    minimisers = (distances <= nearest.l1 + 1e-12).sum()
    others = project(H, 0, 0, 0.0).X + draw.uniform(11, n, n, low=-eps, high=eps)
    squares = exhaustive_search.over_supports(H, 0, eps, 1, 2).sort().values.tolist()
    u, v = torch.eye(2, dtype=F64)
    return Finding(
        same(minimisers, 1),
        corrected=more((others - H).abs().sum((-2, -1)).min(), project(H, 0, 0, eps).l1),
        figures={
            "minimisers": float(minimisers),
            "squared Frobenius distance of the first": squares[0],
            "and of the second": squares[1],
            "one side of the parallelogram": float((u + v).norm(1) ** 2 + (u - v).norm(1) ** 2),
            "the other side": float(2 * (u.norm(1) ** 2 + v.norm(1) ** 2)),
        },
    )


@statement(
    "S4.148",
    where="§3.1.2, theorem 3.1",
    says="In a Hilbert space a closed, convex, non-empty set has one point nearest to any given one.",
    verdict=Verdict.HOLDS,
    correction=(
        r"In the norm of the inner product. The nearest point $p$ of $q$ is the one with $\langle q - p, x - p \rangle "
        r"\le 0$, that is $\lVert q - p \rVert^2 + \lVert x - p \rVert^2 \le \lVert q - x \rVert^2$, for all $x$ of "
        "the set."
    ),
    compares=r"$\lVert q - p \rVert^2 + \lVert x - p \rVert^2$ for a corner $x$ of the set, and $\lVert q - x "
    r"\rVert^2$",
)
def nearest_point_of_a_convex_set(
    draw: Draw, corners: Annotated[int, Between(1, 7)] = 5, d: Annotated[int, Between(1, 11)] = 3
) -> Finding:
    """The set is the hull of a few points: the inequality holds of all of it if it holds of these."""
    points, q = draw.normal(corners, d), draw.normal(d, scale=2.0)
    p = nearest_mix((points - q) @ (points - q).mT) @ points
    over_p, straight = (p - q).square().sum() + (points - p).square().sum(-1), (points - q).square().sum(-1)
    return Finding(at_most(over_p, straight), figures={"distance": float((p - q).norm())})


@statement(
    "S4.149",
    where="§3.1.2",
    says=r"Heads are projected on $\mathcal X$, and the shape is then adjusted with a proper permutation.",
    verdict=Verdict.CONDITION,
    correction=(
        "Once a search for it is given (D12): the largest weight of each row for maps, the Hungarian method for "
        "permutations, a linear assignment of rows for bands, dynamic programming for blocks of columns."
    ),
    compares="weights inside of the band after the search, and all weights; without: before the search, and all "
    "weights",
)
def order_of_the_rows(draw: Draw, n: Many = 13, side: Annotated[int, Between(0, 1)] = 1) -> Finding:
    """A band whose rows were moved by half of the tokens."""
    H = sample_band(n, side, side, 0.0, draw.generator, dtype=F64).roll(n // 2, 0)
    ordered = torch.empty_like(H)
    ordered[best_order(H, side, side, 0.0)] = H
    found, unsearched = (project(T, side, side, 0.0).B.sum() for T in (ordered, H))
    return Finding(same(found, H.sum()), without=same(unsearched, H.sum()))


# --- figures, and the rest --------------------------------------------------------------------------------------------

not_computed(
    "S4.150",
    where="figures 1, 2, 3, 5, 9, 14, 15",
    says=(
        "Images of attention in seq2seq, of the architecture, embeddings and block, of Longformer's patterns, and of "
        "rare-token and syntactic heads."
    ),
    correction="Their patterns are those of S4.13, S4.31, S4.82-S4.84, S4.138 and S4.140.",
    why_not="images that the text lacks",
)


@statement(
    "S4.151",
    where="§1.2.2, figure 4",
    says=r"$W^O$ is what the text calls $W_c$.",
    verdict=Verdict.HOLDS,
    correction=r"Concatenated heads times $W^O$ are $\sum_h Y_h W_{c,h}$.",
    compares=r"entry of concatenated heads times $W^O$ (and of $\sum_h Y_h W_{c,h}$), and of our layer",
)
def output_weights(draw: Draw, n: Rows = 5, heads: Width = 2, v: Width = 3, d: Width = 7) -> Finding:
    X, config = draw.normal(1, n, d), AttentionConfig(heads=heads, d_k=3, d_v=v, bias=False)
    layer = filled(draw, lambda: MultiHead(d, config))
    Y, W_c = layer.attend(layer.queries(X), *layer.keys_values(X), Mask()).Y[0], layer.head_first()[3]
    side_by_side, W_O = torch.cat([*Y], -1), torch.cat([*W_c])
    return Finding(same(torch.stack([side_by_side @ W_O, (Y @ W_c).sum(0)]), layer(X)[0]))


@statement(
    "S4.152",
    where="§1.2.5, figure 6",
    says="The mask is applied after the scaling.",
    verdict=Verdict.HOLDS,
    correction=(
        r"The order is of no matter for a mask of 0 and $-\infty$, since $\frac{-\infty}{\sqrt k} = -\infty$; it is "
        "for finite masks."
    ),
    compares="weight with the mask before the scale, and with the mask after it, as in our attention",
)
def mask_after_the_scale(draw: Draw, n: Rows = 7, k: Annotated[int, Between(2, 7)] = 5) -> Finding:
    Q, K, V = draw.normal(3, n, k)
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)
    M, finite = (torch.zeros(n, n, dtype=F64).masked_fill(hidden, value) for value in (-torch.inf, -1.0))
    before, after = ((scaled_dot(Q, K, 1.0) + finite) * k**-0.5, scaled_dot(Q, K, k**-0.5) + finite)
    ours = weights(Dense(), Q, K, V, mask=Mask(dense=M))
    figures = {"change where the mask is finite": float((before.softmax(-1) - after.softmax(-1)).abs().max())}
    return Finding(same(((scaled_dot(Q, K, 1.0) + M) * k**-0.5).softmax(-1), ours), figures=figures)


@statement(
    "S4.153",
    where="§1.2.5, the decoder",
    says=(
        "A decoder block is masked self-attention, then cross-attention with queries from the decoder and keys and "
        "values from the encoder, then the feed-forward network, with a residual sum and a norm around each."
    ),
    verdict=Verdict.HOLDS,
    correction="As in the paper of 2017.",
    compares="entry of our decoder block, and of its parts in this order",
)
def order_of_the_decoder(draw: Draw, n: Rows = 5, m: Rows = 7, heads: Width = 2, k: Width = 3) -> Finding:
    d, config = 11, AttentionConfig(heads=heads, d_k=k, d_v=k)
    attention = {"self_attention": ("dec.0", config), "cross_attention": ("cross.0", config)}
    block = filled(draw, lambda: DecoderBlock(d, Wiring(), d_ff=13, **attention), scale=0.3)
    X, Z, causal = draw.normal(1, n, d), draw.normal(1, m, d), Mask(causal=True)
    assert block.cross is not None and block.cross_residual is not None
    assert block.mlp is not None and block.mlp_residual is not None
    U = _normed(block.attention_residual, X + block.attention(X, mask=causal))
    U = _normed(block.cross_residual, U + block.cross(U, Z))
    U = _normed(block.mlp_residual, U + block.mlp(U))
    return Finding(same(block(X, causal, Z), U))


def _normed(residual: Residual, X: Tensor) -> Tensor:
    assert residual.norm is not None
    return residual.norm(X)


not_computed(
    "S4.155",
    where="§1 and elsewhere",
    says=(
        "Introductions and narrative: language models since 2017, the bottleneck of recurrent networks, depth, cost, "
        "the locality of language."
    ),
    correction="No formal statement.",
    why_not="no formal statement is made",
)
