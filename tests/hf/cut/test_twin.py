"""What is learned in a tiny twin: which attributes follow a cut, in which form heads go, and why they cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnworks.hf.anatomy import layout_of
from attnworks.hf.cut.attributes import Attribute, reads_of
from attnworks.hf.cut.plan import Place
from attnworks.hf.cut.sizes import absolute, pattern_of, relative, some_heads
from attnworks.hf.cut.twin import Twin, twin_of
from attnworks.hf.tiny import text_model_types, tiny_model
from tests.hf.cut.cut_helpers import SOME_TYPES, assert_same, place_in, read, tiny
from tests.tiny_models import TINY

OF_MODULE, OF_LAYER = ".", False
GROUPS: dict[Attribute, tuple[str | None, ...]] = {
    Attribute(OF_MODULE, OF_LAYER, "num_key_value_groups"): ("heads per key head",)
}

LEARNED: dict[tuple[str, str], dict[Attribute, tuple[str | None, ...]] | None] = {
    ("bert", "heads"): {},
    ("gpt2", "heads"): {Attribute(OF_MODULE, OF_LAYER, "split_size"): ("heads x key width",)},
    ("gptj", "heads"): {Attribute(OF_MODULE, OF_LAYER, "num_attention_heads"): ("heads",)},
    ("llama", "groups"): {},
    ("llama", "within"): GROUPS,
    ("llama", "both"): GROUPS,
    ("llama", "uneven"): None,
    ("bloom", "heads"): None,
    ("olmo2", "groups"): None,
}
"""Type and choice of heads -> the attributes that follow, and what they count; None if attention needs all heads."""


def learned(name: str, pattern: Any, number: int = 0) -> Any:
    place = place_in(tiny(name), number)
    kept = some_heads(place.layer, pattern)
    assert kept is not None and pattern_of(place.layer, kept) == pattern
    return Twin(tiny(name)).learn(place, kept)


@pytest.mark.parametrize(("name", "pattern"), LEARNED, ids=str)
def test_attributes_by_what_they_count(name: str, pattern: str) -> None:
    found = learned(name, pattern)
    assert found.problem is None and found.meaning == LEARNED[name, pattern]


@pytest.mark.parametrize("name", SOME_TYPES)
def test_every_choice_of_heads(name: str) -> None:
    """All are cut in some form, and the twin stays as it was."""
    before = read(tiny(name))
    for number, layer in enumerate(layout_of(tiny(name)).layers[:3]):
        grouped = len(layer.shares) < layer.heads
        for pattern in ("none", *(("groups", "within", "uneven") if grouped else ("heads",))):
            assert learned(name, pattern, number).problem is None, pattern
    assert_same(read(tiny(name)), before)


def test_position_biases() -> None:
    assert learned("t5", "heads").selects_positions and learned("t5", "heads").meaning is not None
    assert not learned("umt5", "heads").selects_positions and learned("umt5", "heads").meaning is not None


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("bitnet", "heads that are mixed before a module reads them"),
        ("squeezebert", "heads that are mixed before a module reads them"),
        ("doge", "outputs that differ by"),
    ],
)
def test_what_cannot_be_cut(name: str, told: str) -> None:
    place = place_in(tiny(name))
    kept = [head for group in place.layer.shares[1:] for head in group]
    problem = Twin(tiny(name)).learn(place, kept).problem  # pyright: ignore[reportOptionalMemberAccess]
    assert problem is not None and told in problem and "\n" not in problem


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "opt", "vit"])
def test_layers_of_a_model_have_one_of_the_same_kind_in_its_twin(name: str) -> None:
    model = TINY[name].build()
    twin = twin_of(model)
    assert twin is twin_of(TINY[name].build(seed=3)) and twin is not twin_of(TINY["mistral"].build())
    if name == "vit":  # the twin of a model that reads pictures is not built
        assert twin.model is None
    layers = layout_of(model).layers
    for layer in layers:
        found = twin.learn(Place(model, layers, layer), [head for group in layer.shares[1:] for head in group])
        assert found is None if twin.model is None else (found is not None and found.meaning is not None)


def test_numbers_that_are_read() -> None:
    model = tiny("llama")
    paths = ["model.layers.0.self_attn", "model.layers.0"]
    kinds = [type(model.get_submodule(path)) for path in paths]
    with reads_of(model, paths) as reads:
        read(model)
    assert ("model.layers.0.self_attn", False, "head_dim") in reads
    assert ("model.layers.0.self_attn", False, "is_causal") not in reads, "no whole number"
    assert [type(model.get_submodule(path)) for path in paths] == kinds
    assert model.model.layers[0].self_attn.config is model.config


@pytest.mark.parametrize(
    ("path", "start", "seen"),
    [
        ("a.0.attn.q", "a.0.attn", "q"),
        ("a.0.attn", "a.0.attn", "."),
        ("a.0", "a.0.attn", ".."),
        ("a.0.output.dense", "a.0.attn.self", "../../output/dense"),
        ("b", "a.0", "../../b"),
    ],
)
def test_paths_from_a_module(path: str, start: str, seen: str) -> None:
    assert relative(path, start) == seen and absolute(seen, start) == path


@pytest.mark.slow
@pytest.mark.parametrize("name", text_model_types())
def test_every_type(name: str) -> None:
    """A group of heads, one head, and all: cut, or refused in words. Nothing else, and the model stays as it was."""
    model = tiny_model(name).model
    if model is None or not layout_of(model).layers or "glm5" in name:
        return
    before = read(model)
    place = place_in(model)
    for pattern in ("none", "uneven", "groups" if len(place.layer.shares) < place.layer.heads else "heads"):
        if (kept := some_heads(place.layer, pattern)) is not None:
            found = Twin(model).learn(place, kept)
            assert found is not None and (found.problem is None or "\n" not in found.problem)
    for one, other in zip(read(model), before, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
