"""The attention layers and blocks of a Hugging Face model as parts, with head-first weights.

They come from its layout, which is found by evidence from one forward pass (`evidence/`) when it is first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnworks.attention import Geometry
from attnworks.attention.heads import HeadWeights
from attnworks.core.errors import UsageError, short_message
from attnworks.core.places import Kind, Slot
from attnworks.hf import quiet
from attnworks.hf.added_columns import input_projection, input_sizes, with_added_columns, without_added_columns
from attnworks.hf.added_maps import added_to
from attnworks.hf.evidence.cut_graph import cut_pass
from attnworks.hf.evidence.inputs import probe_run
from attnworks.hf.evidence.layers import attention_layouts
from attnworks.hf.evidence.streams import block_layouts, numbered_by_blocks
from attnworks.hf.head_modules import HeadsOut, head_groups_of
from attnworks.hf.layout import AttentionLayout, BlockLayout, HeadColumns, ModelLayout, PartLayout
from attnworks.hf.linear import LinearMap, matrix_of
from attnworks.hf.observe import observe_interface
from attnworks.hf.swapped_attention import own_attention
from attnworks.models.anatomy import BlockAnatomy, Part, Role, ValueWeights
from attnworks.models.modes import eval_mode, plain_experts

ModelKind = Literal["encoder", "decoder", "encoder-decoder"]
CROSS_ATTENTION_NAMES = ("cross", "encoder_attn", "encdec")
"""Parts of the names that transformers gives to cross-attention."""
LAYOUT_ATTRIBUTE = "_attnworks_layout"
"""The attribute of a model that holds its layout."""


@dataclass(frozen=True, eq=False)
class HFPart(Part):
    """An attention layer of a Hugging Face model.

    attention    the module that transformers passes to attention functions
    """

    model: nn.Module | None = None
    layout: AttentionLayout | None = None

    @property
    def heads(self) -> int:
        _, layout, attention = self.place()
        added = added_to(attention)
        return layout.heads if added is None else added.heads

    def growing_weights(self) -> HeadWeights:
        """The weights, or, where they are not known, those of the columns that were added to the layer alone."""
        return _bare_weights(*self.place()) if self.weights is None else self.weights()

    def geometry(self) -> Geometry:
        _, layout, attention = self.place()
        if (added := added_to(attention)) is None:
            return Geometry(layout.heads, *layout.widths)
        k, v = (
            max(width + (own if head < layout.heads else 0) for head, width in enumerate(widths))
            for own, widths in zip(layout.widths, (added.shape.keys, added.shape.values), strict=True)
        )
        return Geometry(added.heads, k, v)

    def W_O(self) -> Float[Tensor, "h v e"] | None:
        model, layout, attention = self.place()
        if layout.output is None or "gate" in layout.problems or "output" in layout.problems:
            return None
        if added_to(attention) is not None:
            return None if self.weights is None else self.weights().W_O
        return _rows_by_head(_linear(model, layout.output).weight, layout.output.index)

    def multiply_adds(self) -> int:
        model, layout, attention = self.place()
        if not layout.heads:
            return 0
        paths = {source.path for source in layout.sources if not source.is_parameter} | {layout.output_path}
        modules: list[Any] = [model.get_submodule(path) for path in paths if path is not None]
        if (added := added_to(attention)) is not None:
            modules += [each for each in (added.query, added.key, added.value, added.output) if each is not None]
        return sum(module.weight.numel() for module in modules if matrix_of(module) is not None)

    def value_weights(self) -> ValueWeights | None:
        model, layout, attention = self.place()
        if self.weights is not None:
            return super().value_weights()
        if layout.value is None or layout.output is None or "output" in layout.problems:
            return None
        if added_to(attention) is not None:
            return None
        (W_V, b_V), output = _by_head(model, layout.value), _linear(model, layout.output)
        return ValueWeights(W_V, _rows_by_head(output.weight, layout.output.index), b_V, output.bias)

    def place(self) -> tuple[nn.Module, AttentionLayout, Any]:
        """The model, the layout of the layer, and its attention module."""
        assert self.model is not None and self.layout is not None and self.attention is not None
        return self.model, self.layout, self.attention


def layout_of(model: nn.Module) -> ModelLayout:
    """Where the parts of a model sit. It is found once, and kept with the model until `forget_layout`."""
    found = vars(model).get(LAYOUT_ATTRIBUTE)
    if found is None:
        found = _find_layout(model)
        vars(model)[LAYOUT_ATTRIBUTE] = found
    return found


def forget_layout(model: nn.Module) -> None:
    """Call this after a change of the modules of a model: its layout is then found anew."""
    vars(model).pop(LAYOUT_ATTRIBUTE, None)


def _find_layout(model: nn.Module) -> ModelLayout:
    try:
        with ExitStack() as stack:
            for context in (torch.inference_mode(False), eval_mode(model), quiet(), torch.random.fork_rng([])):
                stack.enter_context(context)
            stack.enter_context(plain_experts(model))
            stack.enter_context(own_attention(model))
            stack.enter_context(without_added_columns(model))
            run = probe_run(model)
            with cut_pass(model, run) as cut:
                layers = attention_layouts(model, cut)
            with observe_interface(model):
                blocks = block_layouts(model, run, {layer.path: layer.slots[0].kind for layer in layers})
    except UsageError as error:
        return ModelLayout((), (), error.got)
    except Exception as error:
        return ModelLayout((), (), f"it does not run on a few token ids alone ({short_message(error)})")
    return ModelLayout(numbered_by_blocks(layers, blocks), blocks)


def hf_anatomy(model: nn.Module) -> tuple[BlockAnatomy, ...] | None:
    """The blocks of a Hugging Face model, encoder before decoder; None where they do not add up to the stream."""
    layout = layout_of(model)
    if not layout.blocks or problem_of_blocks(model) is not None:
        return None
    slots = {layer.path: iter(layer.slots) for layer in layout.layers}
    return tuple(_block(model, layout, block, slots) for block in layout.blocks)


def problem_of_blocks(model: nn.Module) -> str | None:
    """Why the first block that is no sum of the stream and its parts is none, in words."""
    return next((block.problem for block in layout_of(model).blocks if block.problem), None)


def hf_layers(model: nn.Module) -> dict[Slot, HFPart]:
    """Every attention layer of a Hugging Face model whose heads are known, in the order in which they run.

    Layers that share their weights have the same module.
    """
    layout = layout_of(model)
    places = {part.attention: part for block in layout.blocks for part in block.parts if part.attention is not None}
    found: dict[Slot, HFPart] = {}
    for layer in layout.layers:
        for slot in layer.slots if layer.output_path is not None else ():
            role: Role = "cross" if slot.crosses else "self"
            place = places.get(layer.path) or PartLayout(role, layer.output_path or "", None, layer.path)
            found[slot] = _attention_part(model, layer, place)
    return dict(sorted(found.items(), key=lambda item: item[0].order))


def _block(
    model: nn.Module, layout: ModelLayout, block: BlockLayout, slots: Mapping[str, Iterator[Slot]]
) -> BlockAnatomy:
    parts = tuple(_part(model, layout, place, slots) for place in block.parts)
    return BlockAnatomy(block.kind, block.layer, model.get_submodule(block.path), parts, block.order)


def _part(model: nn.Module, layout: ModelLayout, place: PartLayout, slots: Mapping[str, Iterator[Slot]]) -> Part:
    """A part of a block; `slots` gives the layers of each attention module in the order in which they run."""
    for layer in layout.layers:
        if layer.path == place.attention:
            slot = next(slots[layer.path], layer.slots[-1])
            return replace(_attention_part(model, layer, place), number=slot.layer)
    branch, norm, bias = model.get_submodule(place.branch), _submodule(model, place.norm), _parameter(model, place.bias)
    return Part(place.role, branch, norm, None, None, factor=place.factor, bias=bias, step=place.step)


def _attention_part(model: nn.Module, layer: AttentionLayout, place: PartLayout) -> HFPart:
    known = all(columns is not None for columns in (layer.query, layer.key, layer.value, layer.output))
    attention = model.get_submodule(layer.path)
    added = added_to(attention)
    new = () if added is None else tuple((head,) for head in range(layer.heads, added.heads))
    return HFPart(
        place.role,
        model.get_submodule(place.branch),
        _submodule(model, place.norm),
        attention,
        partial(_weights, model, layer) if known else None,
        output=_submodule(model, layer.output_path),
        shares=layer.shares + new if len(layer.shares) < layer.heads else None,
        turned=layer.turned,
        factor=place.factor,
        bias=_parameter(model, place.bias),
        step=place.step,
        model=model,
        layout=layer,
    )


def _submodule(model: nn.Module, path: str | None) -> nn.Module | None:
    return None if path is None else model.get_submodule(path)


def _parameter(model: nn.Module, path: str | None) -> nn.Parameter | None:
    return None if path is None else model.get_parameter(path)


def parts_unknown(model: nn.Module) -> UsageError:
    """The error for a change of heads in a model whose attention layers are not known."""
    expected, got = "a model whose attention layers are known", layout_of(model).problem or "one where none were found"
    return UsageError(f"other heads in {type(model).__name__}", expected, got, "choose another model")


def attention_kinds(model: nn.Module) -> dict[nn.Module, Kind]:
    """Every attention module and its kind. Where no layout is found, names and `is_causal` decide."""
    layout = layout_of(model)
    if layout.layers:
        return {model.get_submodule(path): kind for path, kind in layout.kinds().items()}
    return {
        module: _guessed_kind(name.lower(), module)
        for name, module in model.named_modules()
        if hasattr(module, "is_causal") or "Attention" in type(module).__name__
    }


def model_kind(model: Any) -> ModelKind:
    """The kind of a model of Hugging Face. If its layers are not known, a model that can generate is a decoder."""
    config, known = model.config, bool(layout_of(model).layers)
    if getattr(config, "is_encoder_decoder", False) and "decoder_input_ids" in signature(model.forward).parameters:
        return "encoder-decoder"
    writes = not known and (getattr(config, "is_decoder", False) or model.can_generate())
    return "decoder" if "decoder" in attention_kinds(model).values() or writes else "encoder"


def _guessed_kind(name: str, module: nn.Module) -> Kind:
    if any(part in name for part in CROSS_ATTENTION_NAMES):
        return "cross"
    return "decoder" if getattr(module, "is_causal", False) else "encoder"


# --- head-first weights ---


def _weights(model: nn.Module, layer: AttentionLayout) -> HeadWeights:
    """W_Q [h e k], W_K [h f k], W_V [h f v] and W_O [h v e], repeated where heads share keys and values."""
    maps = (layer.query, layer.key, layer.value)
    (W_Q, b_Q), (W_K, b_K), (W_V, b_V) = (_by_head(model, columns) for columns in maps)
    assert layer.output is not None
    output = _linear(model, layer.output)
    W_O, attention = _rows_by_head(output.weight, layer.output.index), model.get_submodule(layer.path)
    own, keys, values = head_groups_of(attention), *(_widths(model, columns) for columns in (layer.query, layer.value))
    if own is not None and len(own.content_heads) < own.count:
        keys = tuple(layer.widths[0] if head in own.content_heads else 0 for head in range(own.count))
    groups, scale = len(layer.shares), None if own is not None else layer.factor
    W = HeadWeights(W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, output.bias, groups, scale, keys, values)
    return W if (added := added_to(attention)) is None else with_added_columns(W, added)


def _bare_weights(model: nn.Module, layer: AttentionLayout, attention: nn.Module) -> HeadWeights:
    """The weights of heads without any columns of their own, and of what was added to them."""
    e, f, g, d = input_sizes(model, layer)
    like = next(parameter for parameter in model.parameters() if parameter.is_floating_point())
    W_Q, W_K, W_V, W_O = (like.new_zeros(layer.heads, *shape) for shape in ((e, 0), (f, 0), (g, 0), (0, d)))
    W = HeadWeights(W_Q, W_K, W_V, W_O, None, None, None, None, len(layer.shares), None)
    return W if (added := added_to(attention)) is None else with_added_columns(W, added)


def _linear(model: nn.Module, columns: HeadColumns) -> LinearMap:
    linear = matrix_of(model.get_submodule(columns.path))
    assert linear is not None
    return linear


def _by_head(
    model: nn.Module, columns: HeadColumns | None
) -> tuple[Float[Tensor, "h e k"], Float[Tensor, "h k"] | None]:
    """The columns of each head of x W + b, as views where they lie one after the other."""
    assert columns is not None
    linear, index = _linear(model, columns), columns.index
    if _in_order(index, linear.weight.shape[1]):
        W = linear.weight.unflatten(1, index.shape).movedim(1, 0)
        return W, None if linear.bias is None else linear.bias.unflatten(0, index.shape)
    index, (W, b) = index.to(linear.weight.device), linear
    if bool((index < 0).any()):
        W, b = F.pad(W, (0, 1)), None if b is None else F.pad(b, (0, 1))
    return W[:, index].movedim(1, 0), None if b is None else b[index]


def _rows_by_head(W: Float[Tensor, "c e"], index: Int[Tensor, "h v"]) -> Float[Tensor, "h v e"]:
    return W.unflatten(0, index.shape) if _in_order(index, len(W)) else W[index.to(W.device)]


def _in_order(index: Int[Tensor, "h c"], columns: int) -> bool:
    return index.numel() == columns and bool((index.flatten() == torch.arange(columns, device=index.device)).all())


def _widths(model: nn.Module, columns: HeadColumns | None) -> tuple[int, ...] | None:
    module = None if columns is None else model.get_submodule(columns.path)
    return module.head_widths if isinstance(module, HeadsOut) else None


def slots_by_module(model: nn.Module) -> Mapping[nn.Module, tuple[Slot, ...]]:
    """Every attention module -> the layers that it serves, in the order of its calls."""
    return {model.get_submodule(path): slots for path, slots in layout_of(model).slots().items()}


def projections_by_module(model: nn.Module) -> Mapping[nn.Module, tuple[nn.Module, nn.Module]]:
    """Every attention module whose queries and keys come from linear maps -> these two."""
    found: dict[nn.Module, tuple[nn.Module, nn.Module]] = {}
    for layer in layout_of(model).layers:
        query, key = (input_projection(model, layer, role) for role in ("query", "key"))
        if query is not None and key is not None:
            found[model.get_submodule(layer.path)] = model.get_submodule(query), model.get_submodule(key)
    return found
