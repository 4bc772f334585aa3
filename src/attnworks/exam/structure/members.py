"""Families of structured maps: the member nearest to a head, the length of its description, and its matrix."""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma, log, log2
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.exam.structure.search import (
    assignment,
    band_mask,
    best_blocks,
    best_column,
    best_map,
    best_offset,
    best_order,
    best_permutation,
    block_count,
    shift_map,
)

FINEST_EPS = 2.0**-17
"""The smallest rounding error of a written value: half a step of 2^-16."""


@dataclass(frozen=True)
class Terms:
    """The terms of a fit, shared by all families.

    i, j      numbers of queries and keys
    eps       errors up to this are forgiven
    band      widths of the band, left and right
    causal    whether later keys are hidden
    offset    the offset of each head; None for the best offset of each map

    Descriptions are in bits: log2 n for an index among n, and `value` for a weight from 0 to 1, rounded to a grid of
    step 2 eps.
    """

    i: int
    j: int
    eps: float
    band: tuple[int, int]
    causal: bool
    offset: Int[Tensor, "*#a"] | None = None

    @property
    def value(self) -> float:
        return -log2(2 * max(self.eps, FINEST_EPS))

    @property
    def correction(self) -> float:
        """Bits of one entry: its row, its column and its value."""
        return log2(self.i) + log2(self.j) + self.value

    @property
    def block(self) -> float:
        """Bits of one block of Sigma_3: its start, its end and its column."""
        return 3 * log2(self.j)

    @property
    def order(self) -> float:
        """Bits of one of j! permutations."""
        return lgamma(self.j + 1) / log(2)


class Member:
    """The member P of a family nearest to H: the search runs at construction, `form` builds the matrix."""

    rectangular: ClassVar[bool] = False
    """Whether queries and keys may differ in number."""

    def __init__(self, H: Float[Tensor, "*a i j"], terms: Terms) -> None:
        self.H, self.terms = H, terms

    def bits(self) -> float | Float[Tensor, "*a"]:
        """The length of its description, given the sizes and eps."""
        return 0.0

    def form(self) -> Float[Tensor, "*a i j"]:
        """P."""
        raise NotImplementedError


class Zero(Member):
    """P = 0: only errors, the baseline for every family (S4.133)."""

    rectangular = True

    def form(self) -> Tensor:
        return torch.zeros_like(self.H)


class Even(Member):
    """Even attention: equal weights for all visible keys. In causal attention these are the keys up to the query.

    The last query sees the last key.
    """

    rectangular = True

    def form(self) -> Tensor:
        seen = torch.ones_like(self.H)
        if self.terms.causal:
            seen = seen.tril(self.terms.j - self.terms.i)
        return seen / seen.sum(-1, keepdim=True).clamp_min(1.0)


class Assigned(Member):
    """A family of maps: row i attends only to key tau_i, or is zero where tau_i = -1."""

    def __init__(self, H: Float[Tensor, "*a i j"], terms: Terms) -> None:
        super().__init__(H, terms)
        self.tau: Int[Tensor, "*a i"] = self.search()

    def search(self) -> Int[Tensor, "*a i"]:
        raise NotImplementedError

    def form(self) -> Tensor:
        return assignment(self.tau, self.terms.j, dtype=self.H.dtype)


class Identity(Assigned):
    """Sigma_1."""

    def search(self) -> Tensor:
        return torch.arange(self.terms.j, device=self.H.device).expand(self.H.shape[:-1])


class Offset(Assigned):
    """tau_i = i + o, with |o| <= n / 2 unless o is given."""

    def search(self) -> Tensor:
        given = self.terms.offset
        found = best_offset(self.H, self.terms.eps) if given is None else given.expand(self.H.shape[:-2])
        return shift_map(self.terms.j, found)

    def bits(self) -> float:
        return log2(2 * (self.terms.j // 2) + 1)


class Column(Assigned):
    """tau_i = c."""

    rectangular = True

    def search(self) -> Tensor:
        return best_column(self.H, self.terms.eps).unsqueeze(-1).expand(self.H.shape[:-1])

    def bits(self) -> float:
        return log2(self.terms.j)


class Columns(Assigned):
    """Sigma_3. A block must gain more than corrections of the same number of bits could."""

    def search(self) -> Tensor:
        return best_blocks(self.H, self.terms.eps, self.terms.block / self.terms.correction)

    def bits(self) -> Tensor:
        return log2(self.terms.j + 1) + self.terms.block * block_count(self.tau).double()


class Permutation(Assigned):
    """tau is one-to-one."""

    def search(self) -> Tensor:
        return best_permutation(self.H, self.terms.eps)

    def bits(self) -> float:
        return self.terms.order


class Map(Assigned):
    """Any tau."""

    rectangular = True

    def search(self) -> Tensor:
        return best_map(self.H)

    def bits(self) -> float:
        return self.terms.i * log2(self.terms.j)


class _Band(Member):
    """Sigma_2 with any values: P = H inside the band; every entry of the band is written."""

    def inside(self) -> Bool[Tensor, "*#a j j"]:
        return band_mask(self.terms.j, *self.terms.band, device=self.H.device)

    def bits(self) -> float:
        return self.terms.value * int(band_mask(self.terms.j, *self.terms.band).sum())

    def form(self) -> Tensor:
        return self.H.masked_fill(~self.inside(), 0.0)


class PermutedBand(_Band):
    """Rows of a band in another order: row i is row order_i of the band."""

    def __init__(self, H: Float[Tensor, "*a n n"], terms: Terms) -> None:
        super().__init__(H, terms)
        self.order: Int[Tensor, "*a n"] = best_order(H, *terms.band, terms.eps)

    def inside(self) -> Tensor:
        return super().inside()[self.order]

    def bits(self) -> float:
        return super().bits() + self.terms.order


FORM_FAMILIES: dict[str, type[Member]] = {
    "zero": Zero,
    "even": Even,
    "identity": Identity,
    "offset": Offset,
    "column": Column,
    "band": _Band,
    "columns": Columns,
    "permutation": Permutation,
    "map": Map,
    "permuted-band": PermutedBand,
}
