"""Numbers for a check: float64, from one seed."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


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
