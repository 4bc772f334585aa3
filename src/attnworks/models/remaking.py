"""A model like another, with other mechanisms in some of its heads."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.errors import UsageError
from attnworks.hf.attention import ATTRIBUTE, groups_of, offer_own_heads
from attnworks.mechanisms import MechanismSpec
from attnworks.models.anatomy import Part, anatomy_of
from attnworks.models.attention_layers import attention_layers
from attnworks.models.build import build
from attnworks.models.config import check_serves
from attnworks.models.head_groups import HeadGroups, carry_over, check_held, grouped
from attnworks.models.multihead import MultiHead
from attnworks.models.recurrent import Recurrent
from attnworks.models.transformer import Transformer
from attnworks.storage.tensors import tensors_of

ENTRY = "attnworks"
"""Under this name the config of a Hugging Face model says which of its heads use which mechanism."""

Mechanisms = Mapping[str, Sequence[str]]
"""Layer (enc.0, dec.1, cross.1) -> the mechanism of each of its heads."""


def mechanisms_of(model: nn.Module, *, cross: bool = False) -> dict[str, tuple[str, ...]]:
    """What each head of each self-attention layer uses; with `cross`, of cross-attention too."""
    found: dict[str, tuple[str, ...]] = {}
    for slot, part in attention_parts(model, cross=cross).items():
        groups = groups_in(part)
        found[slot] = ("dense",) * _count(part) if groups is None else groups.by_head()
    return found


def attention_groups(model: nn.Module, *, cross: bool = False) -> dict[str, HeadGroups]:
    """The mechanisms of every self-attention layer that has some of ours; with `cross`, of cross-attention too."""
    found = {slot: groups_in(part) for slot, part in attention_parts(model, cross=cross).items()}
    return {slot: groups for slot, groups in found.items() if groups is not None}


def with_mechanisms(model: nn.Module, wanted: Mechanisms) -> Any:
    """A copy of the model whose named layers use these mechanisms, one for each head; `model` itself stays as it is.

    Weights are carried over. Heads that no longer look at queries and keys lose W_Q and W_K: always in own models, in
    those of Hugging Face where the layer can do with fewer (`Part.shrinkable`). The model must be one of attnworks, or
    of a family whose parts are known.
    """
    now = mechanisms_of(model, cross=True)
    for slot, specs in wanted.items():
        _check(slot, specs, now)
    if isinstance(model, Transformer):
        return _remade(model, wanted)
    new = copy.deepcopy(model)
    equip(new, wanted)
    return new


def equip(model: Any, wanted: Mechanisms) -> None:
    """Give layers of a Hugging Face model these mechanisms, in place, and write that into its config."""
    layers = attention_parts(model, cross=True)
    for slot, specs in wanted.items():
        part = layers[slot]
        assert part.attention is not None and part.weights is not None
        W, old = part.weights(), groups_of(part.attention)
        groups = HeadGroups(grouped(specs), W.W_Q.shape[-1], W.W_V.shape[-1]).to(W.W_V)
        groups.train(part.attention.training)
        if old is not None:
            carry_over(old, groups)
        if part.shrinkable is not None:
            held = range(groups.count) if old is None else old.looking
            check_held(held, groups.looking, slot)
            _shrink(part.shrinkable, rows_held(held, groups.looking, slot), W.W_Q.shape[-1])
        setattr(part.attention, ATTRIBUTE, groups)
    model.config.attnworks = {
        **getattr(model.config, ENTRY, {}),
        **{slot: list(specs) for slot, specs in wanted.items()},
    }
    if model.config.attnworks:
        model.set_attn_implementation(offer_own_heads())


def _remade(model: Transformer, wanted: Mechanisms) -> Transformer:
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


def rows_held(held: Sequence[int], kept: Sequence[int], slot: str) -> list[int]:
    """Where queries and keys of these heads are, in a layer that holds them for some heads only.

    transformers reads the length of a cache off its keys, so that a decoder keeps some, used or not.
    """
    return [held.index(head) for head in kept if head in held] or [0] * slot.startswith("dec")


def _shrink(linears: Sequence[nn.Linear], heads: Sequence[int], width: int) -> None:
    """Keep the outputs of these heads."""
    for linear in linears:
        for name in ("weight", "bias"):
            tensor: Tensor | None = getattr(linear, name)
            if tensor is not None:
                rows = tensor.detach().unflatten(0, (len(tensor) // width, width))[list(heads)]
                setattr(linear, name, nn.Parameter(rows.flatten(0, 1), requires_grad=tensor.requires_grad))
        linear.out_features = linear.weight.shape[0]


def self_attention(model: nn.Module) -> dict[str, Part]:
    """Every self-attention layer whose module is its own."""
    return attention_parts(model)


def attention_parts(model: nn.Module, *, cross: bool = False) -> dict[str, Part]:
    """The same; with `cross`, those of cross-attention too. Refused for models whose parts are not known."""
    if isinstance(model, Recurrent):
        raise UsageError(
            asked="other heads in a recurrent model",
            expected="a transformer, with heads of self-attention",
            got="none in a recurrent model",
            remedy="choose another model",
        )
    if anatomy_of(model) is None:
        raise UsageError(
            asked=f"other heads in {type(model).__name__}",
            expected="a model of attnworks, or of a family whose parts are known",
            got="a model whose parts are not known",
            remedy="attnworks.hf.families.FAMILIES lists those that are",
        )
    return {slot: part for slot, part in attention_layers(model).items() if cross or part.role == "self"}


def _multiheads(model: nn.Module) -> list[MultiHead]:
    return [layer for layer in model.modules() if isinstance(layer, MultiHead)]


def groups_in(part: Part) -> HeadGroups | None:
    """The mechanisms of a layer; None for a layer of Hugging Face's as it came."""
    attention = part.attention
    assert attention is not None
    return attention.mechanisms if isinstance(attention, MultiHead) else groups_of(attention)


def _count(part: Part) -> int:
    assert part.weights is not None
    return len(part.weights().W_O)


def _check(slot: str, specs: Sequence[str], now: Mapping[str, Sequence[str]]) -> None:
    if slot not in now:
        raise UsageError(
            asked=f"other heads in {slot}",
            expected=f"one of {', '.join(now) or 'no layer: all of them share their weights'}",
            got="a layer this model does not have, or whose weights several layers share",
            remedy="name layers enc.L, dec.L or cross.L, from zero",
        )
    if len(specs) != len(now[slot]):
        raise UsageError(
            asked=f"other heads in {slot}",
            expected=f"{len(now[slot])} mechanisms, one for each head",
            got=str(len(specs)),
            remedy="repeat those of the heads that stay",
        )
    for text in specs:
        check_serves(MechanismSpec.parse(text), slot)
