"""Which entries of one tensor depend on which entries of another, by products with the Jacobian between them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

SEED = 5
DIGIT_ROUNDING = 0.1
"""How far a computed digit may be from a whole number."""
ROUNDING_STEPS = 8
"""Rounding errors that the square of a digit may have, in units of the largest square."""


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

    With d a digit of the column number, and J the Jacobian, m_p = J (d^p) has m_0 = f, m_1 = f d and m_2 = f d^2 for an
    entry f x_c; the spread m_2 m_0 - m_1^2 of an entry that is made of columns with other digits is not zero. Numbers
    are split into digits so that they stay exact in half precision.
    """
    codes = _digit_codes(source)
    found = jvp(target, source, [code.expand(source.shape).contiguous() for code in codes])
    return None if found is None else _decoded([T.detach().double() for T in found], source)


def one_to_one_back(target: Tensor, source: Tensor) -> OneToOne | None:
    """The column of the target [*a c] that each entry of the source goes to; None if one goes to several."""
    found = [vjp(target, [source], code.expand(target.shape))[0] for code in _digit_codes(target)]
    moments = [T.detach().double() for T in found if T is not None]
    return _decoded(moments, target) if len(moments) == len(found) else None


def _base(T: Tensor) -> int:
    return 8 if T.dtype in (torch.float16, torch.bfloat16) else 64


def _digit_codes(columns: Float[Tensor, "*a c"]) -> list[Float[Tensor, " c"]]:
    """One, and then d and d^2 for each digit d of the column numbers."""
    numbers, base = torch.arange(columns.shape[-1], device=columns.device), _base(columns)
    codes = [torch.ones_like(numbers)]
    for power in range(_digits(columns)):
        digit = numbers // base**power % base
        codes += [digit, digit.square()]
    return [code.to(columns) for code in codes]


def _digits(columns: Float[Tensor, "*a c"]) -> int:
    count, base, digits = columns.shape[-1], _base(columns), 1
    while base**digits < count:
        digits += 1
    return digits


def _decoded(moments: Sequence[Float[Tensor, "..."]], columns: Tensor) -> OneToOne | None:
    factors, base = moments[0], _base(columns)
    if not bool((factors != 0).all()):
        return None
    allowed = ROUNDING_STEPS * torch.finfo(columns.dtype).eps * base**2
    numbers = torch.zeros_like(factors)
    for power in range(_digits(columns)):
        first, second = (moments[1 + 2 * power + place] / factors for place in range(2))
        digit = first.round()
        if bool(((first - digit).abs() > DIGIT_ROUNDING).any()) or bool(
            ((second - digit.square()).abs() > allowed).any()
        ):
            return None
        numbers += digit * base**power
    return OneToOne(numbers.long(), factors)
