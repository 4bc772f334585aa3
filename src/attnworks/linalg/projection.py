"""What a random projection along the keys costs: P R^T R V in place of P V."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Generator, Tensor


def sketch_error(
    P: Float[Tensor, "*a i j"], V: Float[Tensor, "*a j v"], k: int, generator: Generator | None = None
) -> Float[Tensor, "*a"]:
    """||P R^T R V - P V||_F / ||P V||_F for one draw of R [k j] per matrix, its entries from N(0, 1/k).

    Source: the projection of Xie 2021, theorem 2.3 (S0.21, S0.24).
    Holds when: P V is not zero; where it is, the ratio is infinite, or NaN if the error is zero as well.
    """
    R = torch.randn(*P.shape[:-2], k, P.shape[-1], generator=generator, dtype=P.dtype, device=P.device) / k**0.5
    Y = P @ V
    error = (P @ R.mT) @ (R @ V) - Y
    return torch.linalg.matrix_norm(error) / torch.linalg.matrix_norm(Y)


def sketch_error_formula(P: Float[Tensor, "*a i j"], V: Float[Tensor, "*a j v"], k: int) -> Float[Tensor, "*a"]:
    """sqrt(E ||P R^T R V - P V||_F^2) / ||P V||_F = sqrt((1 + ||P||_F^2 ||V||_F^2 / ||P V||_F^2) / k).

    Source: D8 summed over the columns w of V: E ||P R^T R w - P w||^2 = (||P||_F^2 ||w||^2 + ||P w||^2) / k.
    Departs: theorem 2.3 has the error relative to ||P w|| alone, which no k = O(log n) gives (S0.21).
    """
    ratio = torch.linalg.matrix_norm(P) * torch.linalg.matrix_norm(V) / torch.linalg.matrix_norm(P @ V)
    return ((1 + ratio.square()) / k).sqrt()
