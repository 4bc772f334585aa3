"""D14: numerical traps of attention, each shown, and our code free of it."""

from __future__ import annotations

from typing import Annotated

import torch
from torch import Tensor

from attnworks.attention.linear import Linear
from attnworks.attention.patterns import Window
from attnworks.attention.softmax import masked_softmax
from attnworks.exam.linalg.residual import composite, induced_inf, induced_one
from attnworks.models.layers import LayerNorm
from attnworks.reshape.growth.solvers import lowrank_fit
from attnworks.theory.cases import Draw
from attnworks.theory.contract import Between, Finding, Verdict, statement
from attnworks.theory.one_head import outputs
from attnworks.theory.sides import Number, same
from attnworks.theory.together import together

Width = Annotated[int, Between(2, 11)]
Trap = tuple[Number, Number]
"""What the plain formula gives, and ours."""


@statement(
    "D14",
    where="derived",
    says=(
        r"Six traps, and what is right: the gradient of a LayerNorm with $\sigma + \epsilon$ is NaN on a constant row "
        "(finite), a fully masked row of a softmax is NaN (zero), the denominators of linear attention with signed "
        r"features vanish (finite outputs), the inverse of $X^\top X$ does not exist for dependent columns (a fit by "
        r"singular values), $\lVert X \rVert_1 \lVert X \rVert_\infty$ without its root grows with the square of $X$ "
        r"(with it, with $\lvert X \rvert$), and a window of an even width $w$ has $w + 1$ keys (we count tokens to "
        "each side)."
    ),
    verdict=Verdict.HOLDS,
    compares="what formulas do, plain and ours (1: fails, 0: does not; growth of the norm; keys of a window), and "
    "what is said",
)
def traps(draw: Draw, n: Width = 5, d: Width = 3, factor: Annotated[int, Between(2, 7)] = 3) -> Finding:
    """Left: how many of the first four fail plainly and with our code, then growth of the norm and keys, both ways."""
    failing = (_norm_gradient(n), _masked_row(draw, n), _vanishing_sum(draw, d), _dependent_columns(draw, n, d))
    plain, ours = (torch.stack([torch.as_tensor(trap[side]).double() for trap in failing]) for side in (0, 1))
    grown, keys = _growth(draw.normal(n, d), factor), _window_keys(d)
    return Finding(
        same(
            together(plain, ours, *grown, *keys),
            together(torch.ones(4), torch.zeros(4), factor**2, factor, 2 * d + 1, 2 * d + 1),
        ),
        figures={"traps that plain formulas fall into": float(plain.sum()), "and ours": float(ours.sum())},
    )


def _bad(T: Tensor) -> Tensor:
    return ~T.isfinite().all()


def _norm_gradient(d: int) -> Trap:
    """Of a constant row, where sigma = 0 and its root has no derivative."""
    plain, ours = (torch.full((1, d), 2.0, dtype=torch.float64, requires_grad=True) for _ in range(2))
    centred = plain - plain.mean(-1, keepdim=True)
    (centred / (centred.square().mean(-1, keepdim=True).sqrt() + 1e-5)).sum().backward()
    LayerNorm(d, "documented").double()(ours).sum().backward()
    assert plain.grad is not None and ours.grad is not None
    return _bad(plain.grad), _bad(ours.grad)


def _masked_row(draw: Draw, n: int) -> Trap:
    S, allowed = draw.normal(2, n), torch.tensor([[True], [False]]).expand(2, n)
    plain, ours = S.masked_fill(~allowed, -torch.inf).softmax(-1), masked_softmax(S, allowed)
    return _bad(plain), (ours[1] != 0).any()


def _vanishing_sum(draw: Draw, d: int) -> Trap:
    """Features that are the inputs themselves, of a key and its opposite: the similarities sum to zero.

    Of whole numbers, so that they do so exactly, in whichever order a machine adds.
    """
    q, k, V = (3 * draw.normal(1, d)).round(), (3 * draw.normal(1, d)).round(), draw.normal(2, d)
    K = torch.cat([k, -k])
    f = q @ K.mT
    return _bad(f @ V / f.sum(-1, keepdim=True)), _bad(outputs(Linear(feature=lambda X: X), q, K, V))


def _dependent_columns(draw: Draw, n: int, d: int) -> Trap:
    """The fit of B = X Z X^T where X has every column twice; whether B is missed by more than rounding."""
    half = draw.normal(n, d)
    X = torch.cat([half, half], -1)
    B = X @ draw.normal(2 * d, 2 * d) @ X.mT
    inverse = torch.linalg.inv_ex(X.mT @ X).inverse
    fits = (inverse @ X.mT @ B @ X @ inverse, lowrank_fit(B, X, 2 * d).Z)
    plain, ours = (~((X @ Z @ X.mT - B).abs().max() < 1e-9 * B.abs().max()) for Z in fits)
    return plain, ours


def _growth(X: Tensor, factor: int) -> Trap:
    plain, ours = (norm(factor * X) / norm(X) for norm in (lambda X: induced_one(X) * induced_inf(X), composite))
    return plain, ours


def _window_keys(side: int) -> Trap:
    """Keys of |i - j| <= w / 2 for w = 2 side, and of our window."""
    places = torch.arange(-2 * side, 2 * side + 1)
    return (places.abs() <= side).sum(), Window(side).table(1, len(places))[0, 2 * side].sum()
