"""An own Transformer with other heads or other mechanisms; weights are carried over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import nn

from attnworks.attention.heads import Head, Widths, carry_over, check_held
from attnworks.core.errors import UsageError
from attnworks.core.tensors import tensors_of
from attnworks.models.anatomy import BlockAnatomy, attention_layers, every_layer, heads_of, own_anatomy
from attnworks.models.build import build
from attnworks.models.config import AttentionConfig
from attnworks.models.multihead import MultiHead, tie_layers
from attnworks.models.transformer import Transformer

Mechanisms = Mapping[str, Sequence[str]]
"""Layer (enc.0, dec.1, cross.1) -> the mechanism of each of its heads."""


def why_no_heads(model: nn.Module, blocks: Sequence[BlockAnatomy] | None, slot: str) -> str | None:
    """Why a layer of a model with these blocks has no heads of its own that could be taken out; None if it has."""
    known = every_layer(blocks)
    if not known:
        return f"{type(model).__name__}, a model whose parts are not known"
    if slot not in known:
        return f"no such layer among {', '.join(known)}"
    return None if slot in attention_layers(blocks) else "weights that several layers share"


def why_not_these(heads: int, kept: Sequence[int]) -> str | None:
    """Why these cannot be numbers of some of a layer's heads, in words; None if they can."""
    known = {*kept} <= {*range(heads)} and len({*kept}) == len(kept)
    return None if known else "numbers that are not those of its heads, or twice the same"


def why_not_own(model: nn.Module, slot: str) -> str | None:
    """The reason for which heads of a layer of an own model cannot be wider or more, in words; None if they can."""
    if reason := _why_none_of_its_own(model, slot):
        return reason
    part = attention_layers(own_anatomy(model))[slot]
    attention = part.attention
    assert isinstance(attention, MultiHead)
    if not heads_of(part):
        return "no heads at all"
    if attention.twice:
        return "global tokens with projections of their own"
    if otherwise := [mechanism.name for mechanism in attention.mechanisms.mechanisms if not mechanism.stochastic]:
        return f"{otherwise[0]} attention, whose weights are no distribution over keys"
    return "mechanisms that depend on the width of a head" if attention.mechanisms.bound_to_width() else None


def why_not_fewer_own(model: nn.Module, slot: str, kept: Sequence[int]) -> str | None:
    """The reason for which a layer of an own model cannot be cut down to these heads, in words; None if it can."""
    if reason := _why_none_of_its_own(model, slot):
        return reason
    return why_not_these(len(heads_of(attention_layers(own_anatomy(model))[slot])), kept)


def _why_none_of_its_own(model: nn.Module, slot: str) -> str | None:
    reason = why_no_heads(model, own_anatomy(model), slot)
    if reason is None and not isinstance(model, Transformer):
        return f"{type(model).__name__}, whose layers are all alike"
    return reason


def cannot_grow(slot: str, reason: str) -> UsageError:
    """The error for a layer whose heads cannot be wider or more."""
    return UsageError(
        asked=f"wider or more heads in {slot}",
        expected="dense heads with projections of their own",
        got=reason,
        remedy="choose another layer, or a model of another family",
    )


def cannot_keep(slot: str, reason: str) -> UsageError:
    """The error for a layer that cannot be cut down to some of its heads."""
    return UsageError(
        asked=f"fewer heads in {slot}",
        expected="heads with projections of their own, or as many of each group that shares keys and values",
        got=reason,
        remedy="choose other heads, another layer, or a model of another family",
    )


@torch.no_grad()
def put_own_heads(model: Transformer, slot: str, heads: Sequence[Head], origins: Sequence[int | None]) -> None:
    """Put a layer of an own model together from these heads, in place.

    origins    the number that each head had in the layer before; None for a new one
    """
    old = attention_layers(own_anatomy(model))[slot].attention
    assert isinstance(old, MultiHead)
    with torch.random.fork_rng(devices=[]):
        new = MultiHead(old.W_O.shape[-1], _config(old, heads, origins), slot).to(old.W_O).train(old.training)
    looking = [heads[head] for head in new.mechanisms.looking]
    for name in ("W_Q", "W_K", "b_Q", "b_K"):
        _fill(old, new, name, looking, new.key_widths)
    for name, axis in (("W_V", -1), ("b_V", -1), ("W_O", 0)):
        _fill(old, new, name, heads, new.value_widths, axis)
    if old.b_O is not None and new.b_O is not None:
        new.b_O.requires_grad_(old.b_O.requires_grad).copy_(old.b_O)
    for name in (f"{letter}_{of}g" for letter in "Wb" for of in "QKV"):
        if new.twice and getattr(old, name) is not None:
            rows = [getattr(old, name)[head] for head in origins]
            getattr(new, name).requires_grad_(getattr(old, name).requires_grad).copy_(torch.stack(rows))
    _check_carried(old, new)
    carry_over(old.mechanisms, new.mechanisms, origins)
    holder, _, name = next(path for path, module in model.named_modules() if module is old).rpartition(".")
    setattr(model.get_submodule(holder), name, new)
    model.config = replace(model.config, slots={**model.config.slots, slot: new.config})
    tie_layers(model)


def _config(old: MultiHead, heads: Sequence[Head], origins: Sequence[int | None]) -> AttentionConfig:
    """The layer's own with other widths and heads, and the scale that it had."""
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
    """The one factor of the scores in all heads that look; one of other width would change it by itself."""
    d_k = old.config.geometry.d_k
    scales = {mechanism.scale(d_k, old.context) for mechanism in old.mechanisms.mechanisms if mechanism.by_content}
    if len(scales) > 1:
        raise UsageError(
            asked=f"another largest width of keys in {old.slot}",
            expected="one scale of the scores in all heads",
            got=", ".join(f"{scale:.4g}" for scale in sorted(scales)),
            remedy="build the layer with a scale of its own",
        )
    return scales.pop() if scales else d_k**-0.5


def _fill(old: MultiHead, new: MultiHead, name: str, heads: Sequence[Head], widths: Widths, axis: int = -1) -> None:
    if getattr(old, name) is not None:
        parameter = getattr(new, name).requires_grad_(getattr(old, name).requires_grad)
        widths.fill(parameter, [getattr(head, name) for head in heads], axis)


def _check_carried(old: MultiHead, new: MultiHead) -> None:
    """Parameters of mechanisms must not depend on the widths that changed."""
    before, after = (
        {
            str(spec): [tensor.shape[1:] for tensor in module.state_dict().values()]
            for spec, module in zip(layer.mechanisms.specs, layer.mechanisms.mechanisms, strict=True)
        }
        for layer in (old, new)
    )
    if any(before.get(spec, shapes) != shapes for spec, shapes in after.items()):
        raise UsageError(
            asked=f"wider heads in {old.slot}",
            expected="mechanisms whose own parameters do not depend on the width",
            got=str(old.config.mechanism),
            remedy="grow layers of dense heads",
        )


def with_own_mechanisms(model: Transformer, wanted: Mechanisms) -> Transformer:
    """A copy of an own model whose named layers use these mechanisms, with all weights carried over."""
    config = model.config
    slots = {slot: replace(config.slot(slot), mechanism=tuple(specs)) for slot, specs in wanted.items()}
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
    """W_Q and W_K of the heads that look, and the parameters of mechanisms that are in both."""
    held = old.mechanisms.looking
    check_held(held, new.mechanisms.looking, new.slot)
    for name in ("W_Q", "W_K", "b_Q", "b_K"):
        theirs, mine = getattr(old, name), getattr(new, name)
        if theirs is not None:
            parts = old.key_widths.split(theirs)
            new.key_widths.fill(mine, [parts[held.index(head)] for head in new.mechanisms.looking])
    carry_over(old.mechanisms, new.mechanisms)


def _multiheads(model: nn.Module) -> list[MultiHead]:
    return [layer for layer in model.modules() if isinstance(layer, MultiHead)]
