"""Functions that keep their digits, and a finite gradient, where the plain ones do not."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def safe_sqrt(x: Float[Tensor, "*a"]) -> Float[Tensor, "*a"]:
    """sqrt(x), with gradient 0 instead of infinity where x = 0."""
    positive = x > 0
    return torch.where(positive, x, 1.0).sqrt() * positive


def widened(X: Float[Tensor, "*a"]) -> Float[Tensor, "*a"]:
    """In float32 at least: sums of squares overflow, and differences vanish, in half precision."""
    return X.float() if X.dtype.itemsize < 4 else X
