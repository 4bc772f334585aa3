"""The nearest matrix that is a band plus small errors, and what its rows are then."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.core.tensors import widened
from attnworks.exam.structure.families import band_mask


class Projection(NamedTuple):
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


def project(H: Float[Tensor, "*a n n"], left: int, right: int, eps: float, budget: int | None = None) -> Projection:
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
    return Projection(H - outside, E, l1, frobenius)


def small_errors(R: Float[Tensor, "*a i j"], eps: float, budget: int | None = None) -> Float[Tensor, "*a i j"]:
    """The E nearest to R with |e_ij| <= eps and at most `budget` e_ij not zero, in L1 and in Frobenius norm.

    Source: D11.
    """
    if not eps >= 0 or (budget is not None and budget < 0):
        raise UsageError(
            asked="small errors",
            expected="eps and budget of 0 or more",
            got=f"eps {eps} and budget {budget}",
            remedy="budget=None allows any number of errors",
        )
    if budget is None or budget >= R.shape[-2:].numel():
        return R.clamp(-eps, eps)
    flat = R.flatten(-2)
    where = largest(flat.detach().abs(), budget)
    return torch.zeros_like(flat).scatter_(-1, where, flat.gather(-1, where).clamp(-eps, eps)).view(R.shape)


def largest(sizes: Float[Tensor, "*a m"], count: int) -> Int[Tensor, "*a {count}"]:
    """Where the `count` largest values of each row are, in no order; of equal values the first.

    numpy selects in vector instructions, in a third of the time of torch.topk, which leaves open which equals it takes.
    """
    if count == 0:
        return sizes.new_empty(*sizes.shape[:-1], 0, dtype=torch.long)
    rows = widened(sizes).cpu().numpy().reshape(-1, sizes.shape[-1])
    found = np.empty((len(rows), count), dtype=np.int64)
    for row, where in zip(rows, found, strict=True):
        least = np.partition(row, -count)[-count]
        above = np.flatnonzero(row > least)
        where[: len(above)] = above
        where[len(above) :] = np.flatnonzero(row == least)[: count - len(above)]
    return torch.from_numpy(found).to(sizes.device).view(*sizes.shape[:-1], count)


class RowReport(NamedTuple):
    """How far a matrix is from rows of weights: the sum of each row, and how many entries are negative."""

    sums: Float[Tensor, "*a i"]
    negatives: Int[Tensor, "*a"]


def row_report(X: Float[Tensor, "*a i j"]) -> RowReport:
    return RowReport(X.sum(-1), (X < 0).sum((-2, -1)))


def renormalised(X: Float[Tensor, "*a i j"]) -> Float[Tensor, "*a i j"]:
    """Rows of weights again: negative entries become zero, rows are divided by their sums; a row of zeros stays.

    Source: D11, S4.133: the rows of P + E need not sum to one.
    """
    positive = X.clamp_min(0.0)
    sums = positive.sum(-1, keepdim=True)
    return positive / torch.where(sums > 0, sums, 1.0)
