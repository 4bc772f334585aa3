"""Cases for a check: numbers and weights from one seed, adversarial inputs, and minima by trying everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations, permutations, product
from typing import TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnworks.exam.structure.search import assignment, band_mask, block_count
from attnworks.theory.structured_sets import blocks_of

M = TypeVar("M", bound=nn.Module)


class Draw:
    """Everything that is drawn from one seed, in the order in which it is asked for."""

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
        """Matrices whose rows are distributions: a softmax of normal numbers."""
        return self.normal(*shape, scale=sharpness).softmax(-1)

    def orthonormal(self, n: int, d: int) -> Float[Tensor, "n d"]:
        """d <= n orthonormal columns."""
        return torch.linalg.qr(self.normal(n, d)).Q


def filled(draw: Draw, make: Callable[[], M], scale: float = 1.0) -> M:
    """In float64 and without dropout, every parameter normal; torch's own random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        module = make().double().eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.copy_(draw.normal(*parameter.shape, scale=scale))
    return module


def highest(
    ratio: Callable[..., Float[Tensor, ""]], start: Sequence[Tensor], *, steps: int = 100, rate: float = 0.05
) -> float:
    """The largest value of `ratio(*inputs)` seen on the way up from `start`, by Adam, until it is no number.

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
