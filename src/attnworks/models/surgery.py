"""Change the heads or the mechanisms of an attnworks Transformer, keeping its weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from attnworks.attention import MechanismSpec
from attnworks.attention.heads import HeadMatrices, HeadWidths, carry_over, check_held
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.core.tensors import tensors_of
from attnworks.models.anatomy import BlockAnatomy, attention_layers, every_layer, heads_of, own_anatomy
from attnworks.models.build import build
from attnworks.models.config import AttentionConfig
from attnworks.models.multihead import MultiHead, tie_layers
from attnworks.models.transformer import Transformer

MechanismsBySlot = Mapping[Slot, Sequence[str]]
"""Layer -> the mechanism of each of its heads."""


def missing_heads_reason(model: nn.Module, blocks: Sequence[BlockAnatomy] | None, slot: Slot) -> str | None:
    """The reason why no heads of this layer can be changed; None if they can."""
    known = every_layer(blocks)
    if not known:
        return f"{type(model).__name__}, a model whose parts are not known"
    if slot not in known:
        return f"no such layer among {', '.join(map(str, known))}"
    return None if slot in attention_layers(blocks) else "weights that several layers share"


def head_choice_refusal(heads: int, kept: Sequence[int]) -> str | None:
    """The reason why these are no numbers of heads of the layer; None if they are."""
    known = {*kept} <= {*range(heads)} and len({*kept}) == len(kept)
    return None if known else "numbers that are not those of its heads, or twice the same"


def own_refusal_to_grow(model: nn.Module, slot: Slot) -> str | None:
    """The reason why heads of this layer cannot become wider or more; None if they can."""
    if reason := _missing_own_heads_reason(model, slot):
        return reason
    part = attention_layers(own_anatomy(model))[slot]
    attention = part.attention
    assert isinstance(attention, MultiHead)
    if not heads_of(part):
        return "no heads, as all of them were cut"
    if attention.has_global_projections:
        return "global tokens with projections of their own"
    if otherwise := [mechanism.name for mechanism in attention.mechanisms.mechanisms if not mechanism.rows_sum_to_one]:
        return f"{otherwise[0]} attention, whose weights are no distribution over keys"
    return "mechanisms that depend on the width of a head" if attention.mechanisms.bound_to_width() else None


def own_refusal_to_shrink(model: nn.Module, slot: Slot, kept: Sequence[int]) -> str | None:
    """The reason why this layer cannot keep these heads alone; None if it can."""
    if reason := _missing_own_heads_reason(model, slot):
        return reason
    return head_choice_refusal(len(heads_of(attention_layers(own_anatomy(model))[slot])), kept)


def own_refusal_to_swap(model: nn.Module, slot: Slot, by_head: Sequence[str]) -> str | None:
    """Why a layer cannot have these mechanisms, as words after "a mechanism that"; None if it can."""
    attention = attention_layers(own_anatomy(model))[slot].attention
    assert isinstance(attention, MultiHead)
    with_queries = attention.mechanisms.content_heads
    if any(MechanismSpec.parse(spec).kind.by_content and head not in with_queries for head, spec in enumerate(by_head)):
        return "needs queries and keys, which heads of the layer have lost"
    try:
        with torch.device("meta"):
            MultiHead(attention.W_O.shape[-1], replace(attention.config, mechanism=tuple(by_head)), attention.slot)
    except UsageError as error:
        return f"expects {error.expected}, got {error.got}"
    return None


def _missing_own_heads_reason(model: nn.Module, slot: Slot) -> str | None:
    reason = missing_heads_reason(model, own_anatomy(model), slot)
    if reason is None and not isinstance(model, Transformer):
        return f"{type(model).__name__}, whose layers are all alike"
    return reason


def cannot_grow(slot: Slot, reason: str) -> UsageError:
    """The error of a layer whose heads cannot become wider or more."""
    return UsageError(
        f"wider or more heads in {slot}", "dense heads with own projections", reason, "choose another layer or model"
    )


def cannot_keep(slot: Slot, reason: str) -> UsageError:
    """The error of a layer that cannot keep some of its heads alone."""
    return UsageError(
        f"fewer heads in {slot}",
        "heads that can be removed without a change of anything else",
        reason,
        "choose other heads, another layer, or another model",
    )


@torch.no_grad()
def put_own_heads(model: Transformer, slot: Slot, heads: Sequence[HeadMatrices], origins: Sequence[int | None]) -> None:
    """Build a layer of the model from these heads, in place.

    origins    the former number of each head in the layer; None for a new head
    """
    old = attention_layers(own_anatomy(model))[slot].attention
    assert isinstance(old, MultiHead)
    if any(head.turns is not None and bool(head.turns.any()) for head in heads):
        raise cannot_grow(slot, "columns that turn by position, in a model of attnworks")
    with torch.random.fork_rng(devices=[]):
        new = MultiHead(old.W_O.shape[-1], _config(old, heads, origins), slot).to(old.W_O).train(old.training)
    content_heads = [heads[head] for head in new.mechanisms.content_heads]
    for name in ("W_Q", "W_K", "b_Q", "b_K"):
        _fill(old, new, name, content_heads, new.key_widths)
    for name, axis in (("W_V", -1), ("b_V", -1), ("W_O", 0)):
        _fill(old, new, name, heads, new.value_widths, axis)
    if old.b_O is not None and new.b_O is not None:
        new.b_O.requires_grad_(old.b_O.requires_grad).copy_(old.b_O)
    for name in (f"{letter}_{of}g" for letter in "Wb" for of in "QKV"):
        if new.has_global_projections and getattr(old, name) is not None:
            rows = [getattr(old, name)[head] for head in origins]
            getattr(new, name).requires_grad_(getattr(old, name).requires_grad).copy_(torch.stack(rows))
    _check_carried(old, new)
    carry_over(old.mechanisms, new.mechanisms, origins)
    holder, _, name = next(path for path, module in model.named_modules() if module is old).rpartition(".")
    setattr(model.get_submodule(holder), name, new)
    model.config = replace(model.config, slots={**model.config.slots, str(slot): new.config})
    tie_layers(model)


def _config(old: MultiHead, heads: Sequence[HeadMatrices], origins: Sequence[int | None]) -> AttentionConfig:
    """The config of the layer with these heads, and with the scale that it had."""
    config = old.config
    if not heads:
        geometry = config.geometry
        return replace(config, heads=0, d_k=geometry.d_k, d_v=geometry.d_v, mechanism="dense")
    before = (config.mechanism,) * config.heads if isinstance(config.mechanism, str) else config.mechanism
    specs = tuple("dense" if origin is None else before[origin] for origin in origins)
    known = (0 if origin is None else config.key_widths[origin] for origin in origins)
    keys = tuple(head.W_Q.shape[1] or width for head, width in zip(heads, known, strict=True))
    values = tuple(head.W_V.shape[1] for head in heads)
    scale = config.scale
    if scale is None and (max(keys) != config.geometry.d_k or None in origins):
        scale = _scale(old)
    mechanism = config.mechanism if {*specs} == {config.mechanism} else specs
    return replace(config, heads=len(heads), d_k=keys, d_v=values, mechanism=mechanism, scale=scale)


def _scale(old: MultiHead) -> float:
    """The factor of the scores of all heads, to be kept: by default it would change with the width."""
    d_k = old.config.geometry.d_k
    scales = {mechanism.scale(d_k, old.context) for mechanism in old.mechanisms.mechanisms if mechanism.by_content}
    if len(scales) > 1:
        asked, found = f"another largest width of keys in {old.slot}", ", ".join(f"{s:.4g}" for s in sorted(scales))
        raise UsageError(asked, "one scale of the scores in all heads", found, "set a scale for the layer")
    return scales.pop() if scales else d_k**-0.5


def _fill(
    old: MultiHead, new: MultiHead, name: str, heads: Sequence[HeadMatrices], widths: HeadWidths, axis: int = -1
) -> None:
    if getattr(old, name) is not None:
        parameter = getattr(new, name).requires_grad_(getattr(old, name).requires_grad)
        widths.fill(parameter, [getattr(head, name) for head in heads], axis)


def _check_carried(old: MultiHead, new: MultiHead) -> None:
    """Refuse mechanisms whose parameters depend on the widths that changed."""
    before, after = (
        {
            str(spec): [tensor.shape[1:] for tensor in module.state_dict().values()]
            for spec, module in zip(layer.mechanisms.specs, layer.mechanisms.mechanisms, strict=True)
        }
        for layer in (old, new)
    )
    if any(before.get(spec, shapes) != shapes for spec, shapes in after.items()):
        asked, found = f"wider heads in {old.slot}", str(old.config.mechanism)
        raise UsageError(asked, "mechanisms that fit any width", found, "grow dense heads")


def with_own_mechanisms(model: Transformer, wanted: MechanismsBySlot) -> Transformer:
    """A copy of the model whose named layers use these mechanisms, with the same weights."""
    config = model.config
    slots = {str(slot): replace(config.slot(slot), mechanism=tuple(specs)) for slot, specs in wanted.items()}
    first = next(model.parameters())
    new = build(replace(config, slots={**config.slots, **slots}), seed=0).to(first).train(model.training)
    theirs = tensors_of(model)
    with torch.no_grad():
        for name, tensor in tensors_of(new).items():
            if name in theirs:
                tensor.requires_grad_(theirs[name].requires_grad)
                if theirs[name].shape == tensor.shape:
                    tensor.copy_(theirs[name])
        for old_layer, layer in zip(_multiheads(model), _multiheads(new), strict=True):
            if layer.slot in wanted:
                _carry_layer(old_layer, layer)
    return new


def _carry_layer(old: MultiHead, new: MultiHead) -> None:
    """Copy W_Q and W_K of heads that use them, and the parameters of mechanisms that are in both layers."""
    held = old.mechanisms.content_heads
    check_held(held, new.mechanisms.content_heads, new.slot)
    for name in ("W_Q", "W_K", "b_Q", "b_K"):
        theirs, mine = getattr(old, name), getattr(new, name)
        if theirs is not None:
            parts = old.key_widths.split(theirs)
            new.key_widths.fill(mine, [parts[held.index(head)] for head in new.mechanisms.content_heads])
    carry_over(old.mechanisms, new.mechanisms)


def _multiheads(model: nn.Module) -> list[MultiHead]:
    return [layer for layer in model.modules() if isinstance(layer, MultiHead)]
