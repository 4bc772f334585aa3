"""The attention layers of a model, found in one cut forward pass: which columns of projections serve which head."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from attnworks.core.places import KINDS, Kind, Slot
from attnworks.hf.cut.stored import OUTPUTS
from attnworks.hf.evidence.cut_graph import AttentionCall, CutPass
from attnworks.hf.evidence.layer import layer_layout, same_reach, scale_of
from attnworks.hf.layout import AttentionLayout, ColumnSource, HeadColumns


def attention_layouts(model: nn.Module, cut: CutPass) -> tuple[AttentionLayout, ...]:
    """The layouts of all attention layers that run in a cut pass, in the order of their first calls.

    One layer of each kind is looked into head by head. The others of its kind have the same layout under their own
    names, which is checked for one head; a layer for which the check fails is looked into as well. A layer that runs
    several times is looked into at the first call that autograd records.
    """
    slots = attention_slots(cut.attention)
    lists = [f"{path}." for path, module in model.named_modules() if isinstance(module, nn.ModuleList)]
    found: dict[str, AttentionLayout] = {}
    by_kind: dict[object, tuple[AttentionLayout, AttentionCall]] = {}
    recorded = {call.path: call for call in reversed(cut.attention) if call.Y.requires_grad}
    for call, slot in zip(cut.attention, slots, strict=True):
        if call.path in found:
            known = found[call.path]
            found[call.path] = replace(known, slots=(*known.slots, slot))
            continue
        call, block = recorded.get(call.path, call), _block_of(call.path, lists)
        kind = _signature(model, call, slot, block)
        carried = _carried(model, *by_kind[kind], call, slot, block, lists) if kind in by_kind else None
        if carried is None or not same_reach(cut, call, carried):
            carried = layer_layout(cut, call, slot)
        by_kind.setdefault(kind, (carried, call))
        found[call.path] = carried
    return tuple(found.values())


def attention_slots(calls: Sequence[AttentionCall]) -> list[Slot]:
    """The name of the layer of each call: its kind, and the number of its block.

    Where the numbers in the names of modules do not rise from call to call, as in layers that share their weights,
    calls are counted.
    """
    slots: list[Slot | None] = [None] * len(calls)
    kinds: list[Kind] = [_kind(call) for call in calls]
    for kind in KINDS:
        own = [index for index, of in enumerate(kinds) if of == kind]
        numbers = [number for index in own if (number := _first_number(calls[index].path)) is not None]
        rising = len(numbers) == len(own) and all(a < b for a, b in pairwise(numbers))
        for count, index in enumerate(own):
            slots[index] = Slot(kind, numbers[count] if rising else count)
    return [slot for slot in slots if slot is not None]


def _first_number(path: str) -> int | None:
    found = re.search(r"(?:^|\.)(\d+)(?:\.|$)", path)
    return int(found.group(1)) if found else None


def _kind(call: AttentionCall) -> Kind:
    """Cross-attention reads another length; self-attention is a decoder's if no query sees a later key."""
    i, j = call.Q.shape[2], call.K.shape[2]
    if i != j:
        return "cross"
    return "decoder" if i > 1 and not _sees_later(call) else "encoder"


def _sees_later(call: AttentionCall) -> bool:
    """Whether the output of the first query depends on the values of later keys.

    Where activations overflow, the module itself says whether it is causal.
    """
    if not call.Y.requires_grad or not call.V.requires_grad:
        return False
    cotangent = torch.zeros_like(call.Y)
    cotangent[:, :, 0] = 1.0
    (back,) = torch.autograd.grad(call.Y, call.V, cotangent, retain_graph=True, allow_unused=True)
    if back is not None and not bool(back.isfinite().all()):
        return not getattr(call.module, "is_causal", False)
    return back is not None and bool(back[:, :, 1:].any())


def _block_of(path: str, lists: Sequence[str]) -> str:
    """The item of the outermost list of modules that this path is in; empty if it is in none."""
    outer = min((some for some in lists if path.startswith(some)), key=len, default=None)
    return "" if outer is None else outer + path.removeprefix(outer).partition(".")[0]


def _signature(model: nn.Module, call: AttentionCall, slot: Slot, block: str) -> object:
    """Equal for layers of the same kind: class, place in the block, shapes of all parameters of the block."""
    module = model.get_submodule(block)
    shapes = tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())
    options = tuple(sorted((name, value is None) for name, value in call.options.items()))
    shape = tuple(T.shape for T in (call.Q, call.K, call.V))
    stored = tuple(tuple(columns.tolist()) for name, columns in module.named_buffers() if name.endswith(OUTPUTS))
    return type(call.module), slot.kind, call.path.removeprefix(block), shapes, shape, options, stored


def _carried(
    model: nn.Module,
    known: AttentionLayout,
    of: AttentionCall,
    call: AttentionCall,
    slot: Slot,
    block: str,
    lists: Sequence[str],
) -> AttentionLayout | None:
    """The layout of a layer of the same kind, `of` another call, under the names of this one.

    None if one of these names does not exist. Layers may scale their scores differently.
    """
    old = _block_of(known.path, lists)

    def renamed(path: str) -> str:
        return block + path.removeprefix(old) if path == old or path.startswith(f"{old}.") else path

    def moved(columns: HeadColumns | None) -> HeadColumns | None:
        return None if columns is None else HeadColumns(renamed(columns.path), columns.index)

    sources = tuple(replace(source, path=renamed(source.path)) for source in known.sources)
    if not all(_exists(model, source) for source in sources):
        return None
    return replace(
        known,
        path=call.path,
        slots=(slot,),
        query=moved(known.query),
        key=moved(known.key),
        value=moved(known.value),
        output=moved(known.output),
        output_path=None if known.output_path is None else renamed(known.output_path),
        factor=None if known.factor is None else known.factor / scale_of(of) * scale_of(call),
        sources=sources,
    )


def _exists(model: nn.Module, source: ColumnSource) -> bool:
    holder, _, name = source.path.rpartition(".")
    try:
        if source.is_parameter:
            return isinstance(getattr(model.get_submodule(holder), name), Tensor)
        model.get_submodule(source.path)
    except AttributeError:
        return False
    return True
