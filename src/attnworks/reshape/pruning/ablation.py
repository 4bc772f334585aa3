"""Rank heads by the loss that is measured without them, one after the other."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

from jaxtyping import Float
from torch import Tensor

from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.pruning.order import Order, RankedText
from attnworks.reshape.surgery import PruneUnit, heads_off

ABLATION_SENTENCES = 64
"""About this many sentences are used to measure the loss without a head."""

LossRise = tuple[float, int, int]
"""By how much the loss rises, the number of the unit, and how many units were gone when it was measured."""


def by_ablation(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> Order:
    """Greedy: the next to go is argmin_u of L(gone + u) - L(gone), measured on some sentences of all lengths.

    Harms that were measured when fewer units were gone wait in a heap; only the smallest is measured again, until it
    stays the smallest. That gives the same as measuring all of them again, if harms only grow as units go.
    Source: Michel et al. 2019, section 3.2, for the harm of one head; the heap is that of Minoux 1978.
    """
    whole, harms = _losses(context, []), list[Float[Tensor, " s"]]()
    for number, unit in enumerate(units):
        context.tell("leaving out each head", number, len(units))
        harms.append(_losses(context, [unit]) - whole)

    def order(some: slice) -> list[PruneUnit]:
        return [
            units[number] for number in sorted(range(len(units)), key=lambda number: float(harms[number][some].mean()))
        ]

    waiting = [(float(harm.mean()), number, 0) for number, harm in enumerate(harms)]
    text = RankedText(len(whole), len(whole) == sum(map(len, context.calibration.text.batches)))
    return Order(_greedy(context, units, cut, waiting, float(whole.mean())), order, text)


def _greedy(
    context: ReshapeContext, units: Sequence[PruneUnit], cut: int, waiting: list[LossRise], now: float
) -> Iterator[PruneUnit]:
    gone: list[PruneUnit] = []
    heapq.heapify(waiting)
    while waiting:
        if len(gone) < cut:
            context.tell("leaving out one head after the other", len(gone), cut)
        harm, number, measured = waiting[0]
        if measured < len(gone):
            found = float(_losses(context, [*gone, units[number]]).mean())
            heapq.heapreplace(waiting, (found - now, number, len(gone)))
        else:
            heapq.heappop(waiting)
            gone.append(units[number])
            now += harm
            yield units[number]


def _losses(context: ReshapeContext, off: Sequence[PruneUnit]) -> Float[Tensor, " s"]:
    """The loss of each of some sentences without these units."""
    text_loss = context.calibration
    step = max(1, sum(map(len, text_loss.text.batches)) // ABLATION_SENTENCES)
    return text_loss.each(context.subject, heads_off(off), some=slice(None, None, step))
