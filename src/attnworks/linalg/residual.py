"""How far the rows of X are from being all the same."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def residual(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a i e"]:
    """R = X - 1 x^T with x the mean row, which minimises ||X - 1 x^T|| in every unitarily invariant norm.

    Source: Xie 2021, section 2 (S0.14); D4.
    """
    return X - X.mean(-2, keepdim=True)


def relative_residual(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """||R||_F / ||X||_F, from 0 (all rows equal: collapsed) to 1 (rows that cancel); 0 for X = 0.

    Source: S0.15: the absolute residual also falls when X as a whole vanishes, so that collapse is read off this ratio.
    """
    wide = X.float() if X.dtype.itemsize < 4 else X
    size = wide.norm(dim=(-2, -1)).clamp_min(torch.finfo(wide.dtype).tiny)
    return (residual(wide).norm(dim=(-2, -1)) / size).to(X.dtype)
