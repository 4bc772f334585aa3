"""The best convex mix of given things."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import nnls
from torch import Tensor


def nearest_mix(G: Float[Tensor, "m m"]) -> Float[Tensor, " m"]:
    """argmin of a^T G a over a >= 0, sum a = 1: with G_mn = <F_m - H, F_n - H>, the mix of the F_m nearest to H.

    min over b >= 0 of b^T G b + (1 - sum b)^2 has the same direction: for b = t a it is q / (1 + q) at the best t,
    which grows with q = a^T G a. That is least squares without negative numbers, solved exactly by an active set.
    Source: Lawson and Hanson 1974, chapter 23, for the solver; the nearest point of a convex set is S4.148.
    Holds when: G is positive semidefinite up to rounding. Among several best mixes one is given.
    """
    values, vectors = torch.linalg.eigh(G.double())
    root = (values.clamp_min(0).sqrt()[:, None] * vectors.mT) / values.abs().max().clamp_min(1e-300).sqrt()
    stacked = torch.cat([root, torch.ones(1, len(G), dtype=torch.float64)])
    target = np.append(np.zeros(len(G)), 1.0)
    b, _ = nnls(stacked.numpy(), target)
    return torch.from_numpy(b / b.sum()).to(G.dtype)
