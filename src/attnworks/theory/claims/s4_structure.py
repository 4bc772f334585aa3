"""S4: Conti 2024 on the structure of heads: maps as structure plus error, blocks and bands (S4.129-S4.140)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnworks.attention.dense import Dense
from attnworks.attention.softmax import entropy, scaled_dot, score_range
from attnworks.exam.linalg.residual import spectral
from attnworks.exam.linalg.spectrum import numerical_rank, singular_values
from attnworks.exam.structure.fits import fit, small_errors
from attnworks.exam.structure.search import assignment, band_mask, best_order
from attnworks.theory.cases import Draws, maximise
from attnworks.theory.contract import CONDITION, FALSE, NOT_CHECKABLE, TYPO, ClaimResult, between, statement
from attnworks.theory.networks import mechanism_weights
from attnworks.theory.sides import Sides, at_most, more, same, stacked
from attnworks.theory.structured_sets import (
    ColumnBlock,
    column_blocks,
    drop_band,
    identity_map,
    is_assignment,
    is_band,
    is_permutation,
    renormalised,
    row_report,
    sample_band,
)

F64 = torch.float64

# --- the experiment ---------------------------------------------------------------------------------------------------

statement("S4.129", "§3.1, figures 11-12", NOT_CHECKABLE).not_computed(
    "A transformer of one layer with 1 or 8 heads, trained for 20 epochs, shows few kinds of heads.",
    why_not="the images and the model are not available; `attnworks train conti-8h` trains one like it",
    correction="Neither the images nor the model are in the text.",
)


@statement("S4.130", "§3.1", CONDITION).says(
    'All attention matrices are "full rank with low $l_2$ norm".',
    correction=r"Rows that sum to one have $1 \le \lVert P \rVert_2 \le \sqrt n$ (and $\lVert P \rVert_F \ge 1$), so "
    'that "low" cannot be below 1. Full rank is what drawn scores give; a head in which all tokens attend one has rank '
    r"one and the norm $\sqrt n$.",
    compares=r"tokens, and rank of $P$ (1, its norm and $\sqrt n$ in this order as well); without: the same where all "
    "attend one",
)
@between(n=(2, 13), sharpness=(0.5, 2.0))
def rank_and_norm(draw: Draws, n: int = 7, sharpness: float = 1.0) -> ClaimResult:
    P, one = draw.stochastic(n, n, sharpness=sharpness), assignment(torch.zeros(n, dtype=torch.long), n, dtype=F64)
    tightest = maximise(lambda S: spectral(S.softmax(-1)) / n**0.5, [P.log()], steps=30, rate=0.5)
    figures = {
        "norm": float(spectral(P)),
        "norm where all attend one": float(spectral(one)),
        "tightest ratio found": tightest,
    }
    return ClaimResult(_full_rank_and_low(P), without=_full_rank_and_low(one), figures=figures)


def _full_rank_and_low(P: Tensor) -> Sides:
    n, norm, rank = len(P), spectral(P), numerical_rank(singular_values(P))
    return at_most(stacked(1, norm, n), stacked(norm, n**0.5, rank))


@statement("S4.131", "§3.1.1", CONDITION, heavy=True).says(
    "Three structures can be found: positional, syntactic and rare-token heads.",
    correction="The classes of Voita et al. 2019, for encoders that translate. Heads of the three families are told "
    "apart; others, such as an even one, belong to none.",
    compares="heads whose family is found, and heads; without: heads in one of the three families, and heads",
)
@between(n=(13, 23))
def three_kinds_of_heads(draw: Draws, n: int = 17) -> ClaimResult:
    kinds = {
        "identity": identity_map(n, dtype=F64),
        "band": sample_band(n, 2, 2, 0.0, draw.generator, dtype=F64),
        "columns": column_blocks(n, [ColumnBlock(1, 5, 3), ColumnBlock(7, 6, 9)], dtype=F64),
        "even": torch.full((n, n), 1 / n, dtype=F64),
    }
    noisy = [0.9 * P + 0.1 / n for P in kinds.values()]
    found = fit(torch.stack(noisy), families=("zero", *kinds)).names
    right = sum(name == family for name, family in zip(found, kinds, strict=True))
    in_the_three = sum(name in ("identity", "band", "columns") for name in found)
    return ClaimResult(same(right, len(kinds)), without=same(in_the_three, len(kinds)))


@statement("S4.132", "§3.1.1", FALSE).says(
    'Scores are "never spread" but concentrated around the diagonal, up to a permutation.',
    correction="Not for encoders in general. A head with small scores is even, in any order of its rows: row $i$ is "
    r"within $\tanh(\frac{D_i}{4})$ of the even distribution in total variation, $D_i$ being the range of its scores.",
    compares="share of weights in the band by the best order, and one half; corrected: distance of a row from even, "
    "and its bound",
)
@between(n=(13, 31), k=(1, 7), side=(0, 2), softness=(0.01, 0.1))
def spread_heads(draw: Draws, n: int = 23, k: int = 5, side: int = 2, softness: float = 0.1) -> ClaimResult:
    """Queries and keys of a head with small weights; the rows are put in the order that has most inside the band."""
    Q, K = softness * draw.normal(n, k), draw.normal(n, k)
    P, S = mechanism_weights(Dense(), Q, K, draw.normal(n, 1)), scaled_dot(Q, K, k**-0.5)
    inside = band_mask(n, side, side)[best_order(P, side, side, 0.0)]
    tightest = maximise(lambda S: (_from_even(S.softmax(-1)) / (score_range(S) / 4).tanh()).max(), [S], steps=30)
    return ClaimResult(
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


@statement("S4.133", "§3.1.1, (19)", CONDITION).says(
    r"$f(P, \tilde E) = I_n P + \tilde E$ gives the attention scores, and $(I_n P + \tilde E) V$ the values.",
    correction="As a model only: $I_n P = P$, rows need not sum to one, and entries may be negative. They are weights "
    "again once negative entries are set to zero and rows are divided by their sums.",
    compares="sum of a row without negative entries and divided by its sum, and 1; without: sum of a row as it is, and "
    "1",
)
@between(n=(2, 13), eps=(0.01, 0.3))
def structure_plus_error(draw: Draws, n: int = 7, eps: float = 0.02) -> ClaimResult:
    P = assignment(draw.integers(n, below=n), n, dtype=F64)
    X = identity_map(n, dtype=F64) @ P + draw.uniform(n, n, low=-eps, high=eps)
    sums, negatives = row_report(X)
    again = row_report(renormalised(X))
    return ClaimResult(
        same(stacked(again.sums, again.negatives), stacked(torch.ones(n), 0)),
        without=same(sums, 1),
        figures={"negative entries": float(negatives)},
    )


@statement("S4.134", "§3.1.1", FALSE).says(
    "$P$ is a permutation matrix.",
    correction=r"Members of $\Sigma_3$ are maps of 0 and 1 in which columns repeat, singular of rank $n - w + 1$; "
    r"those of $\Sigma_2$ are not of 0 and 1. Only $\Sigma_1$ is a permutation.",
    compares="largest sum of a column, and 1 as of a permutation; corrected: rank, and $n - w + 1$",
)
@between(n=(5, 13), w=(2, 4))
def maps_are_no_permutations(draw: Draws, n: int = 7, w: int = 3) -> ClaimResult:
    P, band = one_block(draw, n, w), sample_band(n, 1, 1, 0.0, draw.generator, dtype=F64)
    rank, kinds = numerical_rank(singular_values(P)), (is_assignment(P), is_permutation(P), is_assignment(band))
    return ClaimResult(
        same(P.sum(0).max(), 1),
        corrected=same(
            stacked(rank, *kinds, is_permutation(identity_map(n, dtype=F64))), stacked(n - w + 1, 1, 0, 0, 1)
        ),
        figures={"determinant": float(torch.linalg.det(P))},
    )


def one_block(draw: Draws, n: int, w: int) -> Tensor:
    start, column = (int(draw.integers(1, below=count)) for count in (n - w + 1, w))
    return column_blocks(n, [ColumnBlock(start, w, start + column)], dtype=F64)


@statement("S4.135", "§3.1.1", CONDITION).says(
    r"$\tilde E$ is a sparse matrix with $\lvert \epsilon_{ij} \rvert \le \epsilon$.",
    correction="Sparse means nothing until a number $s$ of nonzeros is given; with none, all entries may be errors.",
    compares="errors that are not zero, and $s$; without: the same without a number $s$",
)
@between(n=(5, 13), eps=(0.01, 0.3), budget=(1, 5))
def errors_within_a_budget(draw: Draws, n: int = 5, eps: float = 0.02, budget: int = 3) -> ClaimResult:
    R = draw.normal(n, n)
    few, all_of_them = (small_errors(R, eps, allowed) for allowed in (budget, None))
    few, all_of_them = (stacked((E != 0).sum(), E.abs().max()) for E in (few, all_of_them))
    return ClaimResult(at_most(few, stacked(budget, eps)), without=at_most(all_of_them, stacked(budget, eps)))


@statement("S4.136", "§3.1.1, figure 13", CONDITION).says(
    "The permutation makes tokens 3, 4 and 5 attend token 4.",
    correction=r"As a map $\tau(3) = \tau(4) = \tau(5) = 4$; it is no permutation, which has one 1 in each column.",
    compares="token that tokens 3, 4 and 5 attend, and 4; without: sum of a column, and 1 as of a permutation",
)
@between(n=(5, 13))
def three_tokens_attend_one(draw: Draws, n: int = 7) -> ClaimResult:
    P = column_blocks(n, [ColumnBlock(2, 3, 3)], dtype=F64)
    attended = P[2:5] @ torch.arange(1, n + 1, dtype=F64)
    return ClaimResult(same(attended, 4), without=same(P.sum(0), 1))


# --- the families -----------------------------------------------------------------------------------------------------


@statement("S4.137", "§3.1.1, (20)", TYPO).says(
    r"$\Sigma = \Sigma_1 \cup \Sigma_2 \cup \Sigma_3$ with $\Sigma_1 = I_n$ and $\Sigma_2 = \Sigma_2(w)$.",
    correction=r"$\Sigma_1 = \{I_n\}$, and $\Sigma_2$ depends on $(w_1, w_2, p)$: bands of one width $w$ differ by "
    "side.",
    compares="entries in both of two bands of width $w$, and in each; corrected: nonzeros inside of their band, and "
    "all nonzeros",
)
@between(n=(5, 13), w=(1, 4), p=(0.0, 0.9))
def parameters_of_the_bands(draw: Draws, n: int = 7, w: int = 2, p: float = 0.5) -> ClaimResult:
    left, right = (band_mask(n, *sides) for sides in ((w, 0), (0, w)))
    member = sample_band(n, w, 0, p, draw.generator, dtype=F64) != 0
    return ClaimResult(same((left & right).sum(), left.sum()), corrected=same((member & left).sum(), member.sum()))


@statement("S4.138", "§3.1.2", CONDITION).says(
    r"The base case of $\Sigma_3$ consists of $I_{d_1}$, $P_r$ and $I_{d_2}$ with $w$ ones in column $i$; $P_r$ has "
    "ones in its first column.",
    correction="As a direct sum, for a token that is the first of its window. For a token surrounded by its window "
    r"$P_r$ has its ones in column $c$, $1 \le c \le w$. Either is idempotent, of rank $n - w + 1$.",
    compares="rows in which the direct sum is our member with the token first, and all; without: with the token last, "
    "and all",
)
@between(w=(2, 4), before=(0, 5), after=(0, 5))
def direct_sum_of_blocks(draw: Draws, w: int = 3, before: int = 2, after: int = 2) -> ClaimResult:
    n = before + w + after
    summed = torch.block_diag(identity_map(before, dtype=F64), _printed_block(w), identity_map(after, dtype=F64))
    first, last = (column_blocks(n, [ColumnBlock(before, w, before + c)], dtype=F64) for c in (0, w - 1))
    ranks = numerical_rank(singular_values(torch.stack([first, last])))
    return ClaimResult(
        same(
            stacked(_same_rows(summed, first), ranks, first @ first, last @ last),
            stacked(n, torch.full_like(ranks, n - w + 1), first, last),
        ),
        without=same(_same_rows(summed, last), n),
        figures={"rank": float(ranks[0])},
    )


def _same_rows(A: Tensor, B: Tensor) -> Tensor:
    """How many rows of two matrices are equal."""
    return (A == B).all(-1).sum()


def _printed_block(w: int) -> Tensor:
    return assignment(torch.zeros(w, dtype=torch.long), w, dtype=F64)


@statement("S4.139", "§3.1.2", TYPO).says(
    'The general case is "just a concatenation of matrices".',
    correction="A direct sum, with blocks along the diagonal; windows must be disjoint.",
    compares="rows of the blocks side by side, and tokens; corrected: rows in which the direct sum is our member, and "
    "all",
)
@between(w=(2, 4), blocks=(2, 4))
def concatenation(draw: Draws, w: int = 3, blocks: int = 2) -> ClaimResult:
    parts, n = [_printed_block(w)] * blocks, blocks * w
    beside = torch.cat(parts, -1)
    places = [ColumnBlock(w * b, w, w * b) for b in range(blocks)]
    return ClaimResult(
        same(beside.shape[0], n),
        corrected=same(_same_rows(torch.block_diag(*parts), column_blocks(n, places, dtype=F64)), n),
    )


@statement("S4.140", "§3.1.2", CONDITION).says(
    r"$\Sigma_2$: $b_{ij} = 0$ if $i > j + w_1$ or $j > i + w_2$, and $P = \operatorname{dropout}(B, p)$.",
    correction="One has to say whether survivors are divided by $1 - p$. Either way the rows of $P$ do not sum to one, "
    "unless they are divided by their sums.",
    compares="sum of a row that is divided by its sum, and 1; without: sum of a row as dropout leaves it, and 1",
)
@between(n=(13, 31), left=(1, 3), right=(1, 3), p=(0.5, 0.9))
def bands_with_holes(draw: Draws, n: int = 13, left: int = 1, right: int = 2, p: float = 0.5) -> ClaimResult:
    B = sample_band(n, left, right, 0.0, draw.generator, dtype=F64)
    P = drop_band(B, p, draw.generator)
    some = (P != 0).any(-1)
    return ClaimResult(
        same(stacked(is_band(P, left, right), renormalised(P)[some].sum(-1)), 1),
        without=same(P.sum(-1), 1),
        figures={"share of entries that are left": float((P != 0).sum() / (B != 0).sum())},
    )
