"""Functions with a finite gradient where the plain ones have none."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def safe_sqrt(x: Float[Tensor, "*a"]) -> Float[Tensor, "*a"]:
    """sqrt(x), with gradient 0 instead of infinity where x = 0."""
    positive = x > 0
    return torch.where(positive, x, 1.0).sqrt() * positive
