"""Attention as a graph: a boolean table A [i j], True where query i sees key j, and how far its edges carry.

Tables of several heads are united first, A.any(-3): one layer passes on what any of its heads sees. Position i also
keeps what it had, through the skip connection, unless `skip=False`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import or_
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.core.errors import UsageError


def edge_count(A: Bool[Tensor, "*a i j"]) -> Int[Tensor, "*a"]:
    """|E| = sum_ij A_ij: the inner products that attention has to take.

    Source: Conti 2024, figure 8 (S4.81).
    """
    return A.sum((-2, -1))


def reached(A: Bool[Tensor, "*a n n"], layers: int, *, skip: bool = True) -> Bool[Tensor, "*a n n"]:
    """A^L in boolean algebra: True where position i can depend on position j after L layers of this pattern.

    Source: Conti 2024, section 2.1.1 (S4.78, S4.85). About 2 log2 L products, by repeated squaring.
    """
    if layers < 0:
        raise UsageError(
            asked=f"what {layers} layers reach", expected="0 or more", got=str(layers), remedy="count layers"
        )
    power, result = _with_skip(A, skip), _alone(A)
    while layers:
        result = _then(result, power) if layers % 2 else result
        layers //= 2
        power = _then(power, power) if layers else power
    return result


def diameter(A: Bool[Tensor, "n n"]) -> int | None:
    """The smallest L after which every position can depend on every other; None if that never comes.

    Source: Conti 2024, section 2.1.1 (S4.78): one global token makes it at most 2.
    Squares A until all is reached or nothing new is, then halves its way back: about 2 log2 L products.
    """
    if A.shape[-1] == 1:
        return 0
    squares = [_with_skip(A, True)]
    while not squares[-1].all():
        squares.append(_then(squares[-1], squares[-1]))
        if torch.equal(squares[-1], squares[-2]):
            return None
    layers, table = 0, _alone(A)
    for exponent in reversed(range(len(squares) - 1)):
        further = _then(table, squares[exponent])
        if not further.all():
            layers, table = layers + 2**exponent, further
    return layers + 1


class ReceptiveField(NamedTuple):
    """How far a stack of windows looks.

    span    positions from the first to the last that the middle one can depend on, both included
    seen    how many of these it can depend on
    """

    span: int
    seen: int


def receptive_field(layers: int, window: int, dilations: Sequence[int] = (1,)) -> ReceptiveField:
    """span = 2 L w max(d) + 1; seen = the offsets that are sums of L terms m d, |m| <= w, d among the dilations.

    `window` counts steps to each side, and heads of every layer have all the `dilations`.
    Source: Conti 2024, section 2.1.1 (S4.83); with one dilation it sees 2 L w + 1, every d-th position.
    Holds when: the sequence ends on neither side before the span does.
    Departs: the document's w is the whole width, twice ours, and its L d w leaves out the token itself and the gaps.
    """
    steps = {side * step * dilation for dilation in dilations for step in range(window + 1) for side in (-1, 1)}
    furthest = max(steps)
    offsets = 1  # bit s: the offset s - l w max(d) is in reach after l layers; a layer moves all bits at once
    for _ in range(layers):
        offsets = reduce(or_, (offsets << furthest + step for step in steps))
    return ReceptiveField(2 * layers * furthest + 1, offsets.bit_count())


def layers_needed(n: int, window: int, dilation: int = 1) -> int | None:
    """The smallest L with L w d >= n - 1, so that the span of either end takes in the other; None if there is none.

    Source: Conti 2024, section 2.1.1 (S4.85); w counts steps to each side.
    Holds when: d = 1; a larger dilation alone reaches only every d-th position on the way (S4.83).
    """
    if n == 1:
        return 0
    return -(-(n - 1) // (window * dilation)) if window * dilation else None


def spectral_gap(A: Bool[Tensor, "*a n n"]) -> Float[Tensor, "*a"]:
    """1 - max(|l_2|, |l_n|), l being the eigenvalues of D^-1/2 B D^-1/2 with B = A or A^T and D its degrees.

    A random walk forgets its start by the factor 1 - gap in each step. The complete graph has (n - 2) / (n - 1), or 1
    when everyone also sees itself; a graph in pieces, or of two sides that only see each other, has 0.
    Source: Conti 2024, section 2.1.1 (S4.79).
    Holds when: random graphs resemble the complete one in this sense alone: with d neighbours each their gap nears
    1 - 2 sqrt(d - 1) / d, which no family of graphs of that degree exceeds. It says nothing of attention values.
    Departs: directions are dropped; a position without edges is a piece of its own. O(n^3), in float64.
    """
    B = A | A.mT
    alone = ~B.any(-1)
    B = (B | torch.diag_embed(alone)).double()
    inverse_root = B.sum(-1).rsqrt()
    spectrum = torch.linalg.eigvalsh(inverse_root.unsqueeze(-1) * B * inverse_root.unsqueeze(-2))
    others = spectrum[..., :-1].abs()
    gap = 1 - others.amax(-1) if others.shape[-1] else torch.ones_like(spectrum[..., 0])
    return gap.clamp(min=0.0)


def _alone(A: Tensor) -> Tensor:
    return torch.eye(A.shape[-1], dtype=torch.bool, device=A.device).expand(A.shape)


def _with_skip(A: Tensor, skip: bool) -> Tensor:
    return A | _alone(A) if skip else A


def _then(A: Tensor, B: Tensor) -> Tensor:
    """A B in boolean algebra. Products of floats are an order of magnitude faster than those of integers."""
    return A.float() @ B.float() > 0
