"""Cut layers of a Hugging Face model down to some of their heads, in place, once this is proven on the model itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from attnworks.core.places import Slot
from attnworks.hf.anatomy import forget_layout, layout_of
from attnworks.hf.cut.apply import apply_recipe
from attnworks.hf.cut.groups import keep_groups
from attnworks.hf.cut.plan import Place, emptied, learned_recipe, refusal_to_cut, stored_recipe
from attnworks.hf.cut.proof import Proof
from attnworks.hf.cut.recipe import CutRecipe, Form
from attnworks.hf.cut.twin import twin_of
from attnworks.hf.layout import AttentionLayout
from attnworks.models.surgery import cannot_keep

CUTS_ENTRY = "attnworks_cuts"
"""Entry of the config of a Hugging Face model: the recipes of its cuts, in the order in which they were made."""

Cut = tuple[Place, Sequence[int]]
"""A layer, and the heads that stay in it."""


def refusal_to_keep(model: Any, slot: Slot, kept: Sequence[int]) -> str | None:
    """Why a layer cannot be cut down to these heads, in words; None if it can, as far as its twin tells."""
    place = _place(model, slot)
    if reason := refusal_to_cut(place, kept):
        return reason
    learned = twin_of(model).learn(place, kept)
    return None if learned is None else learned.problem


def cut_heads(model: Any, kept: Mapping[Slot, Sequence[int]]) -> dict[Slot, Form]:
    """Cut layers down to these heads, in place, and say in which form.

    UsageError, and the model as it was, where the outputs are not those with the other heads set to zero. Layers that
    share their module with a named one lose the same heads.
    """
    if not kept:
        return {}
    cuts = {place.layer.path: (place, heads) for place, heads in ((_place(model, slot), kept[slot]) for slot in kept)}
    proof = Proof(model, {path: place.removed(heads) for path, (place, heads) in cuts.items()})
    recipes = {path: _recipes(place, heads) for path, (place, heads) in cuts.items()}
    if not _cut(model, [(*cuts[path], recipes[path]) for path in cuts], proof):
        recipes = _one_by_one(model, cuts)
    made = [recipe.to_json() for of_layer in recipes.values() for recipe in of_layer]
    setattr(model.config, CUTS_ENTRY, [*getattr(model.config, CUTS_ENTRY, ()), *made])
    forget_layout(model)
    return {slot: recipes[place.layer.path][-1].form for place, _ in cuts.values() for slot in place.layer.slots}


def computed_heads(model: Any, layout: AttentionLayout) -> int:
    """How many heads a layer computes attention for: in the stored form also for those that were removed."""
    cuts: Sequence[Mapping[str, Any]] = getattr(model.config, CUTS_ENTRY, ())
    stored = (cut["of"] for cut in cuts if cut["attention"] == layout.path and cut["form"] == "stored" and cut["heads"])
    return next(stored, layout.heads) if layout.heads else 0


def _place(model: Any, slot: Slot) -> Place:
    layers = layout_of(model).layers
    return Place(model, layers, next(layer for layer in layers if slot in layer.slots))


def _recipes(place: Place, kept: Sequence[int]) -> list[CutRecipe]:
    """Plain where the twin has shown how, else stored. A layer without heads keeps the sizes of one group."""
    first = _plain(place, kept or place.layer.shares[0])
    if not kept:
        return emptied(place, first)
    return [stored_recipe(place, kept)] if first is None else [first]


def _plain(place: Place, kept: Sequence[int]) -> CutRecipe | None:
    learned = twin_of(place.model).learn(place, kept)
    if learned is None or learned.meaning is None or len(kept) == place.layer.heads:
        return None
    return learned_recipe(place, kept, learned.meaning, selects_positions=learned.selects_positions)


def _one_by_one(model: Any, cuts: Mapping[str, Cut]) -> dict[str, list[CutRecipe]]:
    """Every layer with a proof of its own, stored where the plain form fails; all undone if one cannot be cut."""
    recipes: dict[str, list[CutRecipe]] = {}
    with ExitStack() as undo:
        for path, (place, kept) in cuts.items():
            proof = Proof(model, {path: place.removed(kept)})
            choices = _recipes(place, kept), [stored_recipe(place, kept)] if kept else emptied(place, None)
            made = next((each for each in choices if _cut(model, [(place, kept, each)], proof, undo)), None)
            if made is None:
                raise cannot_keep(place.layer.slots[0], proof.last_problem)
            recipes[path] = made
        undo.pop_all()
    return recipes


def _cut(
    model: Any,
    cuts: Sequence[tuple[Place, Sequence[int], Sequence[CutRecipe]]],
    proof: Proof,
    undo: ExitStack | None = None,
) -> bool:
    """Cut the model and prove it; otherwise leave it as it was. `undo` gets the steps that undo a proven cut."""
    with ExitStack() as steps:
        for place, kept, recipes in cuts:
            for recipe in recipes:
                apply_recipe(model, recipe, steps)
            keep_groups(place.attention, kept, place.layer.widths, steps)
        if proof.problem(model) is not None:
            return False
        done = steps.pop_all()
    if undo is not None:
        undo.push(done)
    return True
