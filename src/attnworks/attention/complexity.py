"""How the cost of a mechanism grows and how far one layer of it carries, read off the mechanism itself.

Nothing here knows a name: what is registered is asked for its `cost` at several sizes and for its weights P, whose
support is the graph along which positions depend on each other.
"""

from __future__ import annotations

import inspect
import math
from bisect import bisect_left
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from attnworks.attention.connectivity import diameter
from attnworks.attention.contract import MECHANISMS, Context, Cost, Geometry, Mechanism
from attnworks.attention.mask import Mask
from attnworks.attention.spec import MechanismSpec, option_names
from attnworks.core.errors import UsageError

LONG, WIDE = 2**17, 2**8
"""Where growth is read: many more positions than width, and enough of both for options not to matter."""
LONGEST = 2**20
"""As far as we look for the length from which a mechanism is cheaper than dense attention."""
LEAST, MOST = 16, 128
"""Paths are measured at 4 and 16 times the largest option that costs, which is taken to lie between these."""


class Growth(NamedTuple):
    """A cost grows as n^length d^width, n being positions and d the width of all heads.

    Holds when: options such as windows lie well below a thousand positions.
    Departs: exponents are rounded to halves, so that a logarithm counts for nothing; heads and options are constants.
    """

    length: float
    width: float

    def __str__(self) -> str:
        return f"O({' '.join(_power(*part) for part in zip('nd', self, strict=True) if part[1]) or '1'})"


class Path(NamedTuple):
    """How many layers lie between the two positions that are furthest apart; None if one never learns of the other."""

    law: str
    layers: int | None


class Complexity(NamedTuple):
    """A row of the table of complexities per layer.

    time, memory    growth of FLOPs and of bytes
    steps           operations that must wait for each other, matrix products counting as one
    path            between the two positions that are furthest apart
    cost            at the length that was asked for
    options         those with which FLOPs grow

    Source: Xie 2021, table 1 (S0.26), of which only the caption is in the text; Conti 2024, section 2 (S4.70, S4.81,
    S4.82, S4.86, S4.99, S4.118).
    Departs: memory is what is held here; dense attention stores its weights, O(n²) a head, only if they are asked for.
    """

    name: str
    time: Growth
    memory: Growth
    steps: str
    path: Path
    cost: Cost
    options: tuple[str, ...] = ()


def complexity(spec: MechanismSpec, n: int, geometry: Geometry) -> Complexity:
    """The row of one mechanism, as self-attention over n positions without a mask."""

    def cost(length: int, width: int) -> Cost:
        return _cost(spec, length, Geometry(1, width, width))

    options = costly_options(spec)
    path = longest_path(spec, n, geometry.heads, scale=max(options.values(), default=0))
    return Complexity(str(spec), *growth(cost), "O(1)", path, _cost(spec, n, geometry), tuple(options))


def recurrent_complexity(n: int, geometry: Geometry) -> Complexity:
    """The row of an LSTM layer that is as wide as all heads: each state waits for the one before, and knows only it.

    2 (2d)(4d) FLOPs a position, for the four gates; its output, one cell and the gates of one position are held.
    """

    def cost(length: int, width: int) -> Cost:
        return Cost(edges=0, flops=16 * length * width**2, bytes=4 * width * (length + 5))

    d = geometry.heads * geometry.d_v
    return Complexity("recurrent (LSTM)", *growth(cost), "O(n)", Path("O(n)", n - 1), cost(n, d))


def growth(cost: Callable[[int, int], Cost]) -> tuple[Growth, Growth]:
    """The exponents of cost(n, d), for FLOPs and for bytes: how they answer to twice the length and twice the width."""
    once, longer, wider, both = (cost(times * LONG, by * WIDE) for by in (1, 2) for times in (1, 2))
    time, memory = (_exponents(*part) for part in list(zip(once, longer, wider, both, strict=True))[1:])
    return time, memory


def costly_options(spec: MechanismSpec) -> dict[str, int]:
    """The whole-number options in the leading term of the FLOPs: what doubling them adds does not fade as n grows."""
    geometry = Geometry(1, WIDE, WIDE)
    parameters = inspect.signature(MECHANISMS[spec.name].__init__).parameters
    values = {name: parameters[name].default for name in option_names(MECHANISMS[spec.name])} | spec.options
    whole = {option: value for option, value in values.items() if type(value) is int}

    def added(option: str, length: int) -> float:
        doubled = MechanismSpec(spec.name, {**spec.options, option: 2 * whole[option] or 1})
        try:
            return _cost(doubled, length, geometry).flops / _cost(spec, length, geometry).flops - 1
        except UsageError:
            return 0.0

    return {option: value for option, value in whole.items() if added(option, 2 * LONG) > 0.7 * added(option, LONG) > 0}


def longest_path(spec: MechanismSpec, n: int, heads: int, *, scale: int) -> Path:
    """The diameter of the graph of P: measured where n is small, and continued as it grew up to there where n is large.

    `scale` is about how far one layer reaches: growth is read off the graphs of 4 and 16 times as many positions.
    Source: S4.78 (one global token: two layers), S4.85 (windows: layers in proportion to n).
    Holds when: no layer reaches several times `MOST` positions without reaching all, and growth continues as it began.
    """
    near, far = _two_graphs(spec, heads, max(LEAST, scale), MOST)
    first, second = diameter(near), diameter(far)
    if first is None or second is None:
        return Path("never", None)
    law = "O(1)" if first == second else "O(n)" if second >= 2 * first else "O(log n)"
    if n <= len(far):
        return Path(law, diameter(support(spec, n, heads)))
    if law == "O(n)":
        return Path(law, math.ceil((n - 1) / _carried(far, second)))
    return Path(law, round(second + (second - first) * math.log(n / len(far), 4)))


def support(spec: MechanismSpec, n: int, heads: int) -> Bool[Tensor, "n n"]:
    """True where some head gives a key a weight other than zero: the graph of one layer of self-attention."""
    mechanism = spec.build(Geometry(heads, 2, 2))
    source = torch.Generator().manual_seed(0)
    Q, K, V = torch.rand(3, 1, heads, n, 2, generator=source).unbind()  # positive, so that no feature map gives zeros
    known = {"global_tokens": torch.arange(n).unsqueeze(0) == 0, "second": (Q, K, V)}
    context = Context(**{field: known[field] for field in mechanism.needs})  # pyright: ignore[reportArgumentType]
    with torch.no_grad():
        P = mechanism(Q, K, V, Mask(), context, weights=True).P
    assert P is not None
    return (P != 0).any(1).squeeze(0)


def pays_from(mechanism: Mechanism, geometry: Geometry, *, causal: bool = False) -> int | None:
    """The n from which on the mechanism takes fewer FLOPs than dense attention; None if not even at `LONGEST`.

    Holds when: it stays cheaper once it is, so that halving the lengths in question finds the first.
    """
    dense = MECHANISMS["dense"]()

    def cheaper(n: int) -> bool:
        costs = (kind.cost(n, n, geometry, causal=causal).flops for kind in (mechanism, dense))
        return next(costs) < next(costs)

    if not cheaper(LONGEST):
        return None
    known = next(n for n in (2**power for power in count()) if cheaper(n))
    return bisect_left(range(known), True, lo=known // 2 + 1, key=cheaper)


def _cost(spec: MechanismSpec, n: int, geometry: Geometry) -> Cost:
    return spec.build(geometry).cost(n, n, geometry)


def _exponents(once: int, longer: int, wider: int, both: int) -> Growth:
    """The width counts in the term that leads in n: f(2n) - 2^(p-1) f(n) has lost its n^(p-1)."""
    length = _slope(once, longer)
    lost = 2 ** (length - 1)
    return Growth(length, _slope(longer - lost * once, both - lost * wider))


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


def _carried(A: Tensor, layers: int) -> float:
    """Positions that a layer carries over, given the diameter: the longest edge if that explains it, as in a window."""
    queries, keys = A.nonzero(as_tuple=True)
    edge, far = int((queries - keys).abs().max()), len(A) - 1
    return edge if math.ceil(far / edge) == layers else far / layers


def _power(letter: str, exponent: float) -> str:
    """n, √n, n√n, n²."""
    whole, half = int(exponent), exponent % 1
    raised = letter + {1: "", 2: "²", 3: "³"}.get(whole, f"^{whole}") if whole else ""
    return raised + (f"√{letter}" if half else "")
