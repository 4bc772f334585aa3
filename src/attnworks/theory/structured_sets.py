"""Members of the three structured sets of maps (identity, bands, blocks), and the nearest band plus small errors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from attnworks.core.checks import number
from attnworks.core.errors import UsageError
from attnworks.exam.structure.fits import small_errors
from attnworks.exam.structure.search import assignment, band_mask


def is_assignment(P: Float[Tensor, "*a i j"]) -> Bool[Tensor, "*a"]:
    """Whether every row is zeros and a single 1, exactly."""
    return ((P == 0) | (P == 1)).all(-1).all(-1) & (P.sum(-1) == 1).all(-1)


def is_permutation(P: Float[Tensor, "*a i j"]) -> Bool[Tensor, "*a"]:
    """Whether every row and every column is zeros and a single 1, exactly.

    Source: S4.134: of the three families only Sigma_1, and Sigma_3 without blocks, have such members.
    """
    return is_assignment(P) & (P.sum(-2) == 1).all(-1)


# --- Sigma_1 ----------------------------------------------------------------------------------------------------------


def identity_map(n: int, *, dtype: torch.dtype | None = None) -> Float[Tensor, "{n} {n}"]:
    """I_n, the one member of Sigma_1: every token attends itself.

    Source: Conti 2024, section 3.1.2 (S4.137).
    """
    return torch.eye(n, dtype=dtype)


def is_band(P: Float[Tensor, "*a n n"], left: int, right: int) -> Bool[Tensor, "*a"]:
    """Whether P is zero outside the band."""
    return ((P == 0) | band_mask(P.shape[-1], left, right, device=P.device)).all(-1).all(-1)


def drop_band(
    B: Float[Tensor, "*a n n"], p: float, generator: Generator | None = None, *, rescale: bool = False
) -> Float[Tensor, "*a n n"]:
    """P = dropout(B, p): each entry becomes zero with probability p; with `rescale` the others are divided by 1 - p.

    Source: Conti 2024, section 3.1.2 (S4.140), which does not say whether survivors are scaled.
    Holds when: 0 <= p < 1. Rows of P need not sum to one, even with `rescale`; `renormalised` makes them.
    """
    number("dropout with p", p, 0, 1, below=True, remedy="p is the share that is dropped")
    kept = torch.rand(B.shape, generator=generator, dtype=B.dtype, device=B.device) >= p
    return B * kept / (1 - p if rescale else 1)


def sample_band(
    n: int,
    left: int,
    right: int,
    p: float,
    generator: Generator | None = None,
    *,
    rescale: bool = False,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "{n} {n}"]:
    """A member of Sigma_2: rows drawn evenly from the weights on the band (of sum one), then `drop_band`."""
    waits = torch.empty(n, n, dtype=dtype).exponential_(generator=generator) * band_mask(n, left, right)
    return drop_band(waits / waits.sum(-1, keepdim=True), p, generator, rescale=rescale)


# --- Sigma_3 ----------------------------------------------------------------------------------------------------------


class ColumnBlock(NamedTuple):
    """Rows start .. start + width - 1, all of which attend `column`, one of them."""

    start: int
    width: int
    column: int


def column_blocks(
    n: int, blocks: Iterable[ColumnBlock | tuple[int, int, int]], *, dtype: torch.dtype | None = None
) -> Float[Tensor, "{n} {n}"]:
    """The direct sum of the blocks and, between them, of identities: a member of Sigma_3.

    Source: Conti 2024, section 3.1.2 (S4.138, S4.139), whose "concatenation" is this direct sum, torch.block_diag.
    Holds when: blocks are disjoint. Then P^2 = P, of rank n - sum (width - 1).
    """
    tau = torch.arange(n)
    for start, width, column in _disjoint(n, blocks):
        tau[start : start + width] = column
    return assignment(tau, n, dtype=dtype)


def blocks_around(
    n: int, tokens: Sequence[int], windows: Sequence[int], place: Literal["centre", "first"] = "centre"
) -> tuple[ColumnBlock, ...]:
    """Token t_k attended by a window of w_k tokens that has it in its centre, or as its first.

    Source: Conti 2024, section 3.1.2: (T, W) with T the tokens and W the sizes of their windows (S4.138).
    Departs: the document speaks of surrounding tokens and prints the token first; both are here. Of an even window,
    one token more comes after the centre than before.
    """
    if len(tokens) != len(windows) or place not in ("centre", "first"):
        expected, found = "one window per token, 'centre' or 'first'", f"{len(tokens)} tokens, {len(windows)} windows"
        remedy = "write blocks_around(n, tokens=(4, 9), windows=(3, 2))"
        raise UsageError(f"windows around tokens, place {place!r}", expected, found, remedy)
    before = [(window - 1) // 2 if place == "centre" else 0 for window in windows]
    return _disjoint(n, map(ColumnBlock, (t - w for t, w in zip(tokens, before, strict=True)), windows, tokens))


def blocks_of(P: Float[Tensor, "n n"]) -> tuple[ColumnBlock, ...] | None:
    """The blocks of two or more rows of a member of Sigma_3, by which it is `column_blocks`; None for any other P."""
    if not is_assignment(P):
        return None
    column, width = torch.unique_consecutive(P.argmax(-1), return_counts=True)
    start = width.cumsum(0) - width
    if not ((start <= column) & (column < start + width)).all():
        return None
    runs = zip(start.tolist(), width.tolist(), column.tolist(), strict=True)
    return tuple(ColumnBlock(*run) for run in runs if run[1] > 1)


def _disjoint(n: int, blocks: Iterable[ColumnBlock | tuple[int, int, int]]) -> tuple[ColumnBlock, ...]:
    """The blocks by their start, if they are inside the sequence, apart from each other, and around their columns."""
    ordered = tuple(sorted(ColumnBlock(*block) for block in blocks))
    end = 0
    for block in ordered:
        start, end_before, end = block.start, end, block.start + block.width
        if not end_before <= start <= block.column < end <= n:
            expected = f"disjoint windows inside 0 .. {n - 1}, each with its column inside"
            found = f"{block} after {end_before} tokens"
            raise UsageError(f"blocks of a sequence of {n} tokens", expected, found, "move or narrow the windows")
    return ordered


class BandProjection(NamedTuple):
    """The nearest X = B + E.

    B            the band, equal to H there
    E            errors outside the band, at most eps each and at most `budget` of them
    l1           sum_ij |h_ij - x_ij|
    frobenius    sqrt(sum_ij (h_ij - x_ij)^2)
    """

    B: Float[Tensor, "*a n n"]
    E: Float[Tensor, "*a n n"]
    l1: Float[Tensor, "*a"]
    frobenius: Float[Tensor, "*a"]

    @property
    def X(self) -> Float[Tensor, "*a n n"]:
        return self.B + self.E


def project_to_band(
    H: Float[Tensor, "*a n n"], left: int, right: int, eps: float, budget: int | None = None
) -> BandProjection:
    """The X nearest to H of {B + E: B in the band, |e_ij| <= eps, at most `budget` e_ij outside the band not zero}.

    Inside the band X = H; outside, E is h clipped to +-eps at the `budget` largest |h|, or everywhere without a budget.
    Writing an entry lowers the L1 distance by min(|h|, eps), and the squared Frobenius distance by h^2 up to eps and
    2 eps |h| - eps^2 from there on. All of these grow with |h|, so that the same X is nearest in both norms.
    Source: Conti 2024, eq. 21 and 22 (S4.142, S4.143); D11.
    Holds when: always; equal |h| are taken in the order of rows, then columns. Without a budget X is unique. With one
    the set is not convex (S4.144) and every |h| >= eps gains the same in L1, so that there X is one nearest of several
    (S4.147): the one that is nearest in the Frobenius norm too.
    """
    outside = H.masked_fill(band_mask(H.shape[-1], left, right, device=H.device), 0.0)
    E = small_errors(outside, eps, budget)
    rest = outside - E
    l1, frobenius = (torch.linalg.vector_norm(rest, order, (-2, -1)) for order in (1, 2))
    return BandProjection(H - outside, E, l1, frobenius)


class RowReport(NamedTuple):
    """How far a matrix is from rows of weights: the sum of each row, and how many entries are negative."""

    sums: Float[Tensor, "*a i"]
    negatives: Int[Tensor, "*a"]


def row_report(X: Float[Tensor, "*a i j"]) -> RowReport:
    return RowReport(X.sum(-1), (X < 0).sum((-2, -1)))


def renormalised(X: Float[Tensor, "*a i j"]) -> Float[Tensor, "*a i j"]:
    """Rows that sum to one again: negative entries become zero, rows are divided by their sums; a row of zeros stays.

    Source: D11, S4.133: the rows of P + E need not sum to one.
    """
    positive = X.clamp_min(0.0)
    sums = positive.sum(-1, keepdim=True)
    return positive / torch.where(sums > 0, sums, 1.0)
