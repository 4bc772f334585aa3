"""Cutting by a recipe in place: what is kept of modules, and undone bit for bit."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest
import torch

from attnworks.hf.cut.apply import ChangedConfig, apply_recipe, check
from attnworks.hf.cut.plan import emptied, plain_recipe, stored_recipe
from attnworks.hf.cut.recipe import CutRecipe
from attnworks.models.folder import weights_fingerprint
from tests.hf.cut.cut_helpers import assert_same, place_in, read, tiny

TYPES = ("bert", "gpt2", "gpt_oss", "phi3", "t5", "umt5")


def recipes(model: Any, form: str) -> list[CutRecipe]:
    place = place_in(model)
    kept = [head for group in place.layer.shares[1:] for head in group]
    if form == "empty":
        return emptied(place, None)
    recipe = stored_recipe(place, kept) if form == "stored" else plain_recipe(place, kept)
    assert recipe is not None
    return [recipe]


def hooks_of(model: Any) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.mark.parametrize("form", ["plain", "stored", "empty"])
@pytest.mark.parametrize("name", TYPES)
def test_undone_bit_for_bit(name: str, form: str) -> None:
    model = tiny(name)
    before, names, weights, hooks = read(model), [*model.state_dict()], weights_fingerprint(model), hooks_of(model)
    modules = [*model.modules()]
    with ExitStack() as undo:
        for recipe in recipes(model, form):
            check(model, recipe)
            apply_recipe(model, recipe, undo)
        assert weights_fingerprint(model) != weights
    assert [*model.state_dict()] == names and weights_fingerprint(model) == weights and hooks_of(model) == hooks
    assert [*model.modules()] == modules
    assert_same(read(model), before)


@pytest.mark.parametrize("form", ["plain", "stored", "empty"])
@pytest.mark.parametrize("name", TYPES)
def test_by_its_json_in_another_model(name: str, form: str) -> None:
    """Also on the meta device, on which a folder is checked before it is read."""
    model, found = copy.deepcopy(tiny(name)), copy.deepcopy(tiny(name))
    empty = copy.deepcopy(tiny(name)).to("meta")
    for recipe in recipes(tiny(name), form):
        apply_recipe(model, recipe, ExitStack())
        for other in (found, empty):
            again = CutRecipe.from_json(recipe.to_json())
            check(other, again)
            apply_recipe(other, again, ExitStack())
    assert weights_fingerprint(found) == weights_fingerprint(model)
    assert [tensor.shape for tensor in empty.state_dict().values()] == [
        tensor.shape for tensor in model.state_dict().values()
    ]
    if form != "plain":  # attributes are not part of these plain recipes
        assert_same(read(found), read(model))
        assert_same(read(copy.deepcopy(model)), read(model))


@pytest.mark.parametrize("form", ["plain", "stored"])
def test_types_and_frozen_weights_are_kept(form: str) -> None:
    model = copy.deepcopy(tiny("bert")).to(torch.bfloat16)
    attention = model.bert.encoder.layer[0].attention
    for parameter in (attention.self.key.weight, attention.self.value.bias, attention.output.dense.weight):
        parameter.requires_grad_(False)
    flags = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    for recipe in recipes(tiny("bert"), form):
        apply_recipe(model, recipe, ExitStack())
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == flags
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
    query = attention.self.query
    assert query.out_features == len(query.weight) == len(query.bias) < tiny("bert").config.hidden_size
    assert attention.output.dense.in_features == attention.output.dense.weight.shape[1] == query.out_features


def test_a_layer_without_heads_has_its_output_bias_alone() -> None:
    model = copy.deepcopy(tiny("bert"))
    for recipe in recipes(model, "empty"):
        apply_recipe(model, recipe, ExitStack())
    attention = model.bert.encoder.layer[0].attention
    left = {name for name, _ in attention.named_parameters() if "LayerNorm" not in name}
    assert left == {"output.dense.bias"}


@pytest.mark.parametrize(
    "change",
    [
        {"attention": "nowhere"},
        {"output": "nowhere"},
        {"outputs": {"nowhere": (0,)}},
        {"outputs": {"bert.encoder.layer.0": (0,)}},
        {"outputs": {"bert.encoder.layer.0.attention.self.query": (0, 10**6)}},
        {"inputs": (10**6,)},
        {"parameters": {"nowhere": (0, (0,))}},
        {"parameters": {"cls.predictions.bias": (1, (0,))}},
        {"parameters": {"cls.predictions.bias": (0, (10**6,))}},
        {"attributes": {"bert.encoder.layer.0.attention.self": {"nothing": 3}}},
        {"attributes": {"bert.encoder.layer.0.attention.self": {"training": 1}}},
        {"attributes": {"bert.encoder.layer.0.attention.self": {"forward": 1}}},
        {"attributes": {"bert.encoder.layer.0.attention.self": {"num_attention_heads": 10**6}}},
        {"attributes": {"bert.encoder.layer.0.attention.self": {"num_attention_heads": [3]}}},
        {"config": {"bert.encoder.layer.0.attention.self": {"hidden_act": 1}}},
        {"selects_positions": True},
    ],
    ids=str,
)
def test_recipes_that_do_not_fit(change: dict[str, Any]) -> None:
    (recipe,) = recipes(tiny("bert"), "plain")
    check(tiny("bert"), recipe)
    with pytest.raises((ValueError, AttributeError)):
        check(tiny("bert"), replace(recipe, **change))


def test_a_config_with_other_values_follows_that_of_the_model() -> None:
    model = copy.deepcopy(tiny("bert"))
    attention = model.bert.encoder.layer[0].attention.self
    attention.config = ChangedConfig(attention.config, {"num_attention_heads": 3})
    again = copy.deepcopy(model)
    for one in (model, again):
        one.set_attn_implementation("eager")
        changed = one.bert.encoder.layer[0].attention.self.config
        assert changed._attn_implementation == "eager" and changed.num_attention_heads == 3
        assert one.config.num_attention_heads == 15 and changed.hidden_size == one.config.hidden_size
    assert again.bert.encoder.layer[0].attention.self.config.of_model is again.config
