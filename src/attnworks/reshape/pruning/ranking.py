"""Rankings of heads, the least needed first."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from attnworks.core.places import HeadId, Slot
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.pruning.l0_gates import train_gates
from attnworks.reshape.pruning.structural import MAX_DISTANCE, map_distances, role_gains
from attnworks.reshape.surgery import PruneUnit, heads_off
from attnworks.traces.edits import gate_gradients

ABLATION_SENTENCES = 64
"""About this many sentences are used to measure the loss without a head."""

Ranking = Callable[[ReshapeContext, Sequence[PruneUnit], int], list[PruneUnit]]
"""(context, units, how many will be cut) -> all units, the least needed first."""


def rank(context: ReshapeContext, units: Sequence[PruneUnit], cut: int, by: str) -> list[PruneUnit]:
    """All units, the least needed first, by the ranking of this name."""
    return RANKINGS[by](context, units, cut) if units else []


def by_ablation(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> list[PruneUnit]:
    """Greedy: the next to go is argmin_u of L(gone + u) - L(gone), measured on some sentences of all lengths.

    Harms that were measured when fewer units were gone wait in a heap; only the smallest is measured again, until it
    stays the smallest. That gives the same as measuring all of them again, if harms only grow as units go. After `cut`
    units the others follow by the harm that was measured last.
    Source: Michel et al. 2019, section 3.2, for the harm of one head; the heap is that of Minoux 1978.
    """
    text_loss, subject = context.calibration, context.subject
    some = slice(None, None, max(1, sum(map(len, text_loss.text.batches)) // ABLATION_SENTENCES))

    def loss(off: Sequence[PruneUnit]) -> float:
        return text_loss.mean(subject, heads_off(off), some=some)

    gone: list[PruneUnit] = []
    now = whole = loss(gone)
    waiting: list[tuple[float, int, int]] = []  # harm, number of the unit, how many were gone when it was measured
    for number, unit in enumerate(units):
        context.tell("leaving out each head", number, len(units))
        waiting.append((loss([unit]) - whole, number, 0))
    heapq.heapify(waiting)
    while waiting and len(gone) < cut:
        context.tell("leaving out one head after the other", len(gone), cut)
        harm, number, measured = waiting[0]
        if measured < len(gone):
            heapq.heapreplace(waiting, (loss([*gone, units[number]]) - now, number, len(gone)))
        else:
            heapq.heappop(waiting)
            gone.append(units[number])
            now += harm
    return gone + [units[number] for _, number, _ in sorted(waiting)]


def by_gradient(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> list[PruneUnit]:
    """By mean_s |dL_s / d gate| over sentences s, summed over the heads of a unit: a forward and a backward pass.

    Source: Michel et al. 2019, eq. 2; the measure `importance`.
    """
    del cut
    text_loss, subject, batches = context.calibration, context.subject, len(context.calibration.text.batches)
    totals: dict[Slot, torch.Tensor] = {}
    for number in range(batches):
        context.tell("computing gradients", number, batches)
        batch, rows = text_loss.text.batch(number)
        for slot, found in gate_gradients(subject, text_loss.objective, batch.to(subject.device), rows).items():
            totals[slot] = totals.get(slot, 0.0) + found.abs().double().sum(0).cpu()
    means = {slot: total / sum(map(len, text_loss.text.batches)) for slot, total in totals.items()}
    scores = {HeadId(slot, head): score for slot, mean in means.items() for head, score in enumerate(mean.tolist())}
    return _by_sum(units, scores)


def by_gates(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> list[PruneUnit]:
    """By the log alpha of gates that were trained to stay open in as many units as are not cut: see `train_gates`."""
    return _by_score(units, train_gates(context, units, cut).tolist())


def by_redundancy(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> list[PruneUnit]:
    """The next unit to go is the one with the smallest distance to another head that is left in its layer.

    Distances are Jensen-Shannon distances between attention maps, averaged over the text and over the heads of a unit.
    Of a pair, the head nearer to a third head goes. The distance of a head that is alone in its layer is 1.
    Source: the measure `redundancy`.
    """
    del cut
    distances = {slot: table.tolist() for slot, table in map_distances(context).items()}
    left: dict[Slot, set[int]] = {}
    for slot, head in (head for unit in units for head in unit):
        left.setdefault(slot, set()).add(head)

    def nearest_two(unit: PruneUnit) -> tuple[float, ...]:
        found = []
        for slot, head in unit:
            others = left[slot] - {other for at, other in unit if at == slot}
            found.append(sorted([*(distances[slot][head][other] for other in others), MAX_DISTANCE, MAX_DISTANCE])[:2])
        return tuple(sum(column) / len(unit) for column in zip(*found, strict=True))

    waiting = {number: nearest_two(unit) for number, unit in enumerate(units)}
    order: list[PruneUnit] = []
    while waiting:
        number = min(waiting, key=lambda number: (waiting[number], number))
        del waiting[number]
        order.append(units[number])
        for slot, head in units[number]:
            left[slot].remove(head)
        slots = {slot for slot, _ in units[number]}
        waiting |= {other: nearest_two(units[other]) for other in waiting if slots & {slot for slot, _ in units[other]}}
    return order


def by_role(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> list[PruneUnit]:
    """Heads without a clear role go first, such as those that attend to the first token or to delimiters only.

    By `role_gains`, summed over the heads of a unit; ties in a random order, which depends on the seed.
    """
    return _by_sum(random_order(context, units, cut), role_gains(context))


def random_order(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> list[PruneUnit]:
    """A random order, which depends on the seed: the baseline for all other rankings."""
    del cut
    return [units[number] for number in np.random.default_rng(context.seed).permutation(len(units))]


RANKINGS: Mapping[str, Ranking] = {
    "ablation": by_ablation,
    "gradient": by_gradient,
    "gates": by_gates,
    "redundancy": by_redundancy,
    "role": by_role,
    "random": random_order,
}


def _by_sum(units: Sequence[PruneUnit], scores: Mapping[HeadId, float]) -> list[PruneUnit]:
    return _by_score(units, [sum(scores[head] for head in unit) for unit in units])


def _by_score(units: Sequence[PruneUnit], scores: Sequence[float]) -> list[PruneUnit]:
    """The smallest score first, equals in their order."""
    return [units[number] for number in sorted(range(len(units)), key=lambda number: scores[number])]
