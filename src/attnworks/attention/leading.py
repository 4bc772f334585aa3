"""The best approximation of a matrix by one of lower rank, with a gradient that is finite wherever it exists."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def leading(X: Float[Tensor, "*a i j"], rank: int) -> Float[Tensor, "*a i j"]:
    """X_r = sum_{a <= r} s_a u_a v_a^T, the matrix of rank r nearest to X; X itself if r >= min(i, j).

    Source: Eckart and Young 1936; the approximation by SVD of Conti 2024, section 2.1.3 (S4.116).
    Gradient: in the bases of u and v, with D_ab = u_a^T dX v_b, the differential of X_r is D_ab where a, b <= r, zero
    where a, b > r, and across the cut, a <= r < b,
        (s_a^2 D_ab + s_a s_b D_ba) / (s_a^2 - s_b^2),    and the same with ab and ba exchanged.
    So values that are equal on one side of the cut do no harm, where the gradient of an SVD divides by every gap.
    Holds when: s_r > s_{r+1}. Where a gap across the cut is nothing but rounding, the two directions are held still.
    """
    return X if rank >= min(X.shape[-2:]) else _Leading.apply(X, rank)  # pyright: ignore[reportReturnType]


class _Leading(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, rank: int) -> Tensor:
        U, s, Vh = torch.linalg.svd(X, full_matrices=False)
        ctx.save_for_backward(U, s, Vh)
        ctx.rank = rank
        return U[..., :rank] * s[..., None, :rank] @ Vh[..., :rank, :]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (G,), (U, s, Vh), r = gradients, ctx.saved_tensors, ctx.rank
        U_r, U_rest, Vh_r, Vh_rest = U[..., :r], U[..., r:], Vh[..., :r, :], Vh[..., r:, :]
        s_a, s_b = s[..., :r, None], s[..., None, r:]
        gap = s_a - s_b
        rounding = max(G.shape[-2:]) * torch.finfo(s.dtype).eps * s[..., :1, None]
        t = torch.where(gap > rounding, s_b / (gap * (s_a + s_b)), 0.0)
        D_ab, D_ba = U_r.mT @ G @ Vh_rest.mT, (U_rest.mT @ G @ Vh_r.mT).mT
        # The differential is its own adjoint: what both projections leave of G, and a turn of the two spaces.
        left = U_r @ (U_r.mT @ G)
        projected = left + (G - left) @ Vh_r.mT @ Vh_r
        turned = U_r @ (t * (s_b * D_ab + s_a * D_ba)) @ Vh_rest + U_rest @ (t * (s_b * D_ba + s_a * D_ab)).mT @ Vh_r
        return projected + turned, None
