"""Wider heads, and more of them, in the attention layers of Hugging Face models.

The modules of transformers cut queries, keys and values by one width. Projections therefore give all heads padded with
zeros to the width of the widest (`head_linear`), and store the true columns alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnworks.models.anatomy import Head, Part
from attnworks.models.config import AttentionConfig
from attnworks.models.head_groups import HeadGroups
from attnworks.models.head_linear import HeadsIn, HeadsOut
from attnworks.models.offering import groups_of
from attnworks.models.remaking import ENTRY, equip

WIDTHS = "attnworks_widths"
"""Under this name the config of a Hugging Face model says how wide the heads of its changed layers are."""

_COUNTS = ("num_attention_heads", "num_heads", "n_heads")
_TOTALS = ("all_head_size", "inner_dim")


def why_not_foreign(model: nn.Module, part: Part) -> str | None:
    """The reason for which heads of this layer cannot be changed, in words; None if they can."""
    assert part.place is not None and part.weights is not None and part.attention is not None
    block, at = part.place
    query, key, value = at.query, at.key, at.value
    W, groups = part.weights(), groups_of(part.attention)
    if max(query.of, key.of, value.of) > 1:
        return "queries, keys and values that are one projection"
    if not all(_is_linear(block.get_submodule(path)) for path in (query.path, key.path, value.path, at.output)):
        return "projections that are not linear layers of torch"
    if W.groups < len(W.W_Q):
        return "keys and values that several heads share"
    if any("rotary" in name for name, _ in model.named_modules()):
        return "queries and keys that are turned by position (rotary)"
    if part.shrinkable is not None and groups is not None and len(groups.looking) < groups.count:
        return "heads that attend by position alone, and have neither queries nor keys"
    return None if groups is None or _grows(groups) else "mechanisms that depend on the width of a head"


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | HeadsOut | HeadsIn)


def _grows(groups: HeadGroups) -> bool:
    """Scores whose factor is 1/sqrt(k) are given that of the layer where k is another; others must not be."""
    usual = (mechanism.default_scale(4) == 0.5 for mechanism in groups.mechanisms if mechanism.by_content)
    return all(usual) and not groups.bound_to_width()


@torch.no_grad()
def put_foreign_heads(model: Any, part: Part, slot: str, heads: Sequence[Head]) -> None:
    """Put a layer of a Hugging Face model together from these heads, in place, and write that into its config."""
    assert part.place is not None and part.attention is not None
    block, at = part.place
    resize(model, part, slot, [head.W_Q.shape[1] for head in heads], [head.W_V.shape[1] for head in heads])
    for place, weight, bias in ((at.query, "W_Q", "b_Q"), (at.key, "W_K", "b_K"), (at.value, "W_V", "b_V")):
        projection = block.get_submodule(place.path)
        assert isinstance(projection, HeadsOut)
        projection.weight.copy_(torch.cat([getattr(head, weight).T for head in heads]))
        if projection.bias is not None:
            projection.bias.copy_(torch.cat([getattr(head, bias) for head in heads]))
    output = block.get_submodule(at.output)
    assert isinstance(output, HeadsIn)
    output.weight.copy_(torch.cat([head.W_O for head in heads]).T)
    groups = groups_of(part.attention)
    if groups is not None:
        equip(model, {slot: (*groups.by_head(), *("dense",) * (len(heads) - groups.count))})


@torch.no_grad()
def resize(model: Any, part: Part, slot: str, keys: Sequence[int], values: Sequence[int]) -> None:
    """Give a layer heads of these widths, in place; what they hold is yet to be written. The output bias stays."""
    assert part.place is not None and part.attention is not None
    (block, at), attention = part.place, part.attention
    widths = AttentionConfig(heads=len(keys), d_k=tuple(keys), d_v=tuple(values))
    widest = max(*widths.key_widths, *widths.value_widths)
    for path, columns in ((at.query.path, keys), (at.key.path, keys), (at.value.path, values)):
        old: Any = block.get_submodule(path)
        new = HeadsOut(old.weight.shape[1], columns, widest, bias=old.bias is not None)
        block.set_submodule(path, _like(old, new))
    old = block.get_submodule(at.output)
    new = HeadsIn(old.weight.shape[0], values, widest, bias=old.bias is not None)
    block.set_submodule(at.output, _like(old, new))
    if new.bias is not None:
        new.bias.copy_(old.bias)
    if hasattr(attention, "relative_attention_num_buckets"):
        _keep_positions(attention, len(keys))
    setattr(attention, at.width, widest)
    for names, number in ((_COUNTS, len(keys)), (_TOTALS, len(keys) * widest)):
        for name in names:
            if hasattr(attention, name):
                setattr(attention, name, number)
    model.config.attnworks = getattr(model.config, ENTRY, {})
    described = {slot: {"keys": list(keys), "values": list(values)}}
    model.config.attnworks_widths = {**getattr(model.config, WIDTHS, {}), **described}


def _like(old: Any, new: HeadsOut | HeadsIn) -> nn.Module:
    """In the type and place of the module that it stands for; trained if that was."""
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(getattr(old, name).requires_grad)
    return new.to(old.weight).train(old.training)


# T5 computes what positions add to scores [1 h i j] in its first layer, and hands it on from layer to layer. New heads
# see none of it: zeros are put there for them where it enters a layer, or is made in it, and go where it leaves.


def _keep_positions(attention: Any, heads: int) -> None:
    """Once, when a layer gets its first new head."""
    if attention.n_heads == attention.config.num_heads < heads:
        attention.register_forward_pre_hook(_enter, with_kwargs=True)
        attention.register_forward_hook(_leave)
        if attention.has_relative_attention_bias:
            attention.relative_attention_bias.register_forward_hook(partial(_make, attention))


def _enter(attention: Any, args: tuple[Any, ...], given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    added = given.get("position_bias")
    if added is None:
        return args, given
    return args, {**given, "position_bias": F.pad(added, (0, 0, 0, 0, 0, attention.n_heads - added.shape[1]))}


def _make(attention: Any, table: nn.Module, places: Any, added: Tensor) -> Tensor:
    del table, places
    return F.pad(added, (0, attention.n_heads - added.shape[-1]))


def _leave(attention: Any, args: tuple[Any, ...], output: tuple[Any, ...]) -> tuple[Any, ...]:
    del args
    attended, added, *others = output
    return attended, added[:, : attention.config.num_heads], *others
