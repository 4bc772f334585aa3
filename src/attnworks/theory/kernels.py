"""Kernels as inner products of features: Gram matrices, norms of functions, and trigonometric polynomials.

Functions of the space of a kernel K are f = sum_i c_i K(x_i, .), with the inner product (K_x, K_y) = K(x, y).
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.tensors import safe_sqrt


def gram(features: Float[Tensor, "*a n f"]) -> Float[Tensor, "*a n n"]:
    """G_ij = phi(x_i)^T phi(x_j): symmetric and positive semidefinite, whatever phi is.

    Source: Conti 2024, eq. 14 (S4.95, S4.96).
    """
    return features @ features.mT


def features_of(G: Float[Tensor, "*a n n"]) -> Float[Tensor, "*a n n"]:
    """Phi with Phi Phi^T = G, by the eigenvectors of G: features of the n points, in at most n dimensions.

    Source: Conti 2024, eq. 14 (S4.95).
    Holds when: G is positive semidefinite; negative eigenvalues count as zero.
    Departs: no theorem of Mercer is needed, nor continuity; on infinitely many points phi(x) = K(x, .) does the same.
    """
    values, vectors = torch.linalg.eigh(G)
    return vectors * values.clamp_min(0.0).sqrt().unsqueeze(-2)


def least_eigenvalue(G: Float[Tensor, "*a n n"]) -> Float[Tensor, "*a"]:
    """The smallest eigenvalue of a symmetric G: no kernel has G as its Gram matrix if it is negative.

    Source: Conti 2024, theorem 2.1 (S4.94), which assumes without saying so that a kernel is positive definite.
    """
    return torch.linalg.eigvalsh(G)[..., 0]


def gaussian_gram(X: Float[Tensor, "*a n d"]) -> Float[Tensor, "*a n n"]:
    """G_ij = exp(-||x_i - x_j||^2 / 2), positive definite on distinct points."""
    return (-(X.unsqueeze(-2) - X.unsqueeze(-3)).square().sum(-1) / 2).exp()


def function_norm(G: Float[Tensor, "*a n n"], c: Float[Tensor, "*a n"]) -> Float[Tensor, "*a"]:
    """||f|| = sqrt(c^T G c) of f = sum_i c_i K(x_i, .), where f(x_j) = (G c)_j.

    Source: Conti 2024, definition 2 (S4.92).
    Holds when: G is positive semidefinite.
    """
    return safe_sqrt(torch.einsum("...i,...ij,...j->...", c, G, c).clamp_min(0.0))


def evaluation_norm(G: Float[Tensor, "*a n n"]) -> Float[Tensor, "*a n"]:
    """M_x = sqrt(K(x, x)), the least M with |f(x)| <= M ||f|| for all f: it is attained by f = K(x, .).

    Source: Conti 2024, definition 1 (S4.91).
    Departs: the document has one M for all x, which there is only if K(x, x) is bounded.
    """
    return G.diagonal(dim1=-2, dim2=-1).sqrt()


# --- trigonometric polynomials ----------------------------------------------------------------------------------------


def trigonometric_features(x: Float[Tensor, "*a"], degree: int) -> Float[Tensor, "*a f"]:
    """(1 / sqrt(2 pi), cos(m x) / sqrt(pi), sin(m x) / sqrt(pi)) for m = 1 .. degree: orthonormal in L2(0, 2 pi)."""
    angles = x.unsqueeze(-1) * torch.arange(1, degree + 1, dtype=x.dtype, device=x.device)
    constant = torch.full_like(x, (2 * math.pi) ** -0.5).unsqueeze(-1)
    return torch.cat([constant, angles.cos() / math.pi**0.5, angles.sin() / math.pi**0.5], -1)


def trigonometric_kernel(x: Float[Tensor, "*a"], y: Float[Tensor, "*#a"], degree: int) -> Float[Tensor, "*a"]:
    """K(x, y) = (1 + 2 sum_m cos(m (x - y))) / (2 pi), the kernel of polynomials up to `degree` with the product of L2.

    Source: Dirichlet's kernel; the case in which f(x) = int f(t) K(x, t) dt (S4.93).
    """
    orders = torch.arange(1, degree + 1, dtype=x.dtype, device=x.device)
    return (1 + 2 * ((x - y).unsqueeze(-1) * orders).cos().sum(-1)) / (2 * math.pi)


def circle(points: int) -> Float[Tensor, " points"]:
    """Equally spaced points of [0, 2 pi), the first at 0, in float64."""
    return torch.arange(points, dtype=torch.float64) * (2 * math.pi / points)


def circle_integral(values: Float[Tensor, "*a points"]) -> Float[Tensor, "*a"]:
    """int_0^{2 pi} of a function given on `circle`: exact for polynomials of a degree below the number of points."""
    return values.mean(-1) * (2 * math.pi)
