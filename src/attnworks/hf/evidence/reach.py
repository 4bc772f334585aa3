"""Which entries of one tensor depend on which entries of another, by products with the Jacobian between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SEED = 5
COLUMN_ROUNDING = 0.05
"""How far a computed column may be from a whole number."""
SPREAD_ROUNDING = 3e-6
"""Relative rounding error of the spread of column numbers, in single precision."""


def vjp(target: Tensor, sources: Sequence[Tensor], cotangent: Tensor) -> list[Tensor | None]:
    """cotangent^T (d target / d source) for each source; None where there is no way from it to the target."""
    if not target.requires_grad or not sources:
        return [None] * len(sources)
    return list(torch.autograd.grad(target, sources, cotangent, retain_graph=True, allow_unused=True))


def jvp(target: Tensor, source: Tensor, tangents: Sequence[Tensor]) -> list[Tensor] | None:
    """(d target / d source) tangent for each tangent, by differentiating the vjp; None if there is no way."""
    if not target.requires_grad:
        return None
    dual = torch.zeros_like(target, requires_grad=True)
    (back,) = torch.autograd.grad(target, source, dual, create_graph=True, allow_unused=True)
    if back is None or not back.requires_grad:
        return None
    found = [torch.autograd.grad(back, dual, T, retain_graph=True, allow_unused=True)[0] for T in tangents]
    return [torch.zeros_like(target) if T is None else T for T in found]


def live(target: Tensor, sources: Sequence[Tensor]) -> list[int]:
    """The sources that the target depends on."""
    found = vjp(target, sources, noise_like(target))
    return [number for number, T in enumerate(found) if T is not None and bool(T.any())]


def noise_like(T: Tensor) -> Tensor:
    return torch.randn(T.shape, generator=torch.Generator().manual_seed(SEED)).to(T)


def head_reach(target: Tensor, sources: Sequence[Tensor]) -> list[Bool[Tensor, "h ..."] | None]:
    """For a target [b h i k] the entries of each source that reach each head; None for a source that reaches none.

    Entries are the columns of an activation [*a c] -> [h c].
    """
    noise = noise_like(target)
    rows: list[list[Tensor | None]] = []
    for head in range(target.shape[1]):
        cotangent = torch.zeros_like(target)
        cotangent[:, head] = noise[:, head]
        rows.append(vjp(target, sources, cotangent))
    return [
        None
        if all(row[number] is None for row in rows)
        else torch.stack(
            [torch.zeros_like(source, dtype=torch.bool) if (T := row[number]) is None else T != 0 for row in rows]
        )
        for number, source in enumerate(sources)
    ]


def columns_of(reach: Bool[Tensor, "h *a c"]) -> Bool[Tensor, "h c"]:
    """Reach of the columns of an activation: whether any row of a column reaches the head."""
    return reach.flatten(1, -2).any(1) if reach.dim() > 2 else reach


class OneToOne(NamedTuple):
    """Every entry of a target is a factor times one column of a source.

    columns    of the source, for each entry of the target
    factors    for each entry of the target
    """

    columns: Int[Tensor, "..."]
    factors: Float[Tensor, "..."]


def one_to_one(target: Tensor, source: Tensor) -> OneToOne | None:
    """The column of the source [*a c] that each entry of the target is made of; None if one is made of several.

    With the moments m_p = J (c^p) of the column numbers c, an entry f x_c has m_0 = f, m_1 = f c and m_2 = f c^2; the
    spread m_2 m_0 - m_1^2 of an entry that is made of several columns is not zero.
    """
    count = source.shape[-1]
    number = torch.arange(1, count + 1, device=source.device).to(source) / count
    tangents = [number.pow(power).expand(source.shape).contiguous() for power in range(3)]
    if (found := jvp(target, source, tangents)) is None:
        return None
    return _from_moments([T.detach().double() for T in found], count)


def one_to_one_back(target: Tensor, source: Tensor) -> OneToOne | None:
    """The column of the target [*a c] that each entry of the source goes to; None if one goes to several."""
    count = target.shape[-1]
    number = torch.arange(1, count + 1, device=target.device).to(target) / count
    found = [vjp(target, [source], number.pow(power).expand(target.shape))[0] for power in range(3)]
    if any(T is None for T in found):
        return None
    return _from_moments([T.detach().double() for T in found if T is not None], count)


def _from_moments(moments: Sequence[Float[Tensor, "..."]], count: int) -> OneToOne | None:
    zeroth, first, second = moments
    size = zeroth.abs()
    if not bool((size > 0).all()):
        return None
    spread = (second * zeroth - first.square()).abs()
    if not bool((spread <= SPREAD_ROUNDING * zeroth.square()).all()):
        return None
    places = first / zeroth * count - 1
    columns = places.round()
    if not bool(((places - columns).abs() < COLUMN_ROUNDING).all()):
        return None
    return OneToOne(columns.long(), zeroth)
