"""What attention itself says of how much heads are needed: twins and roles."""

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
from attnworks.models.modes import inference_mode
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.surgery import anatomy_of, groups_in
from attnworks.traces.layer import LayerTrace
from attnworks.traces.rows import rows_of
from attnworks.traces.subject import LayerHook

MAX_DISTANCE = 1.0
"""The distance of heads that have nothing in common."""
ROLE_READINGS = ("roles.offset", "roles.rare", "roles.duplicate", "roles.induction")
"""Against even attention; syntax is against the best fixed offset."""

Means = dict[Slot, dict[str, Moments]]
"""Layer -> reading -> what sentences say on average."""


def map_distances(context: ReshapeContext) -> dict[Slot, Float[Tensor, "h h"]]:
    """The mean Jensen-Shannon distance between all heads of each layer; 1 where there are no maps to compare."""
    measure = Redundancy(MeasureContext(context.calibration.text.longest))
    distances = {slot: said["redundancy.distance"].value for slot, said in _means(context, measure.layer).items()}
    for slot, head in _without_maps(context):
        distances[slot][head], distances[slot][:, head] = torch.nan, torch.nan
    return {slot: distance.nan_to_num(MAX_DISTANCE) for slot, distance in distances.items()}


def role_gains(context: ReshapeContext) -> dict[HeadId, float]:
    """max over roles of (s - c) / (1 - c): 0 is chance, or less, and 1 is all attention.

    s is the lower end of the 95 % interval of a head's mean attention to an offset, the rarest token, another
    occurrence of the same token or what followed that, c what even attention gives there; for syntax the share of
    largest weights on the syntactic head, against the best fixed offset. Attention to the first token and to delimiters
    is no role: what goes there is lost to all others. Infinite where fewer than three sentences say anything.
    Source: the roles of Voita et al. 2019, with the gain of `exam.measures.labels`.
    """
    roles = Roles(MeasureContext(context.calibration.text.longest))

    def look(trace: LayerTrace) -> Samples:
        pointers = roles.pointers(trace.slot, trace.queries, trace.keys)
        return roles.rows(rows_of(trace, roles.context.span, pointers))

    _check_enough(context)
    means = _means(context, look)
    gains = {
        HeadId(slot, head): gain for slot, said in means.items() for head, gain in enumerate(_clearest(said).tolist())
    }
    return gains | dict.fromkeys(_without_maps(context), torch.inf)


def _check_enough(context: ReshapeContext) -> None:
    if len(context.calibration.text.kept) < MIN_LABEL_SENTENCES:
        raise UsageError(
            "ranking by role",
            f"{MIN_LABEL_SENTENCES} sentences",
            str(len(context.calibration.text.kept)),
            "give more text",
        )


class _Averages(LayerHook):
    """Averages over sentences what is said of every layer."""

    def __init__(self, look: Callable[[LayerTrace], Samples]) -> None:
        self.look = look
        self.means: Means = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        of_layer = self.means.setdefault(trace.slot, {})
        for name, (values, valid) in self.look(trace).items():
            of_layer.setdefault(name, Moments(tuple(values.shape[1:]))).add(values, valid)
        return None


def _means(context: ReshapeContext, look: Callable[[LayerTrace], Samples]) -> Means:
    averages, text = _Averages(look), context.calibration.text
    device = next(context.model.parameters()).device
    with inference_mode(context.model):
        for number in range(len(text.batches)):
            context.tell("looking at heads", number, len(text.batches))
            context.subject.run(text.batch(number)[0].to(device), averages)
    return averages.means


def _clearest(said: dict[str, Moments]) -> Float[Tensor, " h"]:
    """The largest gain of every head of a layer."""
    gains = [_gains(said[role], said[f"{role}_chance"].value) for role in ROLE_READINGS if role in said]
    if "roles.syntactic" in said:
        gains.append(_gains(said["roles.syntactic"], said["roles.syntactic_offset"].value.amax(-1)))
    every = torch.cat(gains, -1)
    best = every.nan_to_num(0.0).clamp_min(0.0).amax(-1)
    return torch.where(every.isnan().all(-1), torch.inf, best)


def _gains(found: Moments, chance: Float[Tensor, "*c"]) -> Float[Tensor, "h c"]:
    """Of every head in each case of a role; NaN where too few sentences say anything."""
    low, counted = found.interval[0].flatten(1) if found.value.dim() > 1 else found.interval[0][:, None], found.count
    gain = (low - chance.flatten()) / (1 - chance.flatten())
    return torch.where(counted.reshape(gain.shape) >= MIN_LABEL_SENTENCES, gain, torch.nan)


def _without_maps(context: ReshapeContext) -> list[HeadId]:
    """Heads whose maps are mixtures of any sign."""
    groups = {slot: groups_in(part) for slot, part in every_layer(anatomy_of(context.model)).items()}
    return [
        HeadId(slot, head)
        for slot, own in groups.items()
        if own is not None
        for spec, heads in zip(own.specs, own.heads, strict=True)
        if not MECHANISMS[spec.name].rows_sum_to_one
        for head in heads
    ]
