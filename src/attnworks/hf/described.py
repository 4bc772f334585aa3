"""What the config of a reshaped model says of its changed layers, and the model that is built from it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from torch import nn

from attnworks.core.folders import TensorTable
from attnworks.core.places import Slot
from attnworks.hf.added_columns import restore
from attnworks.hf.anatomy import hf_layers
from attnworks.hf.changed_layers import LAYERS_ENTRY, LayerPlace, places_of
from attnworks.hf.cut.apply import apply_recipe, check
from attnworks.hf.cut.keep import CUTS_ENTRY
from attnworks.hf.cut.recipe import CutRecipe, heads_left
from attnworks.hf.heads import (
    ADDED_ENTRY,
    HEADS_ENTRY,
    MECHANISMS_ENTRY,
    WIDTHS_ENTRY,
    hf_keep_heads,
    hf_refusal_to_shrink,
    missing_layer_reason,
    resize,
)
from attnworks.hf.mechanisms import drop_as_earlier, put_mechanisms, use_mechanisms
from attnworks.models.surgery import cannot_keep


@dataclass(frozen=True)
class Described:
    """What the config of a folder says of changed layers; all but `cuts` by the names of the layers.

    layers    where they sit; None in folders of earlier versions, in which they are found by evidence
    """

    mechanisms: dict[str, list[str]]
    widths: dict[str, dict[str, list[int]]]
    heads: dict[str, list[int]]
    cuts: list[Any]
    layers: dict[str, Any] | None
    added: dict[str, Any]

    @classmethod
    def taken_from(cls, config: Any) -> Described:
        """The entries of a config, which are removed from it."""
        names, taken = (MECHANISMS_ENTRY, WIDTHS_ENTRY, HEADS_ENTRY), vars(config)
        mechanisms, widths, heads = (taken.pop(name, {}) for name in names)
        cuts, layers, added = taken.pop(CUTS_ENTRY, []), taken.pop(LAYERS_ENTRY, None), taken.pop(ADDED_ENTRY, {})
        return cls(mechanisms, widths, heads, cuts, layers, added)

    def renamed(self, new_name: Callable[[str], str | None]) -> Described:
        """The same for a model in which modules have other names: what is not part of it (None) is left out."""
        layers = self.layers
        if layers is not None:
            layers = {name: place for name, place in layers.items() if new_name(place["attention"]) is not None}
            layers = {name: _with_names(place, new_name) for name, place in layers.items()}
        gone = {name for name in self.layers or () if name not in (layers or ())}

        def kept(of_layers: Mapping[str, Any]) -> dict[str, Any]:
            return {name: value for name, value in of_layers.items() if name not in gone}

        added = {name: _with_names(shape, new_name) for name, shape in kept(self.added).items()}
        cuts = [_with_names(cut, new_name) for cut in self.cuts if new_name(cut["attention"]) is not None]
        return Described(kept(self.mechanisms), kept(self.widths), kept(self.heads), cuts, layers, added)


PATHS = ("attention", "query", "key", "value", "output")
"""Entries of places, cuts and added columns that are paths of modules."""
BY_PATH = ("outputs", "parameters", "attributes", "config")
"""Entries of cuts whose keys are such paths."""


def _with_names(entry: Mapping[str, Any], new_name: Callable[[str], str | None]) -> dict[str, Any]:
    """An entry of a config with other paths; ValueError where one has none."""

    def renamed(path: str) -> str:
        if (found := new_name(path) if path else path) is None:
            raise ValueError(f"{path} in another class of models")
        return found

    new: dict[str, Any] = {name: renamed(value) if name in PATHS else value for name, value in entry.items()}
    for name in BY_PATH:
        of_paths: Mapping[str, Any] = entry.get(name, {})
        new |= {name: {renamed(path): value for path, value in of_paths.items()}} if name in entry else {}
    if "projections" in entry:
        new["projections"] = [renamed(path) for path in entry["projections"]]
    return new


def build_reshaped(model_class: Any, config: Any, described: Described, table: TensorTable) -> Any:
    """A model with the mechanisms, widths and heads that a config describes, for weights with these shapes."""
    model = model_class(copy.deepcopy(config))
    for entry in described.cuts:
        recipe = CutRecipe.from_json(entry)
        check(model, recipe)
        apply_recipe(model, recipe, ExitStack())
    _cut_by_evidence(model, described)
    changed = {**described.widths, **described.mechanisms}
    if described.layers is None:
        places = places_of(model, changed)
    else:
        if unknown := changed.keys() - described.layers.keys():
            raise ValueError(f"no such layer as {min(unknown)}")
        places = {name: LayerPlace.from_json(described.layers[name], model) for name in changed}
    for name, widths in described.widths.items():
        place, count = places[name], len(widths["keys"])
        first = described.heads.get(name) or [*range(count)]
        attention = model.get_submodule(place.attention)
        resize(model, attention, Slot.parse(name), place.projections, widths["keys"], widths["values"], first)
    if described.layers is None:
        narrow = {name: specs for name, specs in described.mechanisms.items() if name not in described.widths}
        rows = {name.removesuffix(".weight"): entry["shape"][0] for name, entry in table.items() if entry["shape"]}
        drop_as_earlier(model, narrow, rows)
    for name, specs in described.mechanisms.items():
        place = places[name]
        put_mechanisms(model.get_submodule(place.attention), place.widths, specs, place.projections)
    for entry, value in (
        (HEADS_ENTRY, described.heads),
        (CUTS_ENTRY, described.cuts),
        (ADDED_ENTRY, described.added),
    ):
        if value:
            setattr(model.config, entry, value)
    use_mechanisms(model, described.mechanisms)
    for added in described.added.values():
        restore(model, added)
    return model


def _cut_by_evidence(model: Any, described: Described) -> None:
    """Cut the layers of a folder of an earlier version, which has no recipes."""
    names = [] if described.layers is not None else [name for name in described.heads if name not in described.widths]
    for name in names:
        if reason := hf_refusal_to_shrink(model, Slot.parse(name), described.heads[name]):
            raise cannot_keep(Slot.parse(name), reason)
    hf_keep_heads(model, {Slot.parse(name): described.heads[name] for name in names})


def check_heads(model: nn.Module, described: Described) -> None:
    """Check that the layers have as many heads as the config says, and those that its cuts leave."""
    named = {**described.mechanisms, **described.heads}
    layers = hf_layers(model) if named else {}
    for name, heads in named.items():
        if reason := missing_layer_reason(model, Slot.parse(name)):
            raise ValueError(reason)
        found = layers[Slot.parse(name)]
        if len(heads) != found.heads:
            raise ValueError(f"{len(heads)} heads in {name}, which has {found.heads}")
    cuts = [CutRecipe.from_json(entry) for entry in described.cuts]
    for name in described.heads.keys() - described.widths.keys():
        kept = heads_left(cuts, layers[Slot.parse(name)].place()[1].path)
        if described.layers is not None and described.heads[name] != kept:
            raise ValueError(f"the heads {described.heads[name]!r:.40} in {name}, whose cuts leave {kept!r:.40}")
