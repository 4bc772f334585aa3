"""What several claims about rank collapse are checked with: inputs, and shares of bounds, at most one if they hold."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.exam.linalg.bounds import (
    bound_converges,
    composite_bound,
    cubic_bound,
    diameter,
    logit_row_range,
    mean_factor,
    published_bound,
    rounding_of_rows,
)
from attnworks.exam.linalg.residual import best_row, composite, residual, residual_norm
from attnworks.exam.linalg.spectrum import numerical_rank, singular_values
from attnworks.theory.cases import Draw
from attnworks.theory.networks import Network
from attnworks.theory.sides import Sides, same
from attnworks.theory.together import together


def rows_with_a_common_part(draw: Draw, n: int, e: int, spread: float = 1.0) -> Float[Tensor, "n e"]:
    return 3 * draw.normal(1, e) + spread * draw.normal(n, e)


def row_and_column(m: int, n: int) -> tuple[Float[Tensor, "m n"], Float[Tensor, "m n"]]:
    """A = s 1 e_0^T and B = e_0 1^T with equal composite norms, whose sum is as large as it can be (D3)."""
    A, B = torch.zeros(2, m, n, dtype=torch.float64).unbind()
    A[:, 0], B[0] = (n / m) ** 0.5, 1.0
    return A, B


def rank(M: Float[Tensor, "i j"]) -> int:
    """Singular values above rounding."""
    return int(numerical_rank(singular_values(M), max(M.shape)))


def self_attended(X: Float[Tensor, "n e"], W_QK: Float[Tensor, "e e"]) -> Float[Tensor, "n e"]:
    """softmax(X W_QK X^T) X, with gradients."""
    return (X @ W_QK @ X.mT).softmax(-1) @ X


def of_row_range(network: Network, X: Float[Tensor, "n e"], row_range: float) -> Network:
    """The first layer's W_Q so scaled that no row of E has a larger range, E by the mean row or by the best one."""
    W_Q, W_K, _, _ = network.layers[0].head_first()
    widest = max(
        float(logit_row_range(R, W_Q, W_K, network.scale)) for R in (residual(X), X - best_row(X, "composite"))
    )
    network.layers[0].W_Q.mul_(row_range / widest)
    return network


def composite_share(network: Network, X: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
    """The residual of one layer's output over its bound: the least with the constant 4, or from the mean with 8 - 8/n.

    The larger of the two shares.
    """
    Y = network.run(X).states[1]
    of_mean = composite(residual(X)), composite(residual(Y)), mean_factor(torch.tensor(float(len(X))))
    of_least = residual_norm(X, "composite"), residual_norm(Y, "composite"), 4.0
    shares = [
        after / (composite_bound(before, network.sizes[0], network.scale, factor) + len(X) * rounding_of_rows(Y))
        for before, after, factor in (of_mean, of_least)
    ]
    return torch.stack(shares).max()


def cubic_share(network: Network, X: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
    """The diameter of the output over its bound c^{(3^L - 1) / 2} diam^{3^L}."""
    bound, states = diameter(X), network.run(X).states
    for sizes in network.sizes:
        bound = cubic_bound(bound, sizes, network.scale)
    return diameter(states[-1]) / (bound + rounding_of_rows(*states))


def converges_below_one(draw: Draw) -> Sides:
    """On both sides of c rho^2 = 1: the logarithm of the bound and of c^{-1/2} (c^{1/2} rho)^{3^L}, and where it falls.

    A bound that falls with depth counts one, on the right where it is said to.
    """
    c, size = draw.normal(31).exp(), draw.normal(31).exp()
    rho = (size / c).sqrt()
    deep, shallow = (
        torch.stack([published_bound(r, k, layers) for r, k in zip(rho, c, strict=True)]) for layers in (3, 2)
    )
    said = torch.stack([bound_converges(r, k) for r, k in zip(rho, c, strict=True)])
    return same(together(deep.log(), deep < shallow), together(27 / 2 * size.log() - c.log() / 2, said))
