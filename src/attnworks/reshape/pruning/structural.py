"""How much heads are needed, judged by their attention: similar heads, and roles of heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.attention import MECHANISMS
from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.exam.measure import MeasureContext, Samples
from attnworks.exam.measures.labels import MIN_LABEL_SENTENCES
from attnworks.exam.measures.redundancy import Redundancy
from attnworks.exam.measures.roles import Roles
from attnworks.exam.statistics import Moments
from attnworks.models.anatomy import every_layer
from attnworks.reshape.contract import ReshapeContext, run_over_text
from attnworks.reshape.surgery import anatomy_of, groups_in
from attnworks.traces.layer import LayerTrace
from attnworks.traces.rows import rows_of
from attnworks.traces.subject import LayerHook

MAX_DISTANCE = 1.0
"""The largest Jensen-Shannon distance: that of heads without a key in common."""
ROLE_READINGS = ("roles.offset", "roles.rare", "roles.duplicate", "roles.induction")
"""Readings that are compared with uniform attention; syntax is compared with the best fixed offset."""

Means = dict[Slot, dict[str, Moments]]
"""Layer -> reading -> its mean over sentences."""


def map_distances(context: ReshapeContext) -> dict[Slot, Float[Tensor, "h h"]]:
    """The mean Jensen-Shannon distance between all heads of each layer; 1 where there are no maps to compare."""
    measure = Redundancy(MeasureContext(context.calibration.text.longest))
    distances = {slot: said["redundancy.distance"].value for slot, said in _means(context, measure.layer).items()}
    for slot, head in _without_maps(context):
        distances[slot][head], distances[slot][:, head] = torch.nan, torch.nan
    return {slot: distance.nan_to_num(MAX_DISTANCE) for slot, distance in distances.items()}


def role_gains(context: ReshapeContext) -> dict[HeadId, float]:
    """max over roles of (s - c) / (1 - c): 0 is chance, or less, and 1 is all attention.

    s is the lower end of the 95 % interval of a head's mean attention, outside the sinks, to an offset, the rarest
    token, other occurrences of the same token or the tokens after them, and c the same for even attention; for syntax,
    s is the share of largest weights on the governor and c that of the best fixed offset. Attention to the first token
    and to delimiters is no role, and a head that leaves nothing else has none. The gain is infinite if fewer than three
    sentences have such tokens.
    Source: the roles of Voita et al. 2019, with the gain of `exam.measures.labels`.
    """
    roles = Roles(MeasureContext(context.calibration.text.longest))

    def measure(trace: LayerTrace) -> Samples:
        pointers = roles.pointers(trace.slot, trace.queries, trace.keys)
        return roles.rows(rows_of(trace, roles.context.span, pointers))

    if (sentences := len(context.calibration.text.kept)) < MIN_LABEL_SENTENCES:
        raise UsageError("ranking by role", f"{MIN_LABEL_SENTENCES} sentences", str(sentences), "give more text")
    gains = {slot: _clearest(readings).tolist() for slot, readings in _means(context, measure).items()}
    by_head = {HeadId(slot, head): gain for slot, row in gains.items() for head, gain in enumerate(row)}
    return by_head | dict.fromkeys(_without_maps(context), torch.inf)


class _Averages(LayerHook):
    """Averages the readings of every layer over sentences."""

    def __init__(self, measure: Callable[[LayerTrace], Samples]) -> None:
        self.measure = measure
        self.means: Means = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        of_layer = self.means.setdefault(trace.slot, {})
        for name, (values, valid) in self.measure(trace).items():
            of_layer.setdefault(name, Moments(tuple(values.shape[1:]))).add(values, valid)
        return None


def _means(context: ReshapeContext, measure: Callable[[LayerTrace], Samples]) -> Means:
    averages = _Averages(measure)
    run_over_text(context.calibration, averages, "measuring heads", context.tell)
    return averages.means


def _clearest(said: dict[str, Moments]) -> Float[Tensor, " h"]:
    """The largest gain of every head of a layer."""
    gains = [_gains(said[role], said[f"{role}_chance"].value) for role in ROLE_READINGS if role in said]
    if "roles.syntactic" in said:
        baseline = said["roles.syntactic_offset"].value.amax(-1)
        gains.append(_gains(said["roles.syntactic"], baseline.expand(said["roles.syntactic"].value.shape)))
    every = torch.cat(gains, -1)
    best = every.nan_to_num(0.0).clamp_min(0.0).amax(-1)
    few = said["roles.copy"].count < MIN_LABEL_SENTENCES
    return torch.where(few & every.isnan().all(-1), torch.inf, best)


def _gains(found: Moments, chance: Float[Tensor, "h ..."]) -> Float[Tensor, "h c"]:
    """The gain of every head in each case of a role; NaN if too few sentences have such tokens."""
    heads = len(found.value)
    low, chance, counted = (values.reshape(heads, -1) for values in (found.interval[0], chance, found.count))
    return torch.where(counted >= MIN_LABEL_SENTENCES, (low - chance) / (1 - chance), torch.nan)


def _without_maps(context: ReshapeContext) -> list[HeadId]:
    """Heads whose weights may be negative or do not sum to one."""
    return [
        HeadId(slot, head)
        for slot, part in every_layer(anatomy_of(context.model)).items()
        if (groups := groups_in(part)) is not None
        for spec, heads in zip(groups.specs, groups.heads, strict=True)
        if not MECHANISMS[spec.name].rows_sum_to_one
        for head in heads
    ]
