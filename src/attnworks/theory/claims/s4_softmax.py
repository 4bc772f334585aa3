"""S4.46-S4.50: the derivative of softmax, and why scores are scaled."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention.softmax import jacobian_norm, softmax_jacobian
from attnworks.theory.adversary import highest
from attnworks.theory.cases import Draw
from attnworks.theory.contract import Between, Finding, Verdict, statement
from attnworks.theory.sides import both, less, more, same
from attnworks.theory.together import together

Entries = Annotated[int, Between(2, 23)]
Spread = Annotated[float, Between(0.01, 3.0)]


@statement(
    "S4.46",
    where="§1.2.3",
    says=r"$\frac{\partial s_i}{\partial z_i} = s_i (1 - s_i)$ and $\frac{\partial s_i}{\partial z_k} = -s_i s_k$, for "
    r"$k \neq i$",
    verdict=Verdict.HOLDS,
    correction=r"The condition $k \neq i$ belongs to the second alone.",
    compares="entry of the formula, and of the derivative by autograd",
)
def derivatives_of_softmax(
    draw: Draw, n: Annotated[int, Between(1, 23)] = 5, spread: Annotated[float, Between(0.01, 100.0)] = 1.0
) -> Finding:
    z = draw.normal(n, scale=spread)
    return Finding(same(softmax_jacobian(z.softmax(-1)), _by_autograd(z)))


@statement(
    "S4.47",
    where="§1.2.3",
    says=r"The Jacobian has the diagonal $s_1 (1 - s_1), -s_2 (1 - s_2), \ldots, -s_n (1 - s_n)$ and $-s_i s_k$ beside "
    "it.",
    verdict=Verdict.TYPO,
    correction=r"All of the diagonal is $+s_i (1 - s_i)$: $J = \operatorname{diag}(s) - s s^\top$. It is symmetric and "
    r"positive semidefinite, $J \mathbf 1 = 0$, its rank is $n - 1$, and $\lVert J \rVert_2 \le \frac 12$.",
    compares=r"entry of the printed Jacobian, and of that by autograd; corrected: of $\operatorname{diag}(s) - s "
    r"s^\top$, and by autograd",
    heavy=True,
)
def signs_of_the_diagonal(draw: Draw, n: Entries = 5, spread: Spread = 1.0) -> Finding:
    z = draw.normal(n, scale=spread)
    J = softmax_jacobian(z.softmax(-1))
    signs = -torch.ones(n, dtype=torch.float64)
    signs[0] = 1.0
    printed = J - J.diag().diag() + (signs * J.diag()).diag()
    spectrum = torch.linalg.eigvalsh(J)
    norm_over_half = highest(
        lambda z: 2 * torch.linalg.eigvalsh(softmax_jacobian(z.softmax(-1)))[-1], [z], steps=60, rate=0.3
    )
    figures = {
        "rank": float(torch.linalg.matrix_rank(J)),
        "least eigenvalue": float(spectrum[0]),
        "spectral norm": float(spectrum[-1]),
        "largest spectral norm found, over one half": norm_over_half,
        "largest row sum": float(J.sum(-1).abs().max()),
    }
    true = _by_autograd(z)
    return Finding(same(printed, true), corrected=same(J, true), figures=figures)


@statement(
    "S4.48",
    where="§1.2.3, (9)",
    says="The Jacobian becomes zero if $s$ is one of the unit vectors.",
    verdict=Verdict.CONDITION,
    correction="If and only if; and softmax of finite $z$ reaches them only in the limit.",
    compares="entry of the Jacobian at unit vectors, and 0; without: its norm at a softmax of finite numbers, and 0",
)
def jacobian_at_unit_vectors(draw: Draw, n: Entries = 5, spread: Spread = 1.0) -> Finding:
    units, z = torch.eye(n, dtype=torch.float64), draw.normal(n, scale=spread)
    return Finding(same(softmax_jacobian(units), 0.0), without=same(jacobian_norm(z.softmax(-1)), 0.0))


@statement(
    "S4.49",
    where="§1.2.3",
    says="Softmax is not scale invariant: the higher the inputs are scaled, the more the largest dominates the output.",
    verdict=Verdict.CONDITION,
    correction="If the largest is the only one of its size: several of them share the weight at every scale.",
    compares="largest weight after scaling up, and before; without: the same where two inputs are the largest",
)
def scaling_up(
    draw: Draw,
    n: Entries = 5,
    lead: Annotated[float, Between(0.1, 2.0)] = 0.5,
    factor: Annotated[float, Between(1.5, 4.0)] = 2.0,
) -> Finding:
    """Two equal largest inputs have half of the weight each, however far the others are below."""
    z = draw.uniform(n, low=-1.0)
    z[0] = 1.0 + lead
    tied = 1000 * torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64)
    top, top_tied = ([(c * x).softmax(-1).max() for c in (factor, 1.0)] for x in (z, tied))
    return Finding(
        more(*top), without=more(*top_tied), figures={"largest weight of two equal ones": float(top_tied[0])}
    )


@statement(
    "S4.50",
    where="§1.2.3",
    says="The larger the dimension $d$ of keys and queries, the larger the dot products tend to be, and the gradient "
    "of softmax vanishes; therefore they are rescaled.",
    verdict=Verdict.CONDITION,
    correction=r"$\operatorname{Var}(q \cdot k) = k$ for independent entries of mean 0 and variance 1, and not, for "
    r"example, for vectors of length 1; what counts is the width $k$ of a head, not $d$. How much gradient is left "
    r"depends on the number of keys too: at $k = 64$ the median $\lVert J \rVert_F$ of unscaled rows is below that of "
    r"scaled ones for few keys (about 0.06 against 0.37 for 8 keys), and above it from about 50 keys on (0.25 against "
    r"0.10 for 256). At $k = 512$ it is still below with 128 keys (0.02 against 0.13).",
    compares=r"mean square of $q \cdot k$, and $k$ (or the median of $\lVert J \rVert_F$ said to be smaller, and the "
    "other one); without: the same for vectors of length 1",
    heavy=True,
)
def dot_products_of_wide_vectors(
    draw: Draw, k: Annotated[int, Between(2, 512)] = 64, n: Annotated[int, Between(64, 128)] = 128
) -> Finding:
    """q.k is normal of variance |q|^2 given q, so that E (q.k)^4 = 3 E |q|^4 = 3 (k^2 + 2 k), and the squares have the
    variance 2 k^2 + 6 k: 6 standard errors are allowed. The medians are compared on both sides of 50 keys.
    """
    samples = 2000
    q, key = draw.normal(samples, k), draw.normal(samples, k)
    products = (q * key).sum(-1)
    of_length_one = products / (q.norm(dim=-1) * key.norm(dim=-1))
    slack = 6 * math.sqrt((2 * k**2 + 6 * k) / samples)
    S = q[:200] @ key[:n].T
    unscaled, scaled = (jacobian_norm((scale * S).softmax(-1)) for scale in (1.0, k**-0.5))
    figures = {
        "median norm of the Jacobian, unscaled": float(unscaled.median()),
        "median norm of the Jacobian, scaled": float(scaled.median()),
        "share of unscaled rows with a norm below 0.01": float((unscaled < 0.01).double().mean()),
        "share of scaled rows with a norm below 0.01": float((scaled < 0.01).double().mean()),
    }
    medians = {keys: median_gradients(draw, keys) for keys in (FEW_KEYS, MANY_KEYS)}
    for keys, (bare, with_scale) in medians.items():
        figures |= {
            f"median at k = 64, {keys} keys, unscaled": bare,
            f"median at k = 64, {keys} keys, scaled": with_scale,
        }
    (few, few_scaled), (many, many_scaled), (wide, wide_scaled) = (
        *medians.values(),
        median_gradients(draw, MANY_KEYS, 512),
    )
    return Finding(
        both(
            same(products.square().mean(), k, slack=slack),
            less(together(few, many_scaled, wide), together(few_scaled, many, wide_scaled)),
        ),
        without=same(of_length_one.square().mean(), k, slack=slack),
        figures=figures,
    )


FEW_KEYS, MANY_KEYS = 24, 128


def median_gradients(draw: Draw, keys: int, k: int = 64) -> tuple[float, float]:
    """The median ||J||_F of rows of softmax over keys of width k, without a scale and with 1 / sqrt(k)."""
    S = draw.normal(16, 128, k) @ draw.normal(16, keys, k).mT
    bare, scaled = (float(jacobian_norm((scale * S).softmax(-1)).median()) for scale in (1.0, k**-0.5))
    return bare, scaled


def _by_autograd(z: Float[Tensor, " n"]) -> Float[Tensor, "n n"]:
    jacobian = torch.autograd.functional.jacobian(lambda x: x.softmax(-1), z)
    assert isinstance(jacobian, Tensor)
    return jacobian
