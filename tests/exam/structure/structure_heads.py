"""Small heads of every kind, and the error of a matrix written down as directly as can be."""

from __future__ import annotations

import torch
from torch import Tensor

KINDS = ("soft", "sharp", "even", "one-hot", "tied", "padded", "signed")


def heads(n: int, seed: int = 29) -> Tensor:
    """One head [n n] of each of KINDS in float64."""
    source = torch.Generator().manual_seed(seed + n)
    scores = torch.randn(n, n, generator=source, dtype=torch.float64)
    soft, sharp = scores.softmax(-1), (6 * scores).softmax(-1)
    one_hot = torch.eye(n, dtype=torch.float64)[torch.randint(n, (n,), generator=source)]
    tied = torch.randint(0, 3, (n, n), generator=source) / 4.0
    padded = sharp * (torch.arange(n) < n - n // 3).unsqueeze(-1)
    return torch.stack([soft, sharp, torch.full_like(soft, 1 / n), one_hot, tied.double(), padded, scores])


def l1_beyond(H: Tensor, P: Tensor, eps: float) -> Tensor:
    """sum_ij |h - p - e| with e = h - p clipped to +-eps."""
    R = H - P
    return (R - R.clamp(-eps, eps)).abs().sum((-2, -1))
