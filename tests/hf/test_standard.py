"""Models with fewer heads as plain models of transformers, where a config can say so; the others stay as they are."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from attnworks.hf.anatomy import layout_of
from attnworks.hf.standard import to_standard
from attnworks.reshape.surgery import keep_heads_by_layer, layers_of
from tests.hf.cut.cut_helpers import tiny

PLAIN = (
    "apertus",
    "cohere2",
    "gemma2",
    "glm4",
    "granite",
    "llama",
    "mistral",
    "olmo2",
    "phi3",
    "qwen3",
    "qwen3_moe",
    "t5",
)
OURS = ("albert", "bart", "bert", "gpt2", "gpt_neox", "opt")
"""Families whose configs have no entry for the width of a head beside the hidden size."""


def evenly(model: Any, *, groups: bool) -> Any:
    """A copy without the first group of every layer, or without the first head of every group."""
    new = copy.deepcopy(model)
    kept = {}
    for layer in layout_of(model).layers:
        left = layer.shares[1:] if groups else [group[1:] or group for group in layer.shares]
        kept |= {slot: [head for group in left for head in group] for slot in layer.slots}
    keep_heads_by_layer(new, kept)
    return new


@pytest.mark.parametrize("name", OURS)
def test_families_without_an_entry_for_the_width(name: str) -> None:
    model = evenly(tiny(name), groups=True)
    assert to_standard(model) is model


def test_numbers_that_differ() -> None:
    model = copy.deepcopy(tiny("llama"))
    first, *others = layers_of(model)
    keep_heads_by_layer(model, {first: [0, 1, 2]} | {slot: [0, 1, 2, 3, 4, 5] for slot in others})
    assert to_standard(model) is model


def test_other_numbers_in_the_groups() -> None:
    """Heads of which more share one key than another: no number of a config says that."""
    model = copy.deepcopy(tiny("llama"))
    keep_heads_by_layer(model, {slot: [0, 1, 2, 3, 6, 9, 12] for slot in layers_of(model)})
    assert to_standard(model) is model


def test_a_model_as_it_came() -> None:
    assert to_standard(tiny("llama")) is tiny("llama")


def test_frozen_weights_and_settings_of_generation_stay() -> None:
    model = copy.deepcopy(tiny("llama"))
    model.model.layers[0].mlp.up_proj.weight.requires_grad_(False)
    model.generation_config.temperature = 0.7
    plain: Any = to_standard(evenly(model, groups=True))
    assert not plain.model.layers[0].mlp.up_proj.weight.requires_grad and plain.model.embed_tokens.weight.requires_grad
    assert plain.generation_config.temperature == 0.7
