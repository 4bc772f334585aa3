"""One option for each layer: the mixes that no other mix beats in both cost and error (the Pareto front)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

MAX_FRONT = 20_000
"""The largest number of mixes for which the search is exact."""
FRONT_TOLERANCE = 1e-3
"""With more mixes, squared errors that differ by less than this share may count as equal."""


class Option(NamedTuple):
    """What one layer may have: a name, what it costs, and its squared error."""

    name: str
    cost: float
    error: float


class Mix(NamedTuple):
    """One option for every layer, by name; costs and squared errors are sums."""

    cost: float
    error: float
    chosen: dict[str, str]


class _Front(NamedTuple):
    """Mixes of the first layers, in the order of rising cost and so of falling error."""

    cost: np.ndarray
    error: np.ndarray
    before: np.ndarray
    """Which mix of the layers before each one extends."""
    option: np.ndarray


def best_mixes(
    options: Mapping[str, Sequence[Option]], *, most: int = MAX_FRONT, tolerance: float = FRONT_TOLERANCE
) -> list[Mix]:
    """The Pareto front: all mixes for which no other is better in cost or error and at least as good in the other.

    Mixes are in the order of rising cost. Layer by layer, every mix so far is combined with every option, and dominated
    ones are dropped: all their extensions are dominated too. Of mixes with the same cost and error the first is kept.
    Costs and errors must not be negative.
    Holds when: at most `most` mixes are left after any layer. Of more, only the cheapest is kept in every range of
    errors of a factor (1 + tolerance)^(1/layers). Then every mix has one in the result that costs no more, with an
    error at most 1 + tolerance times as large.
    """
    fronts = [_Front(np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64))]
    for of_layer in options.values():
        front = _joined(fronts[-1], of_layer)
        if len(front.cost) > most:
            front = _thinned(front, np.log1p(tolerance) / len(options))
        fronts.append(front)
    return _read_off(fronts, options)


def _joined(front: _Front, options: Sequence[Option]) -> _Front:
    costs, errors = (np.array([getattr(option, name) for option in options]) for name in ("cost", "error"))
    cost, error = (front.cost[:, None] + costs).ravel(), (front.error[:, None] + errors).ravel()
    order = np.lexsort((error, cost))
    smallest = np.minimum.accumulate(error[order])
    kept = order[np.concatenate([[True], error[order][1:] < smallest[:-1]])]
    return _Front(cost[kept], error[kept], *np.divmod(kept, len(options)))


def _thinned(front: _Front, width: float) -> _Front:
    """The cheapest mix of every interval of errors of this width on a logarithmic scale; an error of zero stays."""
    with np.errstate(divide="ignore"):
        interval = np.floor(np.log(front.error) / width)
    kept = np.concatenate([[True], interval[1:] != interval[:-1]])
    return _Front(*(values[kept] for values in front))


def _read_off(fronts: Sequence[_Front], options: Mapping[str, Sequence[Option]]) -> list[Mix]:
    last = fronts[-1]
    place, chosen = np.arange(len(last.cost)), list[list[str]]()
    for front, of_layer in zip(fronts[:0:-1], list(options.values())[::-1], strict=True):
        chosen.append([of_layer[option].name for option in front.option[place]])
        place = front.before[place]
    mixes = zip(*reversed(chosen), strict=True) if options else [()]
    costs, errors = last.cost.tolist(), last.error.tolist()
    return [
        Mix(cost, error, dict(zip(options, names, strict=True)))
        for cost, error, names in zip(costs, errors, mixes, strict=True)
    ]
