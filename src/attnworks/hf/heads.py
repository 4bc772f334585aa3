"""Wider heads, more or fewer of them, in the attention layers of Hugging Face models.

The modules of transformers cut queries, keys and values by one width. New projections (`HeadsOut`) therefore pad all
heads with zeros to the width of the widest, and store the true columns alone. Where heads are only removed, the old
projections stay, with fewer columns. A layer that loses all heads keeps one of width zero, whose output is zero.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.attention.heads import HeadGroups, HeadMatrices, HeadWeights, carry_over, grouped
from attnworks.core.places import Slot
from attnworks.hf.anatomy import HFPart, forget_layout, hf_layers, layout_of
from attnworks.hf.head_modules import MECHANISMS_ATTRIBUTE, HeadsIn, HeadsOut, head_groups_of
from attnworks.hf.layout import AttentionLayout
from attnworks.hf.linear import is_conv1d
from attnworks.models.config import AttentionConfig
from attnworks.models.surgery import head_choice_refusal

MECHANISMS_ENTRY = "attnworks"
"""Entry of the config of a Hugging Face model: the mechanism of each head of its changed layers."""

WIDTHS_ENTRY = "attnworks_widths"
"""Entry of the config: the widths of the heads of its changed layers."""

HEADS_ENTRY = "attnworks_heads"
"""Entry of the config: the heads of its changed layers, by their numbers in the original model; -1 for a new one."""

_COUNT_ATTRIBUTES = ("num_attention_heads", "num_heads", "n_heads")
_WIDTH_ATTRIBUTES = ("all_head_size", "inner_dim", "split_size")
_HEAD_WIDTH_ATTRIBUTES = ("head_dim", "attention_head_size", "key_value_proj_dim", "head_size")


def missing_layer_reason(model: nn.Module, slot: Slot) -> str | None:
    """Why no heads of this layer can be changed; None if they can."""
    known = hf_layers(model)
    if not known:
        return f"{type(model).__name__}, {layout_of(model).problem or 'where no attention layer was found'}"
    return None if slot in known else f"no such layer among {', '.join(map(str, known))}"


def hf_refusal_to_grow(model: nn.Module, slot: Slot) -> str | None:
    """Why heads of a layer cannot be widened or added, in words; None if they can."""
    if reason := missing_layer_reason(model, slot):
        return reason
    part = hf_layers(model)[slot]
    model, layout, attention = part.place()
    if len(layout.slots) > 1:
        return "weights that several layers share"
    if not layout.heads:
        return "no heads at all"
    groups = head_groups_of(attention)
    paths = _paths(layout)
    if paths is None:
        return "projections that are not known"
    if len({*paths}) < len(paths):
        return "queries, keys and values that are one projection"
    if not all(_is_linear(model.get_submodule(path)) for path in paths):
        return "projections that are not linear layers of torch"
    if len(layout.shares) < layout.heads:
        return "keys and values that several heads share"
    if layout.turned:
        return "queries and keys that are turned by position (rotary)"
    return None if groups is None or _grows(groups) else "mechanisms that depend on the width of a head"


def _paths(layout: AttentionLayout) -> tuple[str, str, str, str] | None:
    """The projections to queries, keys and values, and that of the output; None if they are not known."""
    maps = (layout.query, layout.key, layout.value, layout.output)
    query, key, value, output = (None if columns is None else columns.path for columns in maps)
    return None if query is None or key is None or value is None or output is None else (query, key, value, output)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear | HeadsOut | HeadsIn)


def _grows(groups: HeadGroups) -> bool:
    """Whether all mechanisms work for wider heads. Their scale must be 1/sqrt(k), which the layer then replaces."""
    usual = (mechanism.default_scale(4) == 0.5 for mechanism in groups.mechanisms if mechanism.by_content)
    return all(usual) and not groups.bound_to_width()


def hf_refusal_to_shrink(model: nn.Module, slot: Slot, kept: Sequence[int]) -> str | None:
    """Why a layer cannot be reduced to these heads, in words; None if it can."""
    if reason := missing_layer_reason(model, slot):
        return reason
    layout = hf_layers(model)[slot].place()[1]
    if reason := head_choice_refusal(layout.heads, kept):
        return reason
    if (paths := _paths(layout)) is None:
        return "projections that are not known"
    if not all(_is_linear(module) or is_conv1d(module) for module in map(model.get_submodule, paths)):
        return "projections that are not linear"
    left = [sum(head in kept for head in group) for group in layout.shares]
    return "groups with different numbers of heads left" if len({*left} - {0}) > 1 else None


@torch.no_grad()
def hf_keep_heads(model: Any, part: HFPart, slot: Slot, kept: Sequence[int], heads: Sequence[HeadMatrices]) -> None:
    """Reduce a layer of a Hugging Face model to these of its heads, in place, and write that into its config."""
    attention = part.place()[-1]
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
    forget_layout(model)


def _cut(part: HFPart, slot: Slot, kept: Sequence[int]) -> None:
    """Keep the columns of the projections, and the rows of the output, of these heads alone."""
    model, layout, attention = part.place()
    chosen: dict[str, set[int]] = {}
    for columns in (layout.query, layout.key, layout.value):
        assert columns is not None
        chosen.setdefault(columns.path, set()).update(columns.index[list(kept)].flatten().tolist())
    for path, columns in chosen.items():
        _choose(model.get_submodule(path), torch.tensor(sorted(columns)), outputs=True)
    assert layout.output is not None
    _choose(model.get_submodule(layout.output.path), layout.output.index[list(kept)].flatten(), outputs=False)
    groups = sum(any(head in kept for head in group) for group in layout.shares)
    _set_sizes(attention, len(kept), layout.widths[0], len(kept) // groups)


def kept_rows(held: Sequence[int], kept: Sequence[int], slot: Slot) -> list[int]:
    """The positions of these heads in a layer that has queries and keys for the heads `held` only.

    A decoder keeps at least one, as transformers takes the length of a cache from its keys.
    """
    return [held.index(head) for head in kept if head in held] or [0] * slot.causal


def _replace_projections(part: HFPart, keys: Sequence[int], values: Sequence[int], width: int) -> None:
    """Give a layer projections to heads of these widths, padded to `width`, without values. The output bias stays."""
    model, layout, attention = part.place()
    paths = _paths(layout)
    assert paths is not None
    for path, columns in zip(paths[:3], (keys, keys, values), strict=True):
        old: Any = model.get_submodule(path)
        new = HeadsOut(_sizes(old)[0], columns, width, bias=old.bias is not None)
        model.set_submodule(path, _like(old, new))
    old = model.get_submodule(paths[3])
    new = HeadsIn(_sizes(old)[1], values, width, bias=old.bias is not None)
    model.set_submodule(paths[3], _like(old, new))
    if new.bias is not None:
        new.bias.copy_(old.bias)
    _set_sizes(attention, len(keys), width)
    forget_layout(model)


@torch.no_grad()
def hf_silence_heads(part: HFPart, silent: Collection[int]) -> None:
    """Set the rows of the output projection to zero for these heads, in place."""
    model, layout, _ = part.place()
    assert layout.output is not None
    rows = layout.output.index[list(silent)].flatten()
    module: Any = model.get_submodule(layout.output.path)
    if isinstance(module, HeadsIn):
        module.silence(silent)
    elif is_conv1d(module):
        module.weight[rows] = 0.0
    else:
        module.weight[:, rows] = 0.0


def _set_sizes(attention: Any, heads: int, width: int, per_group: int = 1) -> None:
    """Set those of the attributes for the number of heads and their total width that the module has."""
    sizes = dict.fromkeys(_COUNT_ATTRIBUTES, heads) | dict.fromkeys(_WIDTH_ATTRIBUTES, heads * width)
    sizes |= dict.fromkeys(_HEAD_WIDTH_ATTRIBUTES, width)
    for name, size in {**sizes, "num_key_value_groups": per_group}.items():
        if hasattr(attention, name):
            setattr(attention, name, size)


def _sizes(module: Any) -> tuple[int, int]:
    """Inputs and outputs of a linear map."""
    rows, columns = module.weight.shape
    return (rows, columns) if is_conv1d(module) else (columns, rows)


def _weights(part: HFPart) -> HeadWeights:
    assert part.weights is not None
    return part.weights()


def _choose(module: Any, numbers: Tensor, *, outputs: bool) -> None:
    """Keep these outputs, or these inputs, of a linear map."""
    weight = module.weight
    axis = int(outputs) if is_conv1d(module) else int(not outputs)
    numbers = numbers.to(weight.device)
    module.weight = nn.Parameter(weight.index_select(axis, numbers), requires_grad=weight.requires_grad)
    if outputs and module.bias is not None:
        bias = module.bias
        module.bias = nn.Parameter(bias.index_select(0, numbers), requires_grad=bias.requires_grad)
    names = ("nf", "nx") if is_conv1d(module) else ("out_features", "in_features")
    setattr(module, names[int(not outputs)], len(numbers))


@torch.no_grad()
def hf_put_heads(
    model: Any, part: HFPart, slot: Slot, heads: Sequence[HeadMatrices], origins: Sequence[int | None]
) -> None:
    """Put a layer of a Hugging Face model together from these heads, in place, and write that into its config.

    origins    the number that each head had in the layer before; None for a new one
    """
    _, layout, attention = part.place()
    paths = _paths(layout)
    assert paths is not None
    _write_origins(model, attention, slot, origins)
    resize(model, part, slot, [head.W_Q.shape[1] for head in heads], [head.W_V.shape[1] for head in heads])
    for path, weight, bias in zip(paths, ("W_Q", "W_K", "W_V"), ("b_Q", "b_K", "b_V"), strict=False):
        projection = model.get_submodule(path)
        assert isinstance(projection, HeadsOut)
        projection.weight.copy_(torch.cat([getattr(head, weight).T for head in heads]))
        if projection.bias is not None:
            projection.bias.copy_(torch.cat([getattr(head, bias) for head in heads]))
    output = model.get_submodule(paths[3])
    assert isinstance(output, HeadsIn)
    output.weight.copy_(torch.cat([head.W_O for head in heads]).T)
    _regroup(model, part, slot, origins)


def _regroup(model: Any, part: HFPart, slot: Slot, origins: Sequence[int | None]) -> None:
    """Rebuild the HeadGroups of a layer, if it has any, for the heads that it has now."""
    _, layout, attention = part.place()
    if (old := head_groups_of(attention)) is None:
        return
    by_head = old.by_head()
    specs = tuple("dense" if origin is None else by_head[origin] for origin in origins)
    described = {other: of for other, of in model.config.attnworks.items() if other != str(slot)}
    if not specs:
        delattr(attention, MECHANISMS_ATTRIBUTE)
    else:
        new = HeadGroups(grouped(specs), *layout.widths).to(next(part.branch.parameters())).train(attention.training)
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
    _write_origins(model, part.place()[-1], slot, origins or [head if head < before else None for head in range(now)])
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
