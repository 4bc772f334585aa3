"""Give attention layers of Hugging Face models mechanisms of attnworks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from torch import nn

from attnworks.attention import MechanismSpec
from attnworks.attention.heads import HeadGroups, carry_over, check_held, grouped
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.hf.anatomy import forget_layout, hf_layers, layout_of, parts_unknown
from attnworks.hf.cut.apply import apply_recipe
from attnworks.hf.cut.keep import CUTS_ENTRY
from attnworks.hf.cut.recipe import CutRecipe
from attnworks.hf.cut.unused import drop_unused, earlier_recipe, unused_recipe, without_queries
from attnworks.hf.head_modules import QUERIES_AND_KEYS, head_groups_of
from attnworks.hf.heads import MECHANISMS_ENTRY, projection_paths
from attnworks.hf.layout import AttentionLayout
from attnworks.hf.swappable import hf_refusal_to_swap
from attnworks.hf.swapped_attention import set_groups
from attnworks.models.surgery import MechanismsBySlot


def check_can_build_in(model: nn.Module, wanted: MechanismsBySlot) -> None:
    """Refuse mechanisms that a layer cannot have, and other mechanisms in only some of the layers of one module."""
    layers = hf_layers(model) if wanted else {}
    if wanted and not layers:
        raise parts_unknown(model)
    for slot, specs in wanted.items():
        part, layout = layers[slot], layers[slot].place()[1]
        _check_shared(slot, layout.slots, wanted)
        held, by_content = {*range(part.heads)} - without_queries(layout), _by_content(specs)
        check_held(sorted(held), by_content, slot)
        if reason := hf_refusal_to_swap(model, slot, specs):
            asked, remedy = f"other mechanisms in {slot}", "choose another mechanism or layer"
            raise UsageError(asked, "mechanisms that fit the layer", f"one that {reason}", remedy)


def _check_shared(slot: Slot, slots: Sequence[Slot], wanted: MechanismsBySlot) -> None:
    others = [other for other in slots if tuple(wanted.get(other, ())) != tuple(wanted[slot])]
    if others:
        expected = f"the same in all layers that share its weights: {', '.join(map(str, slots))}"
        got = f"others in {others[0]}" if others[0] in wanted else f"none for {others[0]}"
        raise UsageError(f"other mechanisms in {slot}", expected, got, "name all of them")


def drop_as_earlier(model: Any, described: Mapping[str, list[str]], columns: Mapping[str, int]) -> None:
    """Drop the queries and keys that a folder of an earlier version does not store.

    described    layer -> the mechanism of each of its heads
    columns      projection -> how many columns the folder stores
    """
    layers = hf_layers(model) if described else {}
    for name, specs in described.items():
        recipe = earlier_recipe(layers[Slot.parse(name)].place()[1], _by_content(specs))
        if recipe is not None and all(columns.get(path) == len(kept) for path, kept in recipe.outputs.items()):
            apply_recipe(model, recipe, ExitStack())
            _write(model, [recipe])


def _by_content(specs: Sequence[str]) -> list[int]:
    """The heads whose mechanism uses queries and keys."""
    kinds = [MechanismSpec.parse(spec).kind for spec in specs]
    return [head for head, kind in enumerate(kinds) if kind.by_content]


def build_in_mechanisms(model: Any, wanted: MechanismsBySlot) -> None:
    """Give layers of a Hugging Face model these mechanisms, in place, and write that into its config.

    Columns of queries and keys that no head needs any more are not stored.
    """
    check_can_build_in(model, wanted)
    layers = hf_layers(model) if wanted else {}
    parts = {layers[slot].place()[1].path: layers[slot] for slot in wanted}
    layouts = [part.place()[1] for part in parts.values()]
    for part, layout in zip(parts.values(), layouts, strict=True):
        _, k, v = part.geometry()
        put_mechanisms(part.attention, (k, v), wanted[layout.slots[0]], projection_paths(layout) or ())
    _drop_columns(model, layouts, wanted)
    use_mechanisms(model, {str(slot): list(specs) for slot, specs in wanted.items()})


def use_mechanisms(model: Any, described: Mapping[str, list[str]]) -> None:
    """Write the mechanisms of these layers into the config."""
    model.config.attnworks = {**getattr(model.config, MECHANISMS_ENTRY, {}), **described}
    forget_layout(model)


def put_mechanisms(attention: Any, widths: tuple[int, int], specs: Sequence[str], projections: Sequence[str]) -> None:
    """Give an attention module these mechanisms, one for each head.

    widths         of queries and keys, and of values
    projections    paths of those to queries, keys and values, and of that of the output; none if they are not known
    """
    old, groups = head_groups_of(attention), HeadGroups(grouped(specs), *widths).train(attention.training)
    like = next((parameter for parameter in attention.parameters() if parameter.is_floating_point()), None)
    groups = groups if like is None else groups.to(like)
    if old is not None:
        carry_over(old, groups)
    set_groups(attention, groups)
    if projections:
        setattr(attention, QUERIES_AND_KEYS, {"query": projections[0], "key": projections[1]})


def _drop_columns(model: Any, layouts: Sequence[AttentionLayout], wanted: MechanismsBySlot) -> None:
    """Drop the columns that no head needs, in all layers, or in those in which this changes nothing else."""
    every = layout_of(model).layers
    recipes: list[CutRecipe] = []
    for layout in layouts:
        looking = _by_content(wanted[layout.slots[0]])
        recipe = unused_recipe(model, every, layout, {*range(layout.heads)} - {*looking})
        recipes += [] if recipe is None else [recipe]
    if not recipes:
        return
    dropped = recipes if drop_unused(model, recipes) else [each for each in recipes if drop_unused(model, [each])]
    _write(model, dropped)


def _write(model: Any, recipes: Sequence[CutRecipe]) -> None:
    """Write recipes into the config."""
    if recipes:
        made = [recipe.to_json() for recipe in recipes]
        setattr(model.config, CUTS_ENTRY, [*getattr(model.config, CUTS_ENTRY, ()), *made])
