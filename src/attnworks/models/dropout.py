"""Dropout with cheap randomness."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

LEVELS = 2**16
"""Probabilities are rounded to multiples of 1 / LEVELS, and the scale is that of the rounded one: the mean is exact."""


def dropout(x: Float[Tensor, "*a"], p: float) -> Float[Tensor, "*a"]:
    """Zero each entry with probability p and divide the others by 1 - p.

    On a CPU, drawing one Bernoulli number per entry takes longer than the rest of dropout, and an eighth of a training
    step of a small Transformer. One random 64-bit integer decides four entries here, by its four 16-bit parts.
    """
    if p == 0.0:
        return x
    dropped = round(p * LEVELS)
    if x.device.type != "cpu" or torch.compiler.is_compiling() or not 0 < dropped < LEVELS:
        return F.dropout(x, p)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    keep = bits[: x.numel()].view(x.shape) >= dropped - LEVELS // 2
    return x * torch.where(keep, x.new_tensor(LEVELS / (LEVELS - dropped)), x.new_tensor(0.0))
