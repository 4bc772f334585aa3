"""Wider heads, more or fewer of them, in the attention layers of Hugging Face models.

The modules of transformers cut queries, keys and values by one width. New projections (`HeadsOut`) therefore pad all
heads with zeros to the width of the widest, and store the true columns alone. Where heads are only removed, the old
projections stay, with fewer columns (`cut/`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.attention.heads import HeadGroups, HeadMatrices
from attnworks.core.errors import short_message
from attnworks.core.notation import tolerance
from attnworks.core.places import Slot
from attnworks.hf import quiet
from attnworks.hf.added_columns import add_columns, describe
from attnworks.hf.added_maps import added_to
from attnworks.hf.added_proof import failed_proof
from attnworks.hf.anatomy import HFPart, forget_layout, hf_layers, layout_of
from attnworks.hf.cut.groups import keep_groups
from attnworks.hf.cut.keep import cut_heads, refusal_to_keep
from attnworks.hf.cut.recipe import PLAIN, Form
from attnworks.hf.cut.stored import KEPT_HEADS
from attnworks.hf.evidence.cut_graph import first_floats
from attnworks.hf.evidence.inputs import probe_run
from attnworks.hf.head_modules import HeadsIn, HeadsOut, head_groups_of
from attnworks.hf.layout import AttentionLayout
from attnworks.hf.linear import is_conv1d
from attnworks.hf.position_bias import has_position_bias, select_positions
from attnworks.models.anatomy import heads_of
from attnworks.models.config import AttentionConfig
from attnworks.models.modes import inference_mode, plain_experts
from attnworks.models.surgery import head_choice_refusal

MECHANISMS_ENTRY = "attnworks"
"""Entry of the config of a Hugging Face model: the mechanism of each head of its changed layers."""

WIDTHS_ENTRY = "attnworks_widths"
"""Entry of the config: the widths of the heads of its changed layers."""

HEADS_ENTRY = "attnworks_heads"
"""Entry of the config: the heads of its changed layers, by their numbers in the original model; -1 for a new one."""

ADDED_ENTRY = "attnworks_added"
"""Entry of the config: the columns and heads that were added beside the projections of its changed layers."""

GROWTH_ATTRIBUTE = "_attnworks_growth"
"""The attribute of a model that holds what was tried of growing it."""

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
    _, layout, attention = hf_layers(model)[slot].place()
    if len(layout.slots) > 1:
        return "weights that are used more than once in a forward pass"
    if not layout.heads:
        return "no heads, as all of them were cut"
    if (groups := head_groups_of(attention)) is not None and not _grows(groups):
        return "mechanisms that depend on the width of a head"
    return None if _widens_in_place(model, layout, slot) else _failed_proof(model, layout, slot)


def _widens_in_place(model: nn.Module, layout: AttentionLayout, slot: Slot) -> bool:
    """Whether the projections of a layer can be replaced by wider ones: each of its own, and nothing done to columns.

    In all other layers columns are added beside the projections.
    """
    attention, paths = model.get_submodule(layout.path), projection_paths(layout)
    if paths is None or added_to(attention) is not None or hasattr(attention, KEPT_HEADS) or not layout.interface:
        return False
    if any(isinstance(model.get_submodule(path), HeadsOut) for path in paths):
        return True
    apart = len({*paths}) == len(paths) and len(layout.shares) == layout.heads and not layout.turned
    linear = all(_is_linear(model.get_submodule(path)) for path in paths)
    return apart and linear and layout.factor is not None and not layout.problems and _widening_is_proven(model, slot)


def _widening_is_proven(model: nn.Module, slot: Slot) -> bool:
    """Whether a copy of the model in which a head has one more column, without effect yet, gives the same outputs.

    This is tried once for all layers of the same class.
    """
    part, known = hf_layers(model)[slot], _facts(model)
    key = f"widening {type(part.attention).__name__} {slot.kind}"
    if key not in known:
        new = copy.deepcopy(model)
        try:
            heads = heads_of(hf_layers(new)[slot])
            widest = max(range(len(heads)), key=lambda head: heads[head].W_Q.shape[1])
            first = heads[widest]
            heads[widest] = first._replace(
                W_Q=_with_zeros(first.W_Q, 1),
                W_K=_with_zeros(first.W_K, 1),
                b_Q=None if first.b_Q is None else _with_zeros(first.b_Q, 0),
                b_K=None if first.b_K is None else _with_zeros(first.b_K, 0),
            )
            _widen(new, hf_layers(new)[slot], slot, heads, [*range(len(heads))])
            before, after = (_outputs(each)() for each in (model, new))
            close = bool((after - before).abs().max() <= 10 * tolerance(before.dtype).rtol * before.abs().max())
            known[key] = None if close else "other outputs"
        except Exception as error:  # whatever the code of a model raises, columns are then added beside
            known[key] = short_message(error)
    return known[key] is None


def _with_zeros(T: Tensor, axis: int) -> Tensor:
    shape = [1 if number == axis else size for number, size in enumerate(T.shape)]
    return torch.cat([T, T.new_zeros(shape)], axis)


def _facts(model: nn.Module) -> dict[str, str | None]:
    """What was tried on a model, and why it failed; None if it did not."""
    return vars(model).setdefault(GROWTH_ATTRIBUTE, {})


def _outputs(model: nn.Module) -> Callable[[], Tensor]:
    """A function that runs the model on a few random ids and returns its outputs."""
    run = probe_run(model)

    def read() -> Tensor:
        with inference_mode(model), quiet(), plain_experts(model):
            found = first_floats(run())
        assert found is not None
        return found

    return read


def _failed_proof(model: nn.Module, layout: AttentionLayout, slot: Slot) -> str | None:
    """The reason of `failed_proof`, which is run once for each layer of a model."""
    known = _facts(model)
    if layout.path not in known:
        try:
            known[layout.path] = failed_proof(model, layout, slot, _outputs(model))
        except Exception:  # whatever the code of a model raises
            known[layout.path] = "attention that cannot be computed with added columns"
    return known[layout.path]


def projection_paths(layout: AttentionLayout) -> tuple[str, str, str, str] | None:
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
    """Why a layer cannot be reduced to these heads, in words; None if it can, as far as can be told in advance."""
    if reason := missing_layer_reason(model, slot):
        return reason
    layout = hf_layers(model)[slot].place()[1]
    if reason := head_choice_refusal(layout.heads, kept):
        return reason
    if list(kept) != sorted(kept):
        return "heads in another order"
    if _is_widened(model, layout):
        return None
    return None if len(kept) == layout.heads else refusal_to_keep(model, slot, kept)


@torch.no_grad()
def hf_keep_heads(model: Any, kept: Mapping[Slot, Sequence[int]]) -> dict[Slot, Form]:
    """Reduce layers of a Hugging Face model to these of their heads, in place, and write that into its config.

    The form of every cut is returned. If the model does not compute what it did with the other heads set to zero, it
    stays as it was, and a UsageError says so.
    """
    layers = hf_layers(model)
    parts = {slot: layers[slot] for slot in kept}
    widened = {slot for slot, part in parts.items() if _is_widened(model, part.place()[1])}
    forms = cut_heads(model, {slot: heads for slot, heads in kept.items() if slot not in widened})
    by_module = {part.attention: kept[slot] for slot, part in parts.items()}
    for slot in forms:
        attention = layers[slot].attention
        _write_heads(model, attention, slot, by_module[attention])
    for slot in widened:
        _keep_widened(model, parts[slot], slot, kept[slot])
    return {**forms, **dict.fromkeys(widened, PLAIN)}


def _is_widened(model: nn.Module, layout: AttentionLayout) -> bool:
    """Whether a layer has projections to heads of unequal widths."""
    return layout.output_path is not None and isinstance(model.get_submodule(layout.output_path), HeadsIn)


def _keep_widened(model: Any, part: HFPart, slot: Slot, kept: Sequence[int]) -> None:
    if kept:
        heads = heads_of(part)
        hf_put_heads(model, part, slot, [heads[head] for head in kept], kept)
        return
    cut_heads(model, {slot: kept})
    _write_heads(model, part.attention, slot, kept)
    widths = getattr(model.config, WIDTHS_ENTRY)
    model.config.attnworks_widths = {other: of for other, of in widths.items() if other != str(slot)}


def _replace_projections(
    model: nn.Module, attention: nn.Module, paths: Sequence[str], keys: Sequence[int], values: Sequence[int], width: int
) -> None:
    """Give a layer projections to heads of these widths, padded to `width`, without values. The output bias stays."""
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


@torch.no_grad()
def hf_put_heads(
    model: Any, part: HFPart, slot: Slot, heads: Sequence[HeadMatrices], origins: Sequence[int | None]
) -> None:
    """Put a layer of a Hugging Face model together from these heads, in place, and write that into its config.

    origins    the number that each head had in the layer before; None for a new one
    """
    _, layout, attention = part.place()
    if _widens_in_place(model, layout, slot):
        _widen(model, part, slot, heads, origins)
        return
    add_columns(model, layout, slot, heads, heads_of(part))
    _write_added(model, attention, slot)


@torch.no_grad()
def _widen(model: Any, part: HFPart, slot: Slot, heads: Sequence[HeadMatrices], origins: Sequence[int | None]) -> None:
    """Replace the projections of a layer by those to these heads, in place."""
    _, layout, attention = part.place()
    paths = projection_paths(layout)
    assert paths is not None
    keep_groups(attention, origins, layout.widths)
    first = _write_heads(model, attention, slot, origins)
    keys, values = [head.W_Q.shape[1] for head in heads], [head.W_V.shape[1] for head in heads]
    resize(model, attention, slot, paths, keys, values, first)
    for path, weight, bias in zip(paths, ("W_Q", "W_K", "W_V"), ("b_Q", "b_K", "b_V"), strict=False):
        projection = model.get_submodule(path)
        assert isinstance(projection, HeadsOut)
        projection.weight.copy_(torch.cat([getattr(head, weight).T for head in heads]))
        if projection.bias is not None:
            projection.bias.copy_(torch.cat([getattr(head, bias) for head in heads]))
    output = model.get_submodule(paths[3])
    assert isinstance(output, HeadsIn)
    output.weight.copy_(torch.cat([head.W_O for head in heads]).T)


def _write_added(model: Any, attention: nn.Module, slot: Slot) -> None:
    """Write into the config what was added to a layer."""
    others = {name: of for name, of in getattr(model.config, ADDED_ENTRY, {}).items() if name != str(slot)}
    added = added_to(attention)
    model.config.attnworks = getattr(model.config, MECHANISMS_ENTRY, {})
    model.config.attnworks_added = others if added is None else {**others, str(slot): describe(added)}


def _write_heads(model: Any, attention: Any, slot: Slot, origins: Sequence[int | None]) -> list[int]:
    """Write into the config the original number of each head, -1 for new ones, and its mechanism; the numbers."""
    known: dict[str, list[int]] = getattr(model.config, HEADS_ENTRY, {})
    before = known.get(str(slot))
    first = [-1 if origin is None else before[origin] if before else origin for origin in origins]
    model.config.attnworks_heads = {**known, str(slot): first}
    described = {name: of for name, of in getattr(model.config, MECHANISMS_ENTRY, {}).items() if name != str(slot)}
    if (groups := head_groups_of(attention)) is not None:
        described[str(slot)] = list(groups.by_head())
    model.config.attnworks = described
    return first


@torch.no_grad()
def resize(
    model: Any,
    attention: nn.Module,
    slot: Slot,
    paths: Sequence[str],
    keys: Sequence[int],
    values: Sequence[int],
    first: Sequence[int],
) -> None:
    """Give a layer heads of these widths, in place, whose values are yet to be written.

    paths    of the projections to queries, keys and values, and of the output projection
    first    the original numbers of the heads, -1 for new ones
    """
    if has_position_bias(attention):
        select_positions(attention, first)
    widths = AttentionConfig(heads=len(keys), d_k=tuple(keys), d_v=tuple(values))
    _replace_projections(model, attention, paths, keys, values, max(*widths.key_widths, *widths.value_widths))
    model.config.attnworks = getattr(model.config, MECHANISMS_ENTRY, {})
    described = {str(slot): {"keys": list(keys), "values": list(values)}}
    model.config.attnworks_widths = {**getattr(model.config, WIDTHS_ENTRY, {}), **described}


def _like(old: Any, new: HeadsOut | HeadsIn) -> nn.Module:
    """The new module with the dtype, device, training mode and trainable parameters of the old one."""
    for name, parameter in new.named_parameters():
        parameter.requires_grad_(getattr(old, name).requires_grad)
    return new.to(old.weight).train(old.training)
