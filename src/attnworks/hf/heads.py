"""Wider heads, more or fewer of them, in the attention layers of Hugging Face models.

The modules of transformers cut queries, keys and values by one width. New projections (`HeadsOut`) therefore pad all
heads with zeros to the width of the widest, and store the true columns alone. Where heads are only removed, the old
projections stay, with fewer columns. A layer that loses all heads keeps one of width zero, whose output is zero.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from attnworks.attention.heads import HeadGroups, HeadMatrices, HeadWeights, carry_over, grouped
from attnworks.core.places import Slot
from attnworks.hf.anatomy import MECHANISMS_ATTRIBUTE, HeadsIn, HeadsOut, HFPart, head_groups_of, hf_anatomy
from attnworks.models.anatomy import attention_layers, heads_of
from attnworks.models.config import AttentionConfig
from attnworks.models.surgery import head_choice_refusal, missing_heads_reason

MECHANISMS_ENTRY = "attnworks"
"""Entry of the config of a Hugging Face model: the mechanism of each head of its changed layers."""

WIDTHS_ENTRY = "attnworks_widths"
"""Entry of the config: the widths of the heads of its changed layers."""

HEADS_ENTRY = "attnworks_heads"
"""Entry of the config: the heads of its changed layers, by their numbers in the original model; -1 for a new one."""

_COUNT_ATTRIBUTES = ("num_attention_heads", "num_heads", "n_heads")
_WIDTH_ATTRIBUTES = ("all_head_size", "inner_dim", "split_size")


def hf_layers(model: nn.Module) -> dict[Slot, HFPart]:
    """Every attention layer of a Hugging Face model whose module and weights are known and its own."""
    parts = attention_layers(hf_anatomy(model))
    return {slot: part for slot, part in parts.items() if isinstance(part, HFPart)}


def hf_refusal_to_grow(model: nn.Module, slot: Slot) -> str | None:
    """Why heads of a layer cannot be widened or added, in words; None if they can."""
    if reason := missing_heads_reason(model, hf_anatomy(model), slot):
        return reason
    part = hf_layers(model)[slot]
    if not heads_of(part):
        return "no heads at all"
    (block, at, attention), W = part.layer, _weights(part)
    query, key, value = at.query, at.key, at.value
    groups = head_groups_of(attention)
    if max(query.pieces, key.pieces, value.pieces) > 1:
        return "queries, keys and values that are one projection"
    if not all(_is_linear(block.get_submodule(path)) for path in (query.path, key.path, value.path, at.output)):
        return "projections that are not linear layers of torch"
    if W.groups < len(W.W_Q):
        return "keys and values that several heads share"
    if any("rotary" in name for name, _ in model.named_modules()):
        return "queries and keys that are turned by position (rotary)"
    if part.shrinkable is not None and groups is not None and len(groups.content_heads) < groups.count:
        return "heads that attend by position alone, and have neither queries nor keys"
    return None if groups is None or _grows(groups) else "mechanisms that depend on the width of a head"


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | HeadsOut | HeadsIn)


def _grows(groups: HeadGroups) -> bool:
    """Whether all mechanisms work for wider heads. Their scale must be 1/sqrt(k), which the layer then replaces."""
    usual = (mechanism.default_scale(4) == 0.5 for mechanism in groups.mechanisms if mechanism.by_content)
    return all(usual) and not groups.bound_to_width()


def hf_refusal_to_shrink(model: nn.Module, slot: Slot, kept: Sequence[int]) -> str | None:
    """Why a layer cannot be reduced to these heads, in words; None if it can."""
    if reason := missing_heads_reason(model, hf_anatomy(model), slot):
        return reason
    part = hf_layers(model)[slot]
    if reason := head_choice_refusal(len(heads_of(part)), kept):
        return reason
    block, at, _ = part.layer
    modules = [block.get_submodule(path) for path in (at.query.path, at.key.path, at.value.path, at.output)]
    if not all(_is_linear(module) or _is_conv1d(module) for module in modules):
        return "projections that are not linear"
    W = _weights(part)
    left = Counter(head * W.groups // len(W.W_Q) for head in kept)
    return "groups with different numbers of heads left" if len({*left.values()}) > 1 else None


@torch.no_grad()
def hf_keep_heads(model: Any, part: HFPart, slot: Slot, kept: Sequence[int], heads: Sequence[HeadMatrices]) -> None:
    """Reduce a layer of a Hugging Face model to these of its heads, in place, and write that into its config."""
    attention = part.layer[-1]
    widths = getattr(model.config, WIDTHS_ENTRY, {})
    if not kept:
        _replace_projections(part, [0], [0], 1)
        attention.attnworks_empty = True
        model.config.attnworks_widths = {other: widths[other] for other in widths if other != str(slot)}
    elif str(slot) in widths:
        hf_put_heads(model, part, slot, [heads[head] for head in kept], kept)
        return
    else:
        _cut(part, slot, kept)
    _write_origins(model, attention, slot, kept)
    _regroup(model, part, slot, kept)


def _cut(part: HFPart, slot: Slot, kept: Sequence[int]) -> None:
    """Keep the columns of the projections, and the rows of the output, of these heads alone."""
    (block, at, attention), W = part.layer, _weights(part)
    groups = head_groups_of(attention)
    width, count = getattr(attention, at.width), len(W.W_O)
    shared = list(dict.fromkeys(head * W.groups // count for head in kept))
    keys = held = kept if groups is None or part.shrinkable is None else kept_rows(groups.content_heads, kept, slot)
    values = kept
    if W.groups < count:
        keys = values = shared
    left = {at.query.path: (at.query, held), at.key.path: (at.key, keys), at.value.path: (at.value, values)}
    for path, (place, chosen) in left.items():
        module: Any = block.get_submodule(path)
        columns = torch.arange(_sizes(module)[1])
        if place.per_head:
            columns = columns.unflatten(0, (-1, place.pieces * width))[list(chosen)]  # [h (pieces k)]
        else:
            columns = columns.unflatten(0, (place.pieces, -1, width))[:, list(chosen)]  # [pieces h k]
        _choose(module, columns.flatten(), outputs=True)
    rows = torch.arange(count * W.W_V.shape[-1]).unflatten(0, (count, -1))[list(kept)].flatten()
    _choose(block.get_submodule(at.output), rows, outputs=False)
    _set_sizes(attention, len(kept), width, len(kept) // len(shared))


def kept_rows(held: Sequence[int], kept: Sequence[int], slot: Slot) -> list[int]:
    """The positions of these heads in a layer that has queries and keys for the heads `held` only.

    A decoder keeps at least one, as transformers takes the length of a cache from its keys.
    """
    return [held.index(head) for head in kept if head in held] or [0] * slot.causal


def _replace_projections(part: HFPart, keys: Sequence[int], values: Sequence[int], width: int) -> None:
    """Give a layer projections to heads of these widths, padded to `width`, without values. The output bias stays."""
    block, at, attention = part.layer
    widths = {at.query: keys, at.key: keys, at.value: values}
    for path, columns in {place.path: [*each] * place.pieces for place, each in widths.items()}.items():
        old: Any = block.get_submodule(path)
        new = HeadsOut(_sizes(old)[0], columns, width, bias=old.bias is not None)
        block.set_submodule(path, _like(old, new))
    old = block.get_submodule(at.output)
    new = HeadsIn(_sizes(old)[1], values, width, bias=old.bias is not None)
    block.set_submodule(at.output, _like(old, new))
    if new.bias is not None:
        new.bias.copy_(old.bias)
    setattr(attention, at.width, width)
    _set_sizes(attention, len(keys), width)


def _set_sizes(attention: Any, heads: int, width: int, per_group: int = 1) -> None:
    """Set those of the attributes for the number of heads and their total width that the module has."""
    sizes = dict.fromkeys(_COUNT_ATTRIBUTES, heads) | dict.fromkeys(_WIDTH_ATTRIBUTES, heads * width)
    for name, size in {**sizes, "num_key_value_groups": per_group}.items():
        if hasattr(attention, name):
            setattr(attention, name, size)


def _is_conv1d(module: nn.Module) -> bool:
    """Whether a module is GPT-2's linear map, whose weight is [inputs outputs]."""
    return type(module).__name__ == "Conv1D"


def _sizes(module: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear map."""
    rows, columns = module.weight.shape
    return (rows, columns) if _is_conv1d(module) else (columns, rows)


def _weights(part: HFPart) -> HeadWeights:
    assert part.weights is not None
    return part.weights()


def _choose(module: Any, numbers: Tensor, *, outputs: bool) -> None:
    """Keep these outputs, or these inputs, of a linear map."""
    weight = module.weight
    axis = int(outputs) if _is_conv1d(module) else int(not outputs)
    numbers = numbers.to(weight.device)
    module.weight = nn.Parameter(weight.index_select(axis, numbers), requires_grad=weight.requires_grad)
    if outputs and module.bias is not None:
        bias = module.bias
        module.bias = nn.Parameter(bias.index_select(0, numbers), requires_grad=bias.requires_grad)
    names = ("nf", "nx") if _is_conv1d(module) else ("out_features", "in_features")
    setattr(module, names[int(not outputs)], len(numbers))


@torch.no_grad()
def hf_put_heads(
    model: Any, part: HFPart, slot: Slot, heads: Sequence[HeadMatrices], origins: Sequence[int | None]
) -> None:
    """Put a layer of a Hugging Face model together from these heads, in place, and write that into its config.

    origins    the number that each head had in the layer before; None for a new one
    """
    block, at, attention = part.layer
    _write_origins(model, attention, slot, origins)
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
    _regroup(model, part, slot, origins)


def _regroup(model: Any, part: HFPart, slot: Slot, origins: Sequence[int | None]) -> None:
    """Rebuild the HeadGroups of a layer, if it has any, for the heads that it has now."""
    block, at, attention = part.layer
    if (old := head_groups_of(attention)) is None:
        return
    by_head = old.by_head()
    specs = tuple("dense" if origin is None else by_head[origin] for origin in origins)
    described = {other: of for other, of in model.config.attnworks.items() if other != str(slot)}
    if not specs:
        delattr(attention, MECHANISMS_ATTRIBUTE)
    else:
        width, output = getattr(attention, at.width), cast("Any", block.get_submodule(at.output))
        new = HeadGroups(grouped(specs), width, width).to(output.weight).train(attention.training)
        carry_over(old, new, origins)
        setattr(attention, MECHANISMS_ATTRIBUTE, new)
        described[str(slot)] = list(specs)
    model.config.attnworks = described


def _write_origins(model: Any, attention: Any, slot: Slot, origins: Sequence[int | None]) -> None:
    """Write into the config the original number of each head. T5's position bias has one column for each."""
    model.config.attnworks = getattr(model.config, MECHANISMS_ENTRY, {})
    known: dict[str, list[int]] = getattr(model.config, HEADS_ENTRY, {})
    before = known.get(str(slot))
    first = [-1 if origin is None else before[origin] if before else origin for origin in origins]
    model.config.attnworks_heads = {**known, str(slot): first}
    if hasattr(attention, "relative_attention_num_buckets"):
        _hook_positions(attention, first)


def restore_heads(
    model: Any, part: HFPart, slot: Slot, widths: dict[str, Any] | None, first: Sequence[int] | None
) -> None:
    """Give an unchanged layer the heads that the config of a folder describes. Weights are loaded later.

    widths    of keys and values of each head, if the config has them
    first     original numbers of the heads, -1 for new ones, if the config has them
    """
    origins = None if first is None else [None if head < 0 else head for head in first]
    if widths is None:
        assert origins is not None and None not in origins
        hf_keep_heads(model, part, slot, [head for head in origins if head is not None], ())
        return
    before, now = len(_weights(part).W_O), len(widths["keys"])
    _write_origins(model, part.layer[-1], slot, origins or [head if head < before else None for head in range(now)])
    resize(model, part, slot, widths["keys"], widths["values"])


@torch.no_grad()
def resize(model: Any, part: HFPart, slot: Slot, keys: Sequence[int], values: Sequence[int]) -> None:
    """Give a layer heads of these widths, in place, whose values are yet to be written."""
    widths = AttentionConfig(heads=len(keys), d_k=tuple(keys), d_v=tuple(values))
    _replace_projections(part, keys, values, max(*widths.key_widths, *widths.value_widths))
    model.config.attnworks = getattr(model.config, MECHANISMS_ENTRY, {})
    described = {str(slot): {"keys": list(keys), "values": list(values)}}
    model.config.attnworks_widths = {**getattr(model.config, WIDTHS_ENTRY, {}), **described}


def _like(old: Any, new: HeadsOut | HeadsIn) -> nn.Module:
    """The new module with the dtype, device, training mode and trainable parameters of the old one."""
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(getattr(old, name).requires_grad)
    return new.to(old.weight).train(old.training)


# T5 computes its position bias [1 h i j] in the first layer, and each layer passes it to the next. A layer with removed
# or new heads selects the slices of its heads, with zeros for new ones, and passes on the bias of all original heads.


def _hook_positions(attention: Any, origins: Sequence[int]) -> None:
    hooked = hasattr(attention, "attnworks_origins")
    attention.attnworks_origins = list(origins)
    if not hooked:
        attention.register_forward_pre_hook(_select_positions, with_kwargs=True)
        attention.register_forward_hook(_restore_positions)
        if attention.has_relative_attention_bias:
            attention.relative_attention_bias.register_forward_hook(partial(_store_positions, attention))


def _select_positions(
    attention: Any, args: tuple[Any, ...], given: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    added = attention.attnworks_all_positions = given.get("position_bias")
    if added is None:
        return args, given
    return args, {**given, "position_bias": _of_heads(added, attention.attnworks_origins, 1)}


def _store_positions(attention: Any, _: nn.Module, __: Any, added: Tensor) -> Tensor:
    attention.attnworks_all_positions = added.permute(2, 0, 1).unsqueeze(0)
    return _of_heads(added, attention.attnworks_origins, 2)


def _restore_positions(attention: Any, _: Any, output: tuple[Any, ...]) -> tuple[Any, ...]:
    attended, added, *others = output
    whole, attention.attnworks_all_positions = attention.attnworks_all_positions, None
    if whole is None:
        whole = added.new_zeros(1, attention.config.num_heads, *added.shape[2:])
    return attended, whole, *others


def _of_heads(added: Tensor, origins: Sequence[int], axis: int) -> Tensor:
    """The slices of these heads along the axis; zeros for new heads, and for the one of a layer without heads."""
    nothing = added.new_zeros(*added.shape[:axis], 1, *added.shape[axis + 1 :])
    return torch.cat([nothing if head < 0 else added.narrow(axis, head, 1) for head in origins or (-1,)], axis)
