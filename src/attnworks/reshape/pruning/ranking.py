"""Rankings of heads, the least needed first."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.pruning.ablation import by_ablation
from attnworks.reshape.pruning.curvature import by_curvature
from attnworks.reshape.pruning.l0_gates import train_gates
from attnworks.reshape.pruning.order import Order, RankedText
from attnworks.reshape.pruning.ranked_text import in_small_batches
from attnworks.reshape.pruning.structural import MAX_DISTANCE, map_distances, role_gains
from attnworks.reshape.surgery import PruneUnit, layers_alike, layers_of
from attnworks.traces.edits import gate_gradients

Ranking = Callable[[ReshapeContext, Sequence[PruneUnit], int], Order]
"""(context, units, how many will be cut) -> all units, the least needed first, computed as far as they are read."""


def rank(context: ReshapeContext, units: Sequence[PruneUnit], cut: int, by: str) -> Order:
    """All units, the least needed first, by the ranking of this name."""
    return RANKINGS[by](context, units, cut) if units else Order([])


def by_gradient(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> Order:
    """By mean_s |dL_s / d gate| over sentences s, summed over the heads of a unit: a forward and a backward pass.

    Source: Michel et al. 2019, eq. 2; the measure `importance`.
    """
    del cut
    subject, text = context.subject, in_small_batches(context.calibration.text)
    found: dict[Slot, list[Float[Tensor, "b h"]]] = {}
    for number in range(len(text.batches)):
        context.tell("computing gradients", number, len(text.batches))
        batch, rows = text.batch(number)
        gradients = gate_gradients(subject, context.calibration.objective, batch.to(subject.device), rows)
        for slot, gradient in gradients.items():
            found.setdefault(slot, []).append(gradient.abs().double().cpu())
    sizes = {slot: torch.cat(parts) for slot, parts in found.items()}

    def by_size(some: slice) -> list[PruneUnit]:
        means = {slot: size[some].mean(0).tolist() for slot, size in sizes.items()}
        return _by_sum(
            units, {HeadId(slot, head): each for slot, mean in means.items() for head, each in enumerate(mean)}
        )

    sentences = sum(map(len, text.batches))
    return Order(by_size(slice(None)), by_size, RankedText(sentences, all_read=True))


def by_norm(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> Order:
    """By |W_O|, the Frobenius norm of the rows of the output projection that read the heads of a unit: a baseline.

    Holds when: heads are read by W_O as they are. Layers that mix or gate them before it are refused.
    """
    del cut
    layers, sizes = layers_of(context.model), dict[HeadId, float]()
    for slot in dict.fromkeys(slot for unit in units for slot, _ in unit):
        if (W_O := layers[slot].W_O()) is None:
            expected, got = "heads that the output projection reads as they are", f"other heads in {slot}"
            raise UsageError("ranking by norm", expected, got, "choose another ranking")
        for head, size in enumerate(W_O.detach().double().square().sum((1, 2)).tolist()):
            sizes[HeadId(slot, head)] = size / len(layers_alike(context.model)[slot])
    return Order(_by_sum(units, sizes))


def by_gates(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> Order:
    """By the log alpha of gates that were trained to stay open in as many units as are not cut: see `train_gates`."""
    return Order(_by_score(units, train_gates(context, units, cut).tolist()))


def by_redundancy(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> Order:
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
    return Order(order)


def by_role(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> Order:
    """Heads without a clear role go first, such as those that attend to the first token or to delimiters only.

    By `role_gains`, summed over the heads of a unit; ties in a random order, which depends on the seed.
    """
    return Order(_by_sum(list(random_order(context, units, cut)), role_gains(context)))


def random_order(context: ReshapeContext, units: Sequence[PruneUnit], cut: int) -> Order:
    """A random order, which depends on the seed: the baseline for all other rankings."""
    del cut
    return Order(units[number] for number in np.random.default_rng(context.seed).permutation(len(units)))


RANKINGS: Mapping[str, Ranking] = {
    "curvature": by_curvature,
    "ablation": by_ablation,
    "gradient": by_gradient,
    "gates": by_gates,
    "redundancy": by_redundancy,
    "role": by_role,
    "norm": by_norm,
    "random": random_order,
}


GREEDY = ("curvature", "ablation")
"""Rankings that choose unit after unit, given those that are gone, and take the longer the more are read."""


def _by_sum(units: Sequence[PruneUnit], scores: Mapping[HeadId, float]) -> list[PruneUnit]:
    return _by_score(units, [sum(scores[head] for head in unit) for unit in units])


def _by_score(units: Sequence[PruneUnit], scores: Sequence[float]) -> list[PruneUnit]:
    """The smallest score first, equals in their order."""
    return [units[number] for number in sorted(range(len(units)), key=lambda number: scores[number])]
