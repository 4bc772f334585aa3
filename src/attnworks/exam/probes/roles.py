"""The roles that probes decide: previous token and other offsets, duplicate token, induction and retrieval."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.core.places import HeadId, Kind, Slot
from attnworks.exam.reading import Reading, Readings, offset_role

PROBE_ATTENTION = 0.3
"""The mean attention in a probe from which a head has the role that the probe asks for."""
ROLES_WITH_A_PROBE = ("induction", "duplicate", "retrieval")
"""The roles that have a probe of their own, beside the offsets."""


class DecidedRoles(NamedTuple):
    """Roles of every head of a layer, and the gain of each: -inf where the head does not have it."""

    names: tuple[str, ...]
    score: Float[Tensor, "h c"]
    baseline: Float[Tensor, "h c"]
    gain: Float[Tensor, "h c"]


def probes_decide(readings: Readings, kind: Kind) -> bool:
    """Whether probes were run on causal attention. In an encoder, random tokens are no text that it was trained on."""
    return kind == "decoder" and f"probes.offset@{kind}" in readings


def roles_by_probe(readings: Readings, kind: Kind, layer: int) -> list[DecidedRoles]:
    """Which heads of a layer have the roles that were probed.

    An induction head is not also a retrieval head: retrieval by induction is one case of it.
    """
    offset = readings[f"probes.offset@{kind}"]
    names = tuple(offset_role(int(place), kind) for place in offset.ticks["offset"])
    found = [_decide(names, offset, readings[f"probes.offset_chance@{kind}"], layer)]
    by_name: dict[str, DecidedRoles] = {}
    for name in ROLES_WITH_A_PROBE:
        if f"probes.{name}@{kind}" in readings:
            reading, chance = readings[f"probes.{name}@{kind}"], readings[f"probes.{name}_chance@{kind}"]
            by_name[name] = _decide((name,), reading, chance, layer)
    if "induction" in by_name and "retrieval" in by_name:
        induces, retrieval = by_name["induction"].gain > -torch.inf, by_name["retrieval"]
        by_name["retrieval"] = retrieval._replace(gain=retrieval.gain.masked_fill(induces, -torch.inf))
    return [*found, *by_name.values()]


def heads_by_probe(readings: Readings) -> dict[str, tuple[HeadId, ...]]:
    """Role -> the heads that have it by the probes, also heads with several roles."""
    found: dict[str, list[HeadId]] = {}
    for offset in readings.of("probes.offset"):
        for layer in range(len(offset.value)):
            for group in roles_by_probe(readings, offset.kind, layer):
                for head, place in (group.gain > -torch.inf).nonzero().tolist():
                    found.setdefault(group.names[place], []).append(HeadId(Slot(offset.kind, layer), head))
    return {role: tuple(heads) for role, heads in found.items()}


def _decide(names: tuple[str, ...], reading: Reading, chance: Reading, layer: int) -> DecidedRoles:
    """Roles with PROBE_ATTENTION or more, if the interval is above chance."""
    assert reading.interval is not None
    score, low = (_tensor(part[layer]) for part in (reading.value, reading.interval[0]))
    score, low = (values if values.dim() > 1 else values.unsqueeze(-1) for values in (score, low))
    baseline = _tensor(chance.value[layer]).expand_as(score)
    has = (score >= PROBE_ATTENTION) & (low > baseline)
    gain = (score - baseline) / (1 - baseline).clamp_min(torch.finfo(score.dtype).tiny)
    return DecidedRoles(names, score, baseline, torch.where(has, gain, -torch.inf))


def _tensor(row: Tensor | tuple[str, ...]) -> Tensor:
    assert isinstance(row, Tensor)
    return row
