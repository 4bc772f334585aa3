"""Which heads of a model can be cut, and which of them go together."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from attnworks.core.errors import UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.models.modes import inference_mode
from attnworks.reshape.contract import ReshapeContext
from attnworks.reshape.surgery import PruneUnit, attention_parts, layers_of, refusal_to_shrink
from attnworks.traces.edits import CountHeadsHook


def heads_by_layer(model: nn.Module) -> dict[Slot, list[int]]:
    """The number of the group, for keys and values, of every head of every layer that heads can go from."""
    layers = layers_of(model)
    return {slot: part.groups() for slot, part in layers.items() if _refusal(model, slot, part.groups()) is None}


def _refusal(model: nn.Module, slot: Slot, groups: Sequence[int]) -> str | None:
    """Why neither all heads of a layer nor those of one group can go, in words; None if they can."""
    some = [head for head, group in enumerate(groups) if group]
    return refusal_to_shrink(model, slot, some) or refusal_to_shrink(model, slot, [])


def check_can_prune(model: nn.Module) -> None:
    """Refuse a model in which no head can be cut, with the reason for its first layer."""
    layers = attention_parts(model, cross=True)
    reasons = {slot: _refusal(model, slot, part.groups()) for slot, part in layers.items()}
    refused = {slot: reason for slot, reason in reasons.items() if reason is not None}
    if len(refused) == len(layers) or not units_of(model):
        got = next((f"{reason} in {slot}" for slot, reason in refused.items()), "none that are left")
        raise UsageError(f"pruning {type(model).__name__}", "heads that can be cut", got, "choose another model")


def units_of(model: nn.Module, *, alone: bool = False) -> list[PruneUnit]:
    """Heads that go together: in all layers that share their weights, those that share keys and values.

    alone    each by itself, also of those that share keys and values
    """
    units: dict[tuple[nn.Module | None, int], list[HeadId]] = {}
    layers = layers_of(model)
    for slot, groups in heads_by_layer(model).items():
        for head, group in enumerate(groups):
            units.setdefault((layers[slot].attention, head if alone else group), []).append(HeadId(slot, head))
    return [tuple(unit) for unit in units.values()]


def units_that_run(context: ReshapeContext) -> list[PruneUnit]:
    """The units of layers that run on the text; cross-attention without a source does not run."""
    subject, counting = context.subject, CountHeadsHook()
    with inference_mode(context.model):
        subject.run(context.calibration.text.batch(0)[0].to(subject.device), counting)
    return [unit for unit in units_of(context.model) if unit[0].slot in counting.heads]
