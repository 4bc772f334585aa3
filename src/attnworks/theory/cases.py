"""Inputs of the checks: random numbers and weights from one seed, adversarial inputs, and minima by brute force."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, permutations, product
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnworks.exam.structure.search import assignment, band_mask, block_count
from attnworks.theory.structured_sets import blocks_of

_Module = TypeVar("_Module", bound=nn.Module)


class Draws:
    """Random float64 tensors from one seed; the same calls in the same order give the same numbers."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)

    def normal(self, *shape: int, scale: float = 1.0) -> Float[Tensor, "..."]:
        return scale * torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Float[Tensor, "..."]:
        return low + (high - low) * torch.rand(shape, generator=self.generator, dtype=torch.float64)

    def integers(self, *shape: int, below: int) -> Int[Tensor, "..."]:
        return torch.randint(below, shape, generator=self.generator)

    def permutation(self, n: int) -> Int[Tensor, " n"]:
        return torch.randperm(n, generator=self.generator)

    def stochastic(self, *shape: int, sharpness: float = 1.0) -> Float[Tensor, "..."]:
        """Matrices with rows that sum to one: the softmax of normal numbers times `sharpness`."""
        return self.normal(*shape, scale=sharpness).softmax(-1)

    def shifted_rows(self, n: int, e: int, spread: float = 1.0) -> Float[Tensor, "n e"]:
        """Normal rows times `spread`, and one common row that is added to all of them."""
        return 3 * self.normal(1, e) + spread * self.normal(n, e)

    def orthonormal(self, n: int, d: int) -> Float[Tensor, "n d"]:
        """d <= n orthonormal columns."""
        return torch.linalg.qr(self.normal(n, d)).Q


def filled(draw: Draws, make: Callable[[], _Module], scale: float = 1.0) -> _Module:
    """A module in float64 and evaluation mode with normal parameters; torch's own random state does not change."""
    with torch.random.fork_rng(devices=[]):
        module = make().double().eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.copy_(draw.normal(*parameter.shape, scale=scale))
    return module


def maximise(
    ratio: Callable[..., Float[Tensor, ""]], start: Sequence[Tensor], *, steps: int = 100, rate: float = 0.05
) -> float:
    """The largest value of `ratio(*inputs)` that Adam finds from `start`; it stops where the ratio is not finite.

    ratio    left side over right side of a bound, differentiable; a bound that holds keeps it at one or below
    """
    inputs = [tensor.clone().requires_grad_() for tensor in start]
    climb = torch.optim.Adam(inputs, lr=rate, maximize=True)
    best = -torch.inf
    for _ in range(steps):
        value = ratio(*inputs)
        if not bool(value.isfinite()):
            break
        best = max(best, float(value.detach()))
        climb.zero_grad()
        value.backward()
        climb.step()
    return best


def over_supports(
    H: Float[Tensor, "n n"], side: int, eps: float, budget: int, power: int
) -> Float[Tensor, " supports"]:
    """For each choice of `budget` places outside the band for E: sum |h - x|^power of the best X = B + E."""
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
    """sum_ij |h - p - e| of each map. Here e is h - p clipped to +-eps at the `budget` largest, or everywhere."""
    # [*a n*n]
    D = (H - assignment(maps, H.shape[-1], dtype=H.dtype)).abs().flatten(-2)
    forgiven = D.clamp_max(eps).sort(-1, descending=True).values[..., :budget]
    return D.sum(-1) - forgiven.sum(-1)


def priced_gains(G: Float[Tensor, "n n"], maps: Int[Tensor, "*a n"], price: float) -> Float[Tensor, "*a"]:
    """sum_i G_{i tau_i} - price * (number of blocks of two or more rows)."""
    # [*a n n] -> the entry of column tau_i in each row i, summed
    gains = G.expand(*maps.shape, G.shape[-1]).gather(-1, maps.unsqueeze(-1)).sum((-2, -1))
    return gains - price * block_count(maps)


def outside_in_order(
    H: Float[Tensor, "n n"], orders: Int[Tensor, "*a n"], side: int, eps: float
) -> Float[Tensor, "*a"]:
    """sum of max(|h| - eps, 0) outside of the band, where row i of H is row order_i of the band."""
    outside = ~band_mask(len(H), side, side)[orders]
    return ((H.abs() - eps).clamp_min(0.0) * outside).sum((-2, -1))
