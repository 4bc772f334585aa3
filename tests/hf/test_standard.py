"""Models with fewer heads as plain models of transformers, where a config can say so; the others stay as they are."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from attnworks.hf.anatomy import layout_of
from attnworks.hf.standard import to_standard
from attnworks.models.modes import use_plain_experts
from attnworks.reshape.surgery import keep_heads_by_layer, layers_of
from tests.hf.cut.cut_helpers import assert_same, read, tiny

PLAIN = (
    "apertus",
    "cohere2",
    "gemma2",
    "glm4",
    "granite",
    "llama",
    "mistral",
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


@pytest.mark.parametrize("groups", [True, False])
@pytest.mark.parametrize("name", PLAIN)
def test_equal_numbers_of_heads(name: str, groups: bool, tmp_path: Path) -> None:
    """Opened by transformers alone, with weights and constants in float32, which the tiny model has too."""
    if not groups and len(layout_of(tiny(name)).layers[0].shares) == layout_of(tiny(name)).layers[0].heads:
        return
    model = evenly(copy.deepcopy(tiny(name)).float().double(), groups=groups)
    plain: Any = to_standard(model)
    assert plain is not model and not any(entry.startswith("attnworks") for entry in vars(plain.config))
    assert_same(read(plain), read(model))
    plain.save_pretrained(tmp_path / "plain")
    opened = type(plain).from_pretrained(tmp_path / "plain", dtype=torch.float32).double()
    use_plain_experts(opened)
    for found, expected in zip(read(opened), read(model), strict=True):
        torch.testing.assert_close(found, expected)
    assert {part.heads for part in layers_of(opened).values()} == {part.heads for part in layers_of(model).values()}


@pytest.mark.parametrize("name", OURS)
def test_families_without_an_entry_for_the_width(name: str) -> None:
    model = evenly(tiny(name), groups=True)
    assert to_standard(model) is model


@pytest.mark.parametrize("groups", [True, False])
def test_a_norm_over_all_heads(groups: bool) -> None:
    """The queries and keys of removed heads stay in the root mean square, so that no config has fewer of them."""
    model = evenly(tiny("olmo2"), groups=groups)
    assert to_standard(model) is model


def test_a_position_bias_in_each_stack() -> None:
    """The tables of encoder and decoder keep the columns of different heads."""
    model = copy.deepcopy(tiny("t5"))
    parts = layers_of(model)
    kept = {slot: [*range(5)] if slot.kind == "encoder" else [*range(part.heads)][-5:] for slot, part in parts.items()}
    keep_heads_by_layer(model, kept)
    plain = to_standard(model)
    assert plain is not model
    assert_same(read(plain), read(model))


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_implementations_stay(implementation: str) -> None:
    model = copy.deepcopy(tiny("qwen3_moe"))
    model.set_attn_implementation(implementation)
    plain: Any = to_standard(evenly(model, groups=True))
    assert plain.config._attn_implementation == implementation
    assert plain.config._experts_implementation == model.config._experts_implementation == "eager"


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
