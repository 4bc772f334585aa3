"""Inputs that come as near as possible to breaking a bound, found by gradient ascent."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor


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
