"""Attention as a graph, and how the cost of a mechanism grows with length and width.

A graph is a boolean table A [i j], True where query i sees key j. The tables of several heads are united, A.any(-3): a
layer passes on what any of its heads sees. With `skip`, position i also depends on itself.

Growth is measured on any registered mechanism: from its `cost` at several sizes, and from its weights P, which differ
from zero on the edges of its graph.
"""

from __future__ import annotations

import inspect
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import reduce
from itertools import count
from operator import or_
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnworks.attention import MECHANISMS, AttentionCost, Context, Geometry, Mask, Mechanism, MechanismSpec
from attnworks.attention.contract import option_names
from attnworks.core.checks import integer
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
    integer("layers", layers, 0)
    power, result = _with_skip(A, skip), _identity(A)
    while layers:
        result = _boolean_product(result, power) if layers % 2 else result
        layers //= 2
        power = _boolean_product(power, power) if layers else power
    return result


def graph_diameter(A: Bool[Tensor, "n n"]) -> int | None:
    """The smallest L after which every position can depend on every other; None if that never comes.

    Source: Conti 2024, section 2.1.1 (S4.78): one global token makes it at most 2.
    Squares A until all is reached or nothing new is, then halves its way back: about 2 log2 L products.
    """
    if A.shape[-1] == 1:
        return 0
    squares = [_with_skip(A, True)]
    while not squares[-1].all():
        squares.append(_boolean_product(squares[-1], squares[-1]))
        if torch.equal(squares[-1], squares[-2]):
            return None
    layers, table = 0, _identity(A)
    for exponent in reversed(range(len(squares) - 1)):
        further = _boolean_product(table, squares[exponent])
        if not further.all():
            layers, table = layers + 2**exponent, further
    return layers + 1


class _ReceptiveField(NamedTuple):
    """The positions that a stack of window layers takes in.

    span    positions from the first to the last that the middle one can depend on, both included
    seen    how many of these it can depend on
    """

    span: int
    seen: int


def receptive_field(layers: int, window: int, dilations: Sequence[int] = (1,)) -> _ReceptiveField:
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
    return _ReceptiveField(2 * layers * furthest + 1, offsets.bit_count())


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


def _identity(A: Tensor) -> Tensor:
    return torch.eye(A.shape[-1], dtype=torch.bool, device=A.device).expand(A.shape)


def _with_skip(A: Tensor, skip: bool) -> Tensor:
    return A | _identity(A) if skip else A


def _boolean_product(A: Tensor, B: Tensor) -> Tensor:
    """A B in boolean algebra. Products of floats are an order of magnitude faster than those of integers."""
    return A.float() @ B.float() > 0


LONG_LENGTH, WIDE_WIDTH = 2**17, 2**8
"""The sizes at which growth is measured: many more positions than width, and both well above usual options."""
MAX_COUNTED_LENGTH = 2**20
"""The largest length at which a mechanism is compared with dense attention."""
MIN_PATH_LENGTH, MAX_PATH_LENGTH = 16, 128
"""Paths are measured at 4 and 16 times the largest option that costs, clipped to these bounds."""


class CostGrowth(NamedTuple):
    """A cost grows as n^length d^width, n being positions and d the width of all heads.

    Holds when: options such as windows lie well below a thousand positions.
    Departs: exponents are rounded to halves, so that a logarithm counts for nothing; heads and options are constants.
    """

    length: float
    width: float

    def __str__(self) -> str:
        return f"O({' '.join(_power(*part) for part in zip('nd', self, strict=True) if part[1]) or '1'})"


class LongestPath(NamedTuple):
    """Layers until any position can depend on any other: how they grow, and how many; None if that never happens."""

    law: str
    layers: int | None


class Complexity(NamedTuple):
    """A row of the table of complexities per layer.

    time, memory    growth of FLOPs and of bytes
    steps           operations that must wait for each other, matrix products counting as one
    path            between the two positions that are furthest apart
    cost            at the given length
    options         those with which FLOPs grow

    Source: Xie 2021, table 1 (S0.26), of which only the caption is in the text; Conti 2024, section 2 (S4.70, S4.81,
    S4.82, S4.86, S4.99, S4.118).
    Departs: memory is what is held here; dense attention stores its weights, O(n²) a head, only with `weights=True`.
    """

    name: str
    time: CostGrowth
    memory: CostGrowth
    steps: str
    path: LongestPath
    cost: AttentionCost
    options: tuple[str, ...] = ()


def complexity(spec: MechanismSpec, n: int, geometry: Geometry) -> Complexity:
    """The row of one mechanism, as self-attention over n positions without a mask."""

    def cost(length: int, width: int) -> AttentionCost:
        return _cost(spec, length, Geometry(1, width, width))

    options = _costly_options(spec)
    path = longest_path(spec, n, geometry.heads, scale=max(options.values(), default=0))
    return Complexity(str(spec), *cost_growth(cost), "O(1)", path, _cost(spec, n, geometry), tuple(options))


def recurrent_complexity(n: int, geometry: Geometry) -> Complexity:
    """The row of an LSTM layer that is as wide as all heads: each state waits for the one before, and knows only it.

    2 (2d)(4d) FLOPs a position, for the four gates; its output, one cell and the gates of one position are held.
    """

    def cost(length: int, width: int) -> AttentionCost:
        return AttentionCost(edges=0, flops=16 * length * width**2, bytes=4 * width * (length + 5))

    d = geometry.heads * geometry.d_v
    return Complexity("recurrent (LSTM)", *cost_growth(cost), "O(n)", LongestPath("O(n)", n - 1), cost(n, d))


def cost_growth(cost: Callable[[int, int], AttentionCost]) -> tuple[CostGrowth, CostGrowth]:
    """The exponents of cost(n, d), for FLOPs and for bytes: how they grow with length and width."""
    once, longer, wider, both = (cost(times * LONG_LENGTH, by * WIDE_WIDTH) for by in (1, 2) for times in (1, 2))
    time, memory = (_exponents(*part) for part in list(zip(once, longer, wider, both, strict=True))[1:])
    return time, memory


def _costly_options(spec: MechanismSpec) -> dict[str, int]:
    """The whole-number options in the leading term of the FLOPs: what doubling them adds does not fade as n grows."""
    geometry = Geometry(1, WIDE_WIDTH, WIDE_WIDTH)
    parameters = inspect.signature(MECHANISMS[spec.name].__init__).parameters
    values = {name: parameters[name].default for name in option_names(MECHANISMS[spec.name])} | spec.options
    whole = {option: value for option, value in values.items() if type(value) is int}

    def added(option: str, length: int) -> float:
        doubled = MechanismSpec(spec.name, {**spec.options, option: 2 * whole[option] or 1})
        try:
            return _cost(doubled, length, geometry).flops / _cost(spec, length, geometry).flops - 1
        except UsageError:
            return 0.0

    return {
        option: value
        for option, value in whole.items()
        if added(option, 2 * LONG_LENGTH) > 0.7 * added(option, LONG_LENGTH) > 0
    }


def longest_path(spec: MechanismSpec, n: int, heads: int, *, scale: int) -> LongestPath:
    """The diameter of the graph of P: measured where n is small, extrapolated where n is large.

    `scale` is about how far one layer reaches: growth is read off the graphs of 4 and 16 times as many positions.
    Source: S4.78 (one global token: two layers), S4.85 (windows: layers in proportion to n).
    Holds when: no layer reaches several times `MAX_PATH_LENGTH` without reaching all, and growth continues as it began.
    """
    near, far = _two_graphs(spec, heads, max(MIN_PATH_LENGTH, scale), MAX_PATH_LENGTH)
    first, second = graph_diameter(near), graph_diameter(far)
    if first is None or second is None:
        return LongestPath("never", None)
    law = "O(1)" if first == second else "O(n)" if second >= 2 * first else "O(log n)"
    if n <= len(far):
        return LongestPath(law, graph_diameter(support(spec, n, heads)))
    if law == "O(n)":
        return LongestPath(law, math.ceil((n - 1) / _positions_per_layer(far, second)))
    return LongestPath(law, round(second + (second - first) * math.log(n / len(far), 4)))


def support(spec: MechanismSpec, n: int, heads: int) -> Bool[Tensor, "n n"]:
    """True where some head gives a key a weight other than zero: the graph of one layer of self-attention."""
    mechanism = spec.build(Geometry(heads, 2, 2))
    source = torch.Generator().manual_seed(0)
    Q, K, V = torch.rand(3, 1, heads, n, 2, generator=source).unbind()  # positive, so that no feature map gives zeros
    known = {"global_tokens": torch.arange(n).unsqueeze(0) == 0, "global_qkv": (Q, K, V)}
    context = Context(**{field: known[field] for field in mechanism.needs})  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        P = mechanism(Q, K, V, Mask(), context, weights=True).P
    assert P is not None
    return (P != 0).any(1).squeeze(0)


def pays_from(mechanism: Mechanism, geometry: Geometry, *, causal: bool = False) -> int | None:
    """The n from which on the mechanism takes fewer FLOPs than dense attention; None if above `MAX_COUNTED_LENGTH`.

    Holds when: it stays cheaper once it is, so that halving the lengths in question finds the first.
    """
    dense = MECHANISMS["dense"]()

    def cheaper(n: int) -> bool:
        costs = (kind.cost(n, n, geometry, causal=causal).flops for kind in (mechanism, dense))
        return next(costs) < next(costs)

    if not cheaper(MAX_COUNTED_LENGTH):
        return None
    known = next(n for n in (2**power for power in count()) if cheaper(n))
    return bisect_left(range(known), True, lo=known // 2 + 1, key=cheaper)


def _cost(spec: MechanismSpec, n: int, geometry: Geometry) -> AttentionCost:
    return spec.build(geometry).cost(n, n, geometry)


def _exponents(once: int, longer: int, wider: int, both: int) -> CostGrowth:
    """The width counts in the term that leads in n: f(2n) - 2^(p-1) f(n) has lost its n^(p-1)."""
    length = _slope(once, longer)
    lost = 2 ** (length - 1)
    return CostGrowth(length, _slope(longer - lost * once, both - lost * wider))


def _slope(once: float, twice: float) -> float:
    return round(2 * math.log2(twice / once)) / 2


def _two_graphs(spec: MechanismSpec, heads: int, scale: int, most: int) -> tuple[Tensor, Tensor]:
    """Of 4 and 16 times `scale` positions: of fewer if they are refused, of more if the smaller graph is complete."""
    scale = min(scale, most)
    try:
        near, far = (support(spec, times * scale + 1, heads) for times in (4, 16))
    except UsageError:
        if scale == 1:
            raise
        return _two_graphs(spec, heads, scale // 2, scale // 2)
    if near.all() and not far.all() and scale < most:
        return _two_graphs(spec, heads, 2 * scale, most)
    return near, far


def _positions_per_layer(A: Tensor, layers: int) -> float:
    """Positions that one layer bridges: the longest edge if it explains the diameter, as in a window."""
    queries, keys = A.nonzero(as_tuple=True)
    edge, far = int((queries - keys).abs().max()), len(A) - 1
    return edge if math.ceil(far / edge) == layers else far / layers


def _power(letter: str, exponent: float) -> str:
    """n, √n, n√n, n²."""
    whole, half = int(exponent), exponent % 1
    raised = letter + {1: "", 2: "²", 3: "³"}.get(whole, f"^{whole}") if whole else ""
    return raised + (f"√{letter}" if half else "")
