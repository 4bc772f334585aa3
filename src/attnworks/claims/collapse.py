"""What several claims about rank collapse are checked with: inputs, and shares of bounds, at most one if they hold."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.claims.drawing import Draw
from attnworks.claims.networks import Network
from attnworks.claims.sides import Sides, same
from attnworks.linalg.bounds import (
    bound_converges,
    composite_bound,
    cubic_bound,
    diameter,
    logit_row_range,
    mean_factor,
    published_bound,
)
from attnworks.linalg.norms import composite
from attnworks.linalg.residual import residual


def rounding(*outputs: Float[Tensor, "..."]) -> float:
    """100 eps max |Z|: what differences of rows of these outputs may owe to rounding (D7)."""
    return 100 * torch.finfo(torch.float64).eps * max(float(Z.abs().max()) for Z in outputs)


def rows_with_a_common_part(draw: Draw, n: int, e: int, spread: float = 1.0) -> Float[Tensor, "n e"]:
    return 3 * draw.normal(1, e) + spread * draw.normal(n, e)


def of_row_range(network: Network, X: Float[Tensor, "n e"], row_range: float) -> Network:
    """The first layer's W_Q so scaled that this is the largest range of a row of the residual's scores E."""
    W_Q, W_K, _, _ = network.layers[0].head_first()
    network.layers[0].W_Q.mul_(row_range / logit_row_range(residual(X), W_Q, W_K, network.scale))
    return network


def composite_share(network: Network, X: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
    """The residual of one layer's output from its mean, over its bound with the constant 8 (1 - 1/n)."""
    Y = network.run(X).states[1]
    factor = mean_factor(torch.tensor(float(len(X))))
    bound = composite_bound(composite(residual(X)), network.sizes[0], network.scale, factor)
    return composite(residual(Y)) / (bound + len(X) * rounding(Y))


def cubic_share(network: Network, X: Float[Tensor, "n e"]) -> Float[Tensor, ""]:
    """The diameter of the output over its bound c^{(3^L - 1) / 2} diam^{3^L}."""
    bound, states = diameter(X), network.run(X).states
    for sizes in network.sizes:
        bound = cubic_bound(bound, sizes, network.scale)
    return diameter(states[-1]) / (bound + rounding(*states))


def converges_below_one(draw: Draw) -> Sides:
    """Over many c and rho on both sides of c rho^2 = 1: whether the bound falls, and whether it is said to."""
    c, size = draw.normal(31).exp(), draw.normal(31).exp()
    rho = (size / c).sqrt()
    deep, shallow = (
        torch.stack([published_bound(r, k, layers) for r, k in zip(rho, c, strict=True)]) for layers in (3, 2)
    )
    said = torch.stack([bound_converges(r, k) for r, k in zip(rho, c, strict=True)])
    return same((deep < shallow).double(), said.double())
