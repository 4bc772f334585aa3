"""Attention implementations of single layers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnworks.hf.cut.apply import ChangedConfig
from attnworks.hf.layer_implementation import (
    LayerImplementation,
    can_set_implementation,
    reset_implementation,
    set_implementation,
)
from tests.tiny_models import TINY, inputs

transformers: Any = pytest.importorskip("transformers")

NAME = "tests-layer"


def model() -> Any:
    return TINY["bert"].build()


def attention_of(model: Any, layer: int) -> Any:
    return model.bert.encoder.layer[layer].attention.self


def read(model: Any) -> Tensor:
    with torch.no_grad():
        return model(**inputs(model))[0]


def test_only_this_layer_calls_the_function() -> None:
    """It gets the masks of the model's implementation; the same computation gives the same outputs, bit by bit."""
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    calls: list[tuple[nn.Module, Tensor]] = []

    def attend(module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor, **options: Any) -> Any:
        calls.append((module, mask))
        return sdpa_attention_forward(module, Q, K, V, mask, **options)

    AttentionInterface.register(NAME, attend)
    some = model()
    expected, attention = read(some), attention_of(some, 1)
    set_implementation(attention, NAME)
    set_implementation(attention, NAME)
    assert torch.equal(read(some), expected)
    assert [module for module, _ in calls] == [attention] and calls[0][1].dtype == torch.bool
    reset_implementation(attention)
    assert torch.equal(read(some), expected) and len(calls) == 1
    assert attention.config is some.config


def test_the_name_equals_that_of_the_model() -> None:
    """Code that compares names does what it does in other layers; names that are looked up are told apart."""
    some = model()
    attention = attention_of(some, 0)
    set_implementation(attention, NAME)
    name = attention.config._attn_implementation
    assert isinstance(name, LayerImplementation) and name in ("eager", "sdpa") and name == NAME
    sdpa, eager = "sdpa", "eager"
    assert name != eager and eager != name and sdpa == name
    assert {NAME: 1, "sdpa": 2}.get(name) == 1 and {"sdpa": 2}.get(name) is None
    assert name.of_model == "sdpa" == some.config._attn_implementation
    some.set_attn_implementation("eager")
    assert name.of_model == "eager" == name != "sdpa" and str(name) == NAME


def test_copies_follow_their_own_model() -> None:
    some = model()
    set_implementation(attention_of(some, 0), NAME)
    other = copy.deepcopy(some)
    other.set_attn_implementation("eager")
    names = [attention_of(each, 0).config._attn_implementation for each in (some, other)]
    assert [name.of_model for name in names] == ["sdpa", "eager"]
    assert names[1].config is other.config and some.config.to_dict() == model().config.to_dict()


def test_beside_other_values_of_one_layer() -> None:
    """A cut layer reads some sizes from a config of its own, which stays, whichever came first."""
    some = model()
    attention, values = attention_of(some, 0), {"num_attention_heads": 2}
    attention.config = ChangedConfig(attention.config, values)
    set_implementation(attention, NAME)
    for name in ("other", NAME):
        set_implementation(attention, name)
        assert str(attention.config._attn_implementation) == name and attention.config.num_attention_heads == 2
    for name in ("other", NAME, "sdpa"):
        reset_implementation(attention)
        assert str(attention.config._attn_implementation) == name and attention.config.num_attention_heads == 2
    set_implementation(attention, NAME)
    attention.config._attn_implementation = attention.config._attn_implementation  # as observers put it back
    assert some.config._attn_implementation == "sdpa" and not isinstance(
        some.config._attn_implementation, LayerImplementation
    )
    attention.config = ChangedConfig(attention.config, {"hidden_size": 7})
    reset_implementation(attention)
    assert str(attention.config._attn_implementation) == "sdpa"
    assert (attention.config.hidden_size, attention.config.num_attention_heads) == (7, 2)


def test_layers_without_a_config() -> None:
    assert can_set_implementation(attention_of(model(), 0)) and not can_set_implementation(nn.Linear(2, 3))
