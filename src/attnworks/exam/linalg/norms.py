"""Norms of matrices, over any leading axes. Half-precision input is measured in float32."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.registry import Registry
from attnworks.core.tensors import safe_sqrt, widened

NORMS = Registry[Callable[[Tensor], Tensor]]("norm")


@NORMS.register("one")
def induced_one(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """||X||_1 = max_e sum_i |X_ie|, the largest column sum."""
    return widened(X).abs().sum(-2).amax(-1)


@NORMS.register("inf")
def induced_inf(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """||X||_inf = max_i sum_e |X_ie|, the largest row sum."""
    return widened(X).abs().sum(-1).amax(-1)


@NORMS.register("max")
def entrywise_max(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """max_ie |X_ie|."""
    return widened(X).abs().amax((-2, -1))


@NORMS.register("spectral")
def spectral(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """||X||_2, the largest singular value."""
    return torch.linalg.matrix_norm(widened(X), ord=2)


@NORMS.register("frobenius")
def frobenius(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """||X||_F = sqrt(sum_ie X_ie^2)."""
    return torch.linalg.matrix_norm(widened(X))


@NORMS.register("composite")
def composite(X: Float[Tensor, "*a i e"]) -> Float[Tensor, "*a"]:
    """||X||_{1,inf} = sqrt(||X||_1 ||X||_inf): definite, homogeneous and submultiplicative.

    Source: Xie 2021, section 2 (S0.13); ||X||_2 <= ||X||_{1,inf} <= (i e)^{1/4} ||X||_2.
    Departs: the document calls it a norm; the triangle inequality holds only up to `quasi_norm_constant` (D3).
    """
    one, inf = induced_one(X), induced_inf(X)
    return torch.where(one.isnan(), one, safe_sqrt(one) * safe_sqrt(inf))


def quasi_norm_constant(m: int, n: int) -> float:
    """K = ((m n)^{1/4} + (m n)^{-1/4}) / 2, the least with ||A + B||_{1,inf} <= K (||A||_{1,inf} + ||B||_{1,inf}).

    Source: D3 (S0.13), for matrices m x n; attained by A = s 1 e_1^T and B = e_1 1^T of equal size.
    """
    root = (m * n) ** 0.25
    return (root + 1 / root) / 2
