"""The recipes for one cut: plain where the attributes that have to follow are known, stored in any other case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn

from attnworks.hf.cut.apply import input_axis, output_axis
from attnworks.hf.cut.attributes import Meaning, values_of
from attnworks.hf.cut.columns import Removal, numbers_of, refusal_to_remove, removal_of, slice_of
from attnworks.hf.cut.recipe import CutRecipe, Sizes
from attnworks.hf.cut.sizes import sizes_of
from attnworks.hf.cut.stored import is_stored
from attnworks.hf.head_modules import HeadsOut
from attnworks.hf.layout import AttentionLayout
from attnworks.hf.linear import matrix_of
from attnworks.hf.position_bias import POSITION_BIAS, has_position_bias


@dataclass(frozen=True, eq=False)
class Place:
    """One attention layer among all of a model."""

    model: nn.Module
    layers: Sequence[AttentionLayout]
    layer: AttentionLayout

    def removal(self, kept: Sequence[int]) -> Removal:
        """What goes if these heads stay."""
        return removal_of(self.layers, self.layer, self.removed(kept))

    def removed(self, kept: Sequence[int]) -> set[int]:
        return {*range(self.layer.heads)} - {*kept}

    @property
    def attention(self) -> nn.Module:
        return self.model.get_submodule(self.layer.path)


def refusal_to_cut(place: Place, kept: Sequence[int]) -> str | None:
    """Why no recipe can leave these heads alone, in words; None if one can."""
    layer, model = place.layer, place.model
    if reason := refusal_to_remove(layer, place.removed(kept)):
        return reason
    assert layer.output_path is not None
    output = model.get_submodule(layer.output_path)
    if not kept and matrix_of(output) is not None:
        return None
    if input_axis(output) is None:
        return f"an output projection that is no linear map with a weight of numbers ({type(output).__name__})"
    return None


def stored_recipe(place: Place, kept: Sequence[int]) -> CutRecipe:
    """Columns that are not stored. A projection whose weight cannot be cut keeps them all."""
    removal, model = place.removal(kept), place.model
    outputs = {
        path: numbers_of(~gone) for path, gone in removal.columns.items() if _last_axis(model.get_submodule(path))
    }
    return CutRecipe(
        attention=place.layer.path,
        form="stored",
        of=place.layer.heads,
        heads=tuple(kept),
        outputs=outputs,
        output=removal.output,
        inputs=numbers_of(~removal.inputs),
    )


def plain_recipe(
    place: Place, kept: Sequence[int], values: tuple[Sizes, Sizes] = ({}, {}), *, selects_positions: bool = False
) -> CutRecipe | None:
    """Fewer columns, with these values of attributes and of entries of configs; None where columns cannot be cut."""
    removal, model = plain_removal(place, kept, selects_positions=selects_positions), place.model
    slices = {path: slice_of(gone) for path, gone in removal.parameters.items()}
    cut = {path: along for path, along in slices.items() if along is not None}
    if len(cut) < len(slices) or any(output_axis(model.get_submodule(path)) is None for path in removal.columns):
        return None
    return CutRecipe(
        attention=place.layer.path,
        form="plain",
        of=place.layer.heads,
        heads=tuple(kept),
        outputs={path: numbers_of(~gone) for path, gone in removal.columns.items()},
        output=removal.output,
        inputs=numbers_of(~removal.inputs),
        parameters=cut,
        attributes=values[0],
        config=values[1],
        selects_positions=selects_positions,
    )


def plain_removal(place: Place, kept: Sequence[int], *, selects_positions: bool) -> Removal:
    """What goes; a position bias whose slices are selected stays whole, in whichever layer it is."""
    removal = place.removal(kept)
    if selects_positions and has_position_bias(place.attention):
        for path in [path for path in removal.columns if path.endswith(f".{POSITION_BIAS}")]:
            del removal.columns[path]
    return removal


def learned_recipe(
    place: Place, kept: Sequence[int], meaning: Meaning, *, selects_positions: bool = False
) -> CutRecipe | None:
    """The plain recipe with attributes whose meaning was learned in a twin; None where it does not fit this layer."""
    removal = plain_removal(place, kept, selects_positions=selects_positions)
    if any(is_stored(place.model.get_submodule(path)) for path in (place.layer.path, removal.output, *removal.columns)):
        return None
    sizes = sizes_of(place.layer, kept, removal)
    try:
        values = values_of(place.model, place.layer.path, meaning, sizes)
    except (ValueError, AttributeError):
        return None
    return plain_recipe(place, kept, values, selects_positions=selects_positions)


def emptied(place: Place, first: CutRecipe | None) -> list[CutRecipe]:
    """Recipes for a layer without heads. After `first`, which leaves some, it computes zeros for these alone."""
    removal, model = place.removal([]), place.model
    before = {} if first is None else first.outputs
    outputs: dict[str, tuple[int, ...]] = {}
    for path, gone in removal.columns.items():
        module = model.get_submodule(path)
        whole = bool(gone.all()) or isinstance(module, HeadsOut)  # columns of the padding of HeadsOut reach nothing
        if (whole and matrix_of(module) is not None) or _last_axis(module):
            columns = before.get(path, range(len(gone)))
            outputs[path] = () if whole else tuple(new for new, old in enumerate(columns) if not gone[old])
    heads = place.layer.heads if first is None else len(first.heads)
    empty = CutRecipe(place.layer.path, "stored", heads, (), outputs, removal.output, ())
    return [empty] if first is None else [first, empty]


def _last_axis(module: nn.Module) -> bool:
    """Whether columns are the last axis of the output, as in linear maps and embeddings."""
    return isinstance(module, nn.Embedding) or input_axis(module) is not None
