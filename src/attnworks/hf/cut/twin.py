"""What can be cut in the layers of a model, tried in a tiny twin of it: the same code with other sizes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from threading import Lock, RLock
from typing import Any, NamedTuple

from torch import nn

from attnworks.core.errors import short_message
from attnworks.hf import quiet
from attnworks.hf.anatomy import layout_of
from attnworks.hf.cut.apply import apply_recipe
from attnworks.hf.cut.attributes import Meaning, learn_attributes, reads_of
from attnworks.hf.cut.plan import (
    Place,
    emptied,
    plain_recipe,
    plain_removal,
    refusal_to_cut,
    stored_recipe,
)
from attnworks.hf.cut.proof import Proof
from attnworks.hf.cut.recipe import CutRecipe, Sizes
from attnworks.hf.cut.sizes import Pattern, pattern_of, related, relative, sizes_of, some_heads
from attnworks.hf.position_bias import has_position_bias
from attnworks.hf.tiny import tiny_like

MOST_TWINS = 16
"""The most twins that are kept in memory."""
IMPLEMENTATIONS = ("eager", "sdpa")


class Learned(NamedTuple):
    """What was found for one kind of layer and one pattern of heads.

    meaning             what the attributes count that have to follow; None where a layer cannot run with fewer heads
    selects_positions   whether T5's position bias must be cut to the heads
    problem             why the heads cannot be cut in any way, in words
    """

    meaning: Meaning | None
    selects_positions: bool
    problem: str | None


@dataclass(eq=False)
class Twin:
    """The twin of a model, or of none if none could be built."""

    model: Any
    learned: dict[tuple[str, Pattern], Learned] = field(default_factory=dict)
    lock: RLock = field(default_factory=RLock)

    def learn(self, place: Place, kept: Sequence[int]) -> Learned | None:
        """What was learned for layers like this one, and such a choice of heads; None where the twin has none."""
        twin = self._layer_like(place)
        if twin is None:
            return None
        pattern = pattern_of(place.layer, kept)
        key = twin.layer.path, pattern
        with self.lock:
            if key not in self.learned:
                self.learned[key] = _learn(twin, pattern)
            return self.learned[key]

    def _layer_like(self, place: Place) -> Place | None:
        if self.model is None:
            return None
        layers = layout_of(self.model).layers
        wanted = _kind_of(place)
        places = (Place(self.model, layers, layer) for layer in layers)
        return next((each for each in places if _kind_of(each) == wanted), None)


_TWINS: dict[object, Twin] = {}
_TWINS_LOCK = Lock()


def twin_of(model: Any) -> Twin:
    """The twin of a model. Models of the same class with the same config have the same one."""
    config = json.loads(model.config.to_json_string(use_diff=False))
    own = {name: value for name, value in config.items() if not name.startswith(("attnworks", "_"))}
    key = type(model), json.dumps(own, sort_keys=True)
    with _TWINS_LOCK:
        if key not in _TWINS:
            if len(_TWINS) >= MOST_TWINS:
                del _TWINS[next(iter(_TWINS))]
            _TWINS[key] = Twin(tiny_like(model).model)
        return _TWINS[key]


def _kind_of(place: Place) -> object:
    layer = place.layer
    sources = {
        relative(source.path, layer.path) for source in layer.sources if not source.is_parameter and source.roles
    }
    output = None if layer.output_path is None else relative(layer.output_path, layer.path)
    grouped = len(layer.shares) < layer.heads, any(len(group) > 1 for group in layer.shares)
    return type(place.attention), layer.slots[0].kind, output, frozenset(sources), grouped


def _learn(place: Place, pattern: Pattern) -> Learned:
    kept = some_heads(place.layer, pattern)
    if kept is None:
        return Learned(None, False, None)
    if reason := refusal_to_cut(place, kept):
        return Learned(None, False, reason)
    proof = Proof(place.model, {place.layer.path: place.removed(kept)})
    problem = problem_of(place.model, _stored(place, kept), proof)
    if problem is not None or pattern in ("none", "uneven"):
        return Learned(None, False, problem)
    for selects_positions in (False, True) if has_position_bias(place.attention) else (False,):
        meaning = _learn_meaning(place, kept, proof, selects_positions=selects_positions)
        if meaning is not None:
            return Learned(meaning, selects_positions, None)
    return Learned(None, False, None)


def _stored(place: Place, kept: Sequence[int]) -> list[CutRecipe]:
    return [stored_recipe(place, kept)] if kept else emptied(place, None)


def _learn_meaning(place: Place, kept: Sequence[int], proof: Proof, *, selects_positions: bool) -> Meaning | None:
    removal = plain_removal(place, kept, selects_positions=selects_positions)
    model, names = place.model, list[str]()

    def holds(attributes: Sizes, config: Sizes) -> bool:
        recipe = plain_recipe(place, kept, (attributes, config), selects_positions=selects_positions)
        return recipe is not None and _works(model, [recipe], proof, names)

    with reads_of(model, related(model, place.layer, removal)) as reads:
        names = _running_implementations(model)
    return learn_attributes(model, place.layer.path, reads, sizes_of(place.layer, kept, removal), holds)


def _works(model: Any, recipes: Sequence[CutRecipe], proof: Proof, names: Sequence[str]) -> bool:
    return all(problem_of(model, recipes, proof) is None for name in _each_implementation(model) if name in names)


def problem_of(model: nn.Module, recipes: Sequence[CutRecipe], proof: Proof) -> str | None:
    """Why the model, cut by these recipes, is not what it should be; None if it is. The cut is undone."""
    with ExitStack() as undo:
        try:
            for recipe in recipes:
                apply_recipe(model, recipe, undo)
            return proof.problem(model)
        except Exception as error:
            return short_message(error)


def _each_implementation(model: Any) -> Iterator[str]:
    """Both attention implementations of transformers in turn, as far as the model has them."""
    before = model.config._attn_implementation
    try:
        for name in IMPLEMENTATIONS:
            with quiet():
                try:
                    model.set_attn_implementation(name)
                except ValueError:
                    continue
            yield name
    finally:
        with quiet():
            model.set_attn_implementation(before)


def _running_implementations(model: Any) -> list[str]:
    """The implementations in which the model runs."""
    found: list[str] = []
    for name in _each_implementation(model):
        with suppress(Exception):
            Proof(model, {})
            found.append(name)
    return found
