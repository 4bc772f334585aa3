"""Wider heads and new heads in attention layers of any layout, beside their own projections.

Where projections cannot be widened in place (fused, grouped, normed or rotated queries and keys), the added columns
have projections of their own, which are part of the attention module. They bypass what the layer does between its
projections and attention, and between attention and its output projection: norms, rotations and gates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention.heads import HeadMatrices, HeadWeights
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.hf.added_attention import ADDED_COLUMNS, attach_columns, detach_columns
from attnworks.hf.added_maps import ADDED_ATTRIBUTE, ROLES, AddedColumns, AddedShape, added_to
from attnworks.hf.cut.stored import KEPT_HEADS
from attnworks.hf.head_modules import HeadsOut
from attnworks.hf.layer_implementation import can_set_implementation, reset_implementation, set_implementation
from attnworks.hf.layout import AttentionLayout, ProjectionRole
from attnworks.hf.linear import matrix_of
from attnworks.models.surgery import cannot_grow


def refusal_to_add(model: nn.Module, layout: AttentionLayout) -> str | None:
    """Why no columns can be added to a layer, in words; None if they can."""
    attention = model.get_submodule(layout.path)
    if not layout.interface or not can_set_implementation(attention):
        return "attention that is not computed through the attention interface of transformers"
    if hasattr(attention, KEPT_HEADS):
        return "attention that is still computed for heads that were removed"
    for role in ROLES:
        if input_projection(model, layout, role) is None:
            return f"{role} columns that do not come from one linear projection"
    if layout.output_path is None or matrix_of(model.get_submodule(layout.output_path)) is None:
        return layout.problems.get("output", "no linear output projection")
    return None


def input_projection(model: nn.Module, layout: AttentionLayout, role: ProjectionRole) -> str | None:
    """The path of the projection whose input a role is computed from; for keys that have several, that of values."""
    columns = {"query": layout.query, "key": layout.key, "value": layout.value}[role]
    if columns is not None:
        return columns.path
    found = [
        source.path
        for source in layout.sources
        if role in source.roles and not source.is_parameter and matrix_of(model.get_submodule(source.path)) is not None
    ]
    if len(found) > 1 and role == "key" and (value := input_projection(model, layout, "value")) in found:
        return value
    return found[0] if len(found) == 1 else None


@torch.no_grad()
def add_columns(
    model: nn.Module,
    layout: AttentionLayout,
    slot: Slot,
    heads: Sequence[HeadMatrices],
    own: Sequence[HeadMatrices],
) -> None:
    """Make these the heads of a layer, in place: those it has, maybe wider, then new ones.

    own    the heads that it has now, with columns that were added before

    Only what is added is stored: the own columns of the heads must be as they are. Scores gain, with the factor of the
    layer, the products of the added columns of queries and keys, whatever the layer does with its own; new heads have
    no sink logit, and nothing is added to their scores for positions.
    """
    if reason := refusal_to_add(model, layout):
        raise cannot_grow(slot, reason)
    paths = _paths(model, layout)
    _check_inputs(model, slot, paths, heads)
    attention = model.get_submodule(layout.path)
    added = _beyond(slot, heads, own, added_to(attention), layout.heads)
    remove_columns(model, attention)
    if not any(head.W_Q.shape[1] or head.W_V.shape[1] for head in added):
        return
    shape = AddedShape(
        **paths,
        attention=layout.path,
        heads=layout.heads,
        key_of=tuple(layout.key_of),
        keys=tuple(head.W_Q.shape[1] for head in added),
        values=tuple(head.W_V.shape[1] for head in added),
        turns=_turns(slot, added),
        factor=layout.factor,
        biased=_biased(added),
        crosses=slot.crosses,
    )
    _fill(_built(model, shape), added)


def _beyond(
    slot: Slot,
    heads: Sequence[HeadMatrices],
    own: Sequence[HeadMatrices],
    before: AddedColumns | None,
    count: int,
) -> list[HeadMatrices]:
    """Of each head what is beyond the columns of the layer itself; an error where those are not as before."""
    new = 0 if before is None else before.heads - count
    if len(own) != count + new or len(heads) < count:
        raise cannot_grow(slot, f"{len(heads)} heads in the place of {len(own)}, of which {count} cannot be taken away")
    found: list[HeadMatrices] = []
    for number, head in enumerate(heads):
        k = v = 0
        if number < count:
            k, v = own[number].W_Q.shape[1], own[number].W_V.shape[1]
            k, v = (k, v) if before is None else (k - before.shape.keys[number], v - before.shape.values[number])
            if not _equal(_columns(head, slice(k), slice(v)), _columns(own[number], slice(k), slice(v))):
                raise cannot_grow(slot, f"other weights in the own columns of head {slot}.{number}")
        found.append(_columns(head, slice(k, None), slice(v, None)))
    return found


def _columns(head: HeadMatrices, keys: slice, values: slice) -> HeadMatrices:
    """Some columns of queries and keys, and some of values."""

    def some(columns: Tensor | None, of: slice) -> Tensor | None:
        return None if columns is None else columns[of]

    return HeadMatrices(
        head.W_Q[:, keys],
        head.W_K[:, keys],
        head.W_V[:, values],
        head.W_O[values],
        some(head.b_Q, keys),
        some(head.b_K, keys),
        some(head.b_V, values),
        some(head.turns, keys),
    )


def _equal(head: HeadMatrices, other: HeadMatrices) -> bool:
    pairs = zip(head.weights, other.weights, strict=True)
    return all(torch.equal(a, b) if a is not None and b is not None else a is b for a, b in pairs)


def _biased(heads: Sequence[HeadMatrices]) -> tuple[str, ...]:
    given = {"query": "b_Q", "key": "b_K", "value": "b_V"}
    return tuple(role for role in ROLES if any(getattr(head, given[role]) is not None for head in heads))


def _turns(slot: Slot, heads: Sequence[HeadMatrices]) -> tuple[float, ...]:
    """The angles of all columns of queries and keys; none if no column is turned by position."""
    angles = [head.W_Q.shape[1] * [0.0] if head.turns is None else head.turns.tolist() for head in heads]
    flat = tuple(angle for each in angles for angle in each)
    if any(flat) and slot.crosses:
        raise cannot_grow(slot, "columns that turn by the distance between positions of two different sequences")
    return flat if any(flat) else ()


def _check_inputs(model: nn.Module, slot: Slot, paths: Mapping[str, str], heads: Sequence[HeadMatrices]) -> None:
    """Refuse matrices for other inputs than those of the projections, or for another output."""
    inputs, outputs = _sizes(model, paths)
    wanted = [("queries", inputs["query"], "W_Q", 0), ("keys", inputs["key"], "W_K", 0)]
    wanted += [("values", inputs["value"], "W_V", 0), ("the output", outputs, "W_O", 1)]
    for name, size, weight, axis in wanted:
        for head in heads:
            if (got := getattr(head, weight).shape[axis]) != size:
                raise cannot_grow(slot, f"projections of {name} with {size} numbers per token, not {got}")


def input_sizes(model: nn.Module, layout: AttentionLayout) -> tuple[int, int, int, int]:
    """Rows of W_Q, W_K and W_V, and columns of W_O, of what can be added to a layer."""
    inputs, outputs = _sizes(model, _paths(model, layout))
    return inputs["query"], inputs["key"], inputs["value"], outputs


def _paths(model: nn.Module, layout: AttentionLayout) -> dict[str, str]:
    return {role: input_projection(model, layout, role) or "" for role in ROLES} | {"output": layout.output_path or ""}


def _sizes(model: nn.Module, paths: Mapping[str, str]) -> tuple[dict[str, int], int]:
    """What the projections read, and what the output projection gives, in numbers per token."""
    found = {role: matrix_of(model.get_submodule(paths[role])) for role in (*ROLES, "output")}
    sizes = {role: linear.weight.shape for role, linear in found.items() if linear is not None}
    return {role: sizes[role][0] for role in ROLES}, sizes["output"][1]


def _built(model: nn.Module, shape: AddedShape) -> AddedColumns:
    """Columns whose weights are yet to be written, in their place."""
    attention, output = model.get_submodule(shape.attention), matrix_of(model.get_submodule(shape.output))
    assert output is not None
    added = AddedColumns(shape, *_sizes(model, vars(shape))).to(output.weight).train(attention.training)
    setattr(attention, ADDED_ATTRIBUTE, added)
    attach_columns(model, added)
    return added


def _fill(added: AddedColumns, heads: Sequence[HeadMatrices]) -> None:
    for linear, weight, bias in (
        (added.query, "W_Q", "b_Q"),
        (added.key, "W_K", "b_K"),
        (added.value, "W_V", "b_V"),
    ):
        if linear is None:
            continue
        linear.weight.copy_(torch.cat([getattr(head, weight).T for head in heads]))
        if linear.bias is not None:
            rows = [(getattr(head, bias), getattr(head, weight)) for head in heads]
            linear.bias.copy_(torch.cat([W.new_zeros(W.shape[1]) if b is None else b for b, W in rows]))
    if added.output is not None:
        added.output.weight.copy_(torch.cat([head.W_O for head in heads]).T)


def remove_columns(model: nn.Module, attention: nn.Module) -> None:
    """Take away what was added to a layer of a model, if anything was."""
    if (added := added_to(attention)) is not None:
        detach_columns(model, added)
        delattr(attention, ADDED_ATTRIBUTE)


@contextmanager
def without_added_columns(model: nn.Module) -> Iterator[None]:
    """Within this context the layers of a model compute their own columns and heads alone."""
    layers = [module for module in model.modules() if added_to(module) is not None]
    try:
        for attention in layers:
            reset_implementation(attention)
        yield
    finally:
        for attention in layers:
            set_implementation(attention, ADDED_COLUMNS)


def describe(added: AddedColumns) -> dict[str, Any]:
    """An entry of a config from which `restore` builds these columns again, without their weights."""
    return added.shape.to_json()


def restore(model: nn.Module, entry: Mapping[str, Any]) -> None:
    """Add the columns that an entry of a config describes. Their weights are loaded later."""
    shape = AddedShape.from_json(entry)
    _built(model, shape)


def with_added_columns(W: HeadWeights, added: AddedColumns) -> HeadWeights:
    """The weights of a layer, with the added columns of its heads behind their own, then the new heads."""
    own, shape = len(W.W_Q), added.shape
    if own != shape.heads:
        raise UsageError("weights of a grown layer", f"{shape.heads} own heads", str(own), "read them again")
    keys, values = (
        tuple(width + (of_layer if head < own else 0) for head, width in enumerate(widths))
        for widths, of_layer in ((shape.keys, W.W_Q.shape[-1]), (shape.values, W.W_V.shape[-1]))
    )
    W_Q, b_Q = _wider(W.W_Q, W.b_Q, added.query, keys)
    W_K, b_K = _wider(W.W_K, W.b_K, added.key, keys)
    W_V, b_V = _wider(W.W_V, W.b_V, added.value, values)
    rows = W.W_O.new_zeros(len(values), 0, W.W_O.shape[-1]) if added.output is None else added.output.by_head()
    return replace(
        W,
        W_Q=W_Q,
        W_K=W_K,
        W_V=W_V,
        W_O=_beside(W.W_O.mT, rows.mT, max(values)).mT,
        b_Q=b_Q,
        b_K=b_K,
        b_V=b_V,
        groups=len(keys),
        key_widths=None if len({*keys}) == 1 else keys,
        value_widths=None if len({*values}) == 1 else values,
        turns=_angles(W, added, keys),
    )


def _angles(W: HeadWeights, added: AddedColumns, keys: Sequence[int]) -> Float[Tensor, "n w"] | None:
    """The angles of the columns of all heads: zero in those of the layer itself."""
    if not added.shape.turns or added.query is None:
        return None
    angles = torch.tensor(added.shape.turns, dtype=torch.float64, device=W.W_Q.device)
    own = angles.new_zeros(len(W.W_Q), W.W_Q.shape[-1])
    return _beside(own, added.query.widths.cut(angles), max(keys))


def _wider(
    W: Float[Tensor, "h e k"], b: Float[Tensor, "h k"] | None, linear: HeadsOut | None, widths: Sequence[int]
) -> tuple[Float[Tensor, "n e w"], Float[Tensor, "n w"] | None]:
    """Weights and biases of the heads of a layer, and the added ones of all n heads behind them."""
    more, bias = (W.new_zeros(len(widths), W.shape[1], 0), None) if linear is None else linear.by_head()
    if b is not None or bias is not None:
        b = W.new_zeros(len(W), W.shape[2]) if b is None else b
        b = _beside(b, more.new_zeros(len(more), more.shape[2]) if bias is None else bias, max(widths))
    return _beside(W, more, max(widths)), b


def _beside(own: Float[Tensor, "h *e k"], added: Float[Tensor, "n *e p"], width: int) -> Float[Tensor, "n *e w"]:
    """Added columns behind own ones; those of new heads from the first column on. Zeros, up to `width` columns."""
    parts = torch.cat([own, added[: len(own)]], -1), added[len(own) :]
    return torch.cat([F.pad(part, (0, width - part.shape[-1])) for part in parts])  # may also cut off zeros
