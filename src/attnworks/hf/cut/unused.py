"""Columns of queries and keys that no head needs, as some heads attend by position alone: they are not stored."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from attnworks.hf.cut.apply import apply_recipe, input_axis
from attnworks.hf.cut.columns import numbers_of
from attnworks.hf.cut.proof import Proof
from attnworks.hf.cut.recipe import CutRecipe
from attnworks.hf.layout import AttentionLayout, ColumnSource


def unused_recipe(
    model: Any, layers: Sequence[AttentionLayout], layer: AttentionLayout, heads: Collection[int]
) -> CutRecipe | None:
    """What is left if these heads of a layer have neither queries nor keys; None if no columns go.

    layers    all of the model
    """
    outputs: dict[str, tuple[int, ...]] = {}
    for source in layer.sources:
        if source.is_parameter or input_axis(model.get_submodule(source.path)) is None:
            continue
        unused = _makes_queries_or_keys(source) & ~_is_used(source, layers, layer, heads)
        if bool(unused.any()):
            outputs[source.path] = numbers_of(~unused)
    every = tuple(range(layer.heads))
    return CutRecipe(layer.path, "unused", layer.heads, every, outputs, "", ()) if outputs else None


def earlier_recipe(layer: AttentionLayout, looking: Sequence[int]) -> CutRecipe | None:
    """What earlier versions left in a layer with separate projections, where only the heads `looking` use Q and K.

    In a decoder they kept those of head 0 where no head uses them.
    """
    query, key = layer.query, layer.key
    if query is None or key is None or query.path == key.path or len(looking) == layer.heads:
        return None
    kept = list(looking) or [0] * layer.slots[0].causal
    outputs = {columns.path: tuple(sorted(columns.index[kept].flatten().tolist())) for columns in (query, key)}
    return CutRecipe(layer.path, "unused", layer.heads, tuple(range(layer.heads)), outputs, "", ())


def drop_unused(model: Any, recipes: Sequence[CutRecipe]) -> bool:
    """Drop these columns, in place, if the model then computes what it did; whether it does."""
    with ExitStack() as undo:
        proof = Proof(model, {})
        for recipe in recipes:
            apply_recipe(model, recipe, undo)
        if proof.problem(model) is None:
            undo.pop_all()
            return True
    return False


def without_queries(layer: AttentionLayout) -> set[int]:
    """The heads whose queries come from no column of any projection."""
    found = {*range(layer.heads)}
    for source in layer.sources:
        if (reach := source.roles.get("query")) is not None:
            found -= {head for head, columns in enumerate(reach) if bool(columns.any())}
    return found


def _makes_queries_or_keys(source: ColumnSource) -> Bool[Tensor, " c"]:
    found = torch.zeros_like(source.reach.any(0))
    for role in ("query", "key"):
        if (reach := source.roles.get(role)) is not None:
            found = found | reach.any(0)
    return found


def _is_used(
    source: ColumnSource, layers: Sequence[AttentionLayout], layer: AttentionLayout, heads: Collection[int]
) -> Bool[Tensor, " c"]:
    """The columns that other heads, values, gates or other layers are computed from."""
    needing = [head for head in range(layer.heads) if head not in heads]
    found = source.reach[needing].any(0)
    for role in ("value", "gate"):
        if (reach := source.roles.get(role)) is not None:
            found = found | reach.any(0)
    for other in (other for other in layers if other is not layer):
        for theirs in (theirs for theirs in other.sources if theirs.path == source.path):
            found = found | theirs.reach.any(0)
    return found
