"""Cutting models: in one step or several, with a proof, in the form that the layer allows."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.hf.anatomy import layout_of
from attnworks.hf.cut import keep as keep_module
from attnworks.hf.cut.proof import Proof, distance
from attnworks.hf.cut.recipe import CutRecipe
from attnworks.hf.folder import save_hf
from attnworks.hf.open import open_model
from attnworks.hf.subject import HFSubject
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.surgery import keep_heads, keep_heads_by_layer, layers_of
from tests.exam_helpers import tiny_tokenizer
from tests.hf.cut.cut_helpers import SOME_TYPES, assert_same, read, tiny
from tests.traces.trace_helpers import Keep, dense_map, random_batch

Kept = dict[Slot, list[int]]


def parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def different_choices(model: Any) -> Kept:
    """No head, all groups but one, all heads but one, in turn."""
    kept: Kept = {}
    for number, layer in enumerate(layout_of(model).layers):
        groups = [head for group in layer.shares[1:] for head in group]
        heads = ([], groups, list(range(layer.heads - 1)))[number % 3]
        kept |= dict.fromkeys(layer.slots, heads)
    return kept


def removed(model: Any, kept: Kept) -> dict[str, set[int]]:
    layers = layout_of(model).layers
    return {layer.path: {*range(layer.heads)} - {*kept[layer.slots[0]]} for layer in layers if layer.slots[0] in kept}


@pytest.mark.parametrize("name", SOME_TYPES)
def test_cut_saved_and_cut_again(name: str, tmp_path: Path) -> None:
    model = copy.deepcopy(tiny(name))
    kept = different_choices(model)
    proof = Proof(model, removed(model, kept))
    keep_heads_by_layer(model, kept)
    assert proof.problem(model) is None and proof.effect > 1e-3
    assert parameters(model) < parameters(tiny(name))
    assert {slot: part.heads for slot, part in layers_of(model).items()} == {slot: len(kept[slot]) for slot in kept}
    again = saved_and_opened(model, tmp_path / "first")
    assert_same(read(again), read(model))
    for one in (model, again):
        more = {slot: list(range(1, part.heads)) for slot, part in layers_of(one).items() if part.heads > 1}
        proof = Proof(one, removed(one, more))
        keep_heads_by_layer(one, more)
        assert proof.problem(one) is None
    assert_same(read(again), read(model))
    assert_same(read(saved_and_opened(again, tmp_path / "second")), read(model))


def saved_and_opened(model: Any, folder: Path) -> Any:
    folder.mkdir()
    save_hf(model, folder)
    opened = open_model(str(folder), dtype=str(next(model.parameters()).dtype).removeprefix("torch.")).model
    assert weights_fingerprint(opened) == weights_fingerprint(model)
    return opened


def test_all_layers_and_layer_by_layer() -> None:
    once, layer_by_layer = copy.deepcopy(tiny("llama")), copy.deepcopy(tiny("llama"))
    kept = different_choices(once)
    keep_heads_by_layer(once, kept)
    for slot, heads in kept.items():
        keep_heads(layer_by_layer, slot, heads)
    assert weights_fingerprint(once) == weights_fingerprint(layer_by_layer)
    assert once.config.to_dict() == layer_by_layer.config.to_dict()
    assert_same(read(once), read(layer_by_layer))


def test_the_form_is_said() -> None:
    model = copy.deepcopy(tiny("llama"))
    first, second = layout_of(model).layers[:2]
    groups = [head for group in first.shares[1:] for head in group]
    forms = keep_heads_by_layer(model, {first.slots[0]: groups, second.slots[0]: [*range(1, second.heads)]})
    assert forms == {first.slots[0]: "plain", second.slots[0]: "stored"}


def test_stored_where_the_plain_form_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipe that is wrong in this model, though right in its twin, gives way; the other layer stays plain."""
    model = copy.deepcopy(tiny("bert"))
    learned = keep_module.learned_recipe

    def wrong(place: Any, kept: Any, *more: Any, **given: Any) -> CutRecipe | None:
        if place.layer.slots[0].layer == 0:
            return learned(place, [head + 1 for head in kept], *more, **given)
        return learned(place, kept, *more, **given)

    monkeypatch.setattr(keep_module, "learned_recipe", wrong)
    kept = {Slot("encoder", 0): [0, 1, 5], Slot("encoder", 1): [0, 1, 5]}
    proof = Proof(model, removed(model, kept))
    assert keep_heads_by_layer(model, kept) == {Slot("encoder", 0): "stored", Slot("encoder", 1): "plain"}
    assert proof.problem(model) is None


def test_a_position_bias_of_a_layer_that_lost_its_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next layer, stored, gives up columns of the table from which the empty layer selects none."""
    model = copy.deepcopy(tiny("t5"))
    keep_heads(model, Slot("encoder", 0), [])
    table = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias"
    monkeypatch.setattr(keep_module, "learned_recipe", lambda *given, **more: None)
    kept = {Slot("encoder", 1): [*range(1, layers_of(model)[Slot("encoder", 1)].heads)]}
    proof = Proof(model, removed(model, kept))
    assert keep_heads_by_layer(model, kept) == {Slot("encoder", 1): "stored"}
    assert proof.problem(model) is None
    assert model.get_submodule(table).weight.shape[1] == len(kept[Slot("encoder", 1)])


def test_refused_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """If one layer fails its proof, all layers stay as they were."""
    model = copy.deepcopy(tiny("llama"))
    before, weights = read(model), weights_fingerprint(model)
    stored = keep_module.stored_recipe

    def wrong(place: Any, kept: Any) -> CutRecipe:
        return stored(place, [head - 1 for head in kept] if place.layer.slots[0].layer == 1 else kept)

    monkeypatch.setattr(keep_module, "stored_recipe", wrong)
    heads = layout_of(model).layers[0].heads
    with pytest.raises(
        UsageError, match=r"^fewer heads in dec\.1: expected heads .* got outputs that differ by"
    ) as error:
        keep_heads_by_layer(model, {slot: [*range(1, heads)] for slot in layers_of(model)})
    assert "\n" not in str(error.value)
    assert weights_fingerprint(model) == weights and not hasattr(model.config, "attnworks_cuts")
    assert_same(read(model), before)


@pytest.mark.parametrize("name", ["llama", "gpt2", "t5"])
def test_what_is_examined_of_a_stored_layer(name: str) -> None:
    """The heads that are left, with their own queries, keys, values and weights."""
    model = copy.deepcopy(tiny(name))
    slot = next(iter(layers_of(model)))
    whole, cut = Keep(), Keep()
    batch = random_batch((7, 4), (11, 3) if model.config.is_encoder_decoder else None)
    subject = HFSubject(model, name, tiny_tokenizer("bert"))
    with torch.no_grad():
        subject.run(batch, whole)
        kept = [0, *range(2, layers_of(model)[slot].heads)]
        keep_module.cut_heads(model, {slot: kept})
        HFSubject(model, name, tiny_tokenizer("bert")).run(batch, cut)
    before, after = (next(trace for trace in keep.traces if trace.slot == slot) for keep in (whole, cut))
    assert after.heads == len(kept) and distance(after.Y, before.Y[:, kept]) < 1e-6
    assert distance(dense_map(after), dense_map(before)[:, kept]) < 1e-6
