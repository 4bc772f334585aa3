"""Minima found by trying everything, for small cases: what a closed form or a search has to reach."""

from __future__ import annotations

from itertools import combinations, permutations, product

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnworks.exam.structure.families import assignment, band_mask, block_count, blocks_of


def over_supports(
    H: Float[Tensor, "n n"], side: int, eps: float, budget: int, power: int
) -> Float[Tensor, " supports"]:
    """sum |h - x|^power of the best X = B + E for each choice of `budget` places of E outside of the band."""
    sizes = H[~band_mask(len(H), side, side)].abs()
    sums = []
    for support in combinations(range(len(sizes)), min(budget, len(sizes))):
        rest = sizes.clone()
        rest[list(support)] = (rest[list(support)] - eps).clamp_min(0.0)
        sums.append(rest.pow(power).sum())
    return torch.stack(sums)


def all_maps(n: int) -> Int[Tensor, "m {n}"]:
    """All n^n maps of n queries to n keys."""
    return torch.tensor(list(product(range(n), repeat=n)))


def all_permutations(n: int) -> Int[Tensor, "m {n}"]:
    return torch.tensor(list(permutations(range(n))))


def all_blocks(n: int) -> Int[Tensor, "m {n}"]:
    """The maps that are members of Sigma_3."""
    maps = all_maps(n)
    return maps[torch.tensor([blocks_of(P) is not None for P in assignment(maps, n)])]


def distances(
    H: Float[Tensor, "n n"], maps: Int[Tensor, "*a n"], eps: float, budget: int | None = None
) -> Float[Tensor, "*a"]:
    """sum_ij |h - p - e| of each map, e being h - p clipped to +-eps at the `budget` largest, or everywhere."""
    D = (H - assignment(maps, H.shape[-1], dtype=H.dtype)).abs().flatten(-2)
    forgiven = D.clamp_max(eps).sort(-1, descending=True).values[..., :budget]
    return D.sum(-1) - forgiven.sum(-1)


def priced_gains(G: Float[Tensor, "n n"], maps: Int[Tensor, "*a n"], price: float) -> Float[Tensor, "*a"]:
    """sum_i G_{i tau_i} - price * (number of blocks of two or more rows)."""
    gains = G.expand(*maps.shape, G.shape[-1]).gather(-1, maps.unsqueeze(-1)).sum((-2, -1))
    return gains - price * block_count(maps)


def outside_in_order(
    H: Float[Tensor, "n n"], orders: Int[Tensor, "*a n"], side: int, eps: float
) -> Float[Tensor, "*a"]:
    """sum of max(|h| - eps, 0) outside of the band, where row i of H is row order_i of the band."""
    outside = ~band_mask(len(H), side, side)[orders]
    return ((H.abs() - eps).clamp_min(0.0) * outside).sum((-2, -1))
