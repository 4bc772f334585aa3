"""Which columns of projections, and which entries of other parameters, serve some heads of a layer and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool
from torch import Tensor

from attnworks.hf.layout import AttentionLayout, ColumnSource


@dataclass(frozen=True, eq=False)
class Removal:
    """What goes with some heads of one attention module. True marks what goes.

    columns      of the output of projections, by the path of the module
    parameters   entries of other parameters, by their path
    output       the projection that reads the heads
    inputs       columns of its input
    """

    columns: dict[str, Bool[Tensor, " c"]]
    parameters: dict[str, Bool[Tensor, "..."]]
    output: str
    inputs: Bool[Tensor, " d"]


def refusal_to_remove(layer: AttentionLayout, removed: Collection[int]) -> str | None:
    """Why these heads cannot be told apart from the others, in words; None if they can."""
    if layer.output_path is None or layer.output_reach is None:
        return layer.problems.get("output", "no projection that reads the heads")
    gone, left = _of_heads(layer.output_reach, removed)
    return "heads that are mixed before a module reads them" if bool((gone & left).any()) else None


def removal_of(layers: Sequence[AttentionLayout], layer: AttentionLayout, removed: Collection[int]) -> Removal:
    """What reaches these heads of a layer, and no other head in any of all layers."""
    assert layer.output_path is not None and layer.output_reach is not None
    going: dict[tuple[str, bool], Tensor] = {}
    for source in layer.sources:
        gone, left = _of_heads(source.reach, removed)
        going[source.path, source.is_parameter] = gone & ~left
    for other in layers:
        for source in other.sources if other is not layer else ():
            if (key := (source.path, source.is_parameter)) in going:
                going[key] &= ~source.reach.any(0)
    columns = {path: gone for (path, of_parameter), gone in going.items() if not of_parameter and bool(gone.any())}
    parameters = {
        source.path: going[source.path, True]
        for source in layer.sources
        if source.is_parameter and bool(going[source.path, True].any()) and _goes_with(source, layer, columns)
    }
    return Removal(columns, parameters, layer.output_path, _of_heads(layer.output_reach, removed)[0])


def _of_heads(
    reach: Bool[Tensor, "h ..."], removed: Collection[int]
) -> tuple[Bool[Tensor, "..."], Bool[Tensor, "..."]]:
    """What these heads are reached by, and what the others are reached by."""
    goes = torch.tensor([head in removed for head in range(len(reach))], device=reach.device)
    return reach[goes].any(0), reach[~goes].any(0)


def _goes_with(parameter: ColumnSource, layer: AttentionLayout, columns: Collection[str]) -> bool:
    """Whether columns that a parameter is applied to go as well; a parameter that is applied to none goes by itself."""
    roles = {*parameter.roles} & {"query", "key", "value"}
    cut = {role for source in layer.sources if source.path in columns for role in source.roles}
    return not roles or bool(roles & cut)


def slice_of(gone: Bool[Tensor, "..."]) -> tuple[int, tuple[int, ...]] | None:
    """The axis of a parameter along which whole slices go, and the slices that stay; None if it is no such axis."""
    for axis in range(gone.dim()):
        rows = gone.movedim(axis, 0).flatten(1) if gone.dim() > 1 else gone[:, None]
        if bool((rows.all(1) | ~rows.any(1)).all()) and not bool(rows.all()):
            return axis, numbers_of(~rows.any(1))
    return None


def numbers_of(marked: Bool[Tensor, " c"]) -> tuple[int, ...]:
    """The positions of True."""
    return tuple(marked.nonzero().flatten().tolist())
