"""Keys and values of added columns in the cache of transformers: the same texts and numbers as without a cache."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.core.errors import UsageError
from tests.hf.added_helpers import KEYS, NEW_K, NEW_V, VALUES, Grown, grown

transformers: Any = pytest.importorskip("transformers")

CASES = [
    ("gpt2", "", -1),
    ("llama", "", -1),
    ("gemma2", "", 0),
    ("gemma2", "", 1),
    ("t5", "decoder", -1),
    ("t5", "cross", 0),
    ("bart", "cross", -1),
    ("deepseek_v3", "", -1),
]
"""Types, kinds and numbers of layers; the first layer of gemma2 reads a window of 13 tokens, the second one all."""
NEW_TOKENS = 23
ROUNDING = 1e-6


def wide(name: str, kind: str, number: int = -1, *, turns: bool = False) -> Grown:
    """A model whose layer has columns of keys and of values besides its own, and a new head."""
    some = grown(name, kind, number)
    heads = some.some()
    if turns:
        angles = torch.tensor([0.7, 0.7, 0.0]), torch.tensor([*(0.4, 0.4) * 3, 0.0])
        heads[0], heads[-1] = heads[0]._replace(turns=angles[0]), heads[-1]._replace(turns=angles[1])
    assert (heads[0].W_Q.shape[1], heads[1].W_V.shape[1]) == (KEYS, VALUES)
    assert (heads[-1].W_Q.shape[1], heads[-1].W_V.shape[1]) == (NEW_K, NEW_V)
    some.add(heads)
    return some


def words(some: Grown) -> tuple[str, Tensor, dict[str, Any]]:
    """The ids that a model continues, under their name, and its other inputs."""
    name = "decoder_input_ids" if "decoder_input_ids" in some.inputs else "input_ids"
    others = {key: value for key, value in some.inputs.items() if key in ("input_ids", "attention_mask")}
    others = {key: value for key, value in others.items() if name != "input_ids"}
    return name, some.inputs[name], others


@pytest.mark.parametrize("turns", [False, True])
@pytest.mark.parametrize(("name", "kind", "number"), [*CASES, ("gemma3n_text", "", -1), ("gpt_oss", "", 0)])
def test_logits_token_by_token(name: str, kind: str, number: int, turns: bool) -> None:
    """Three tokens at once, then one by one, then two; for each number of tokens that comes before."""
    if turns and kind == "cross":
        pytest.skip("two sequences have no distances")
    some = wide(name, kind, number, turns=turns)
    of, ids, others = words(some)
    ids = torch.cat([ids, ids.flip(1)], 1)
    n, past, found = ids.shape[1], None, []
    with torch.no_grad():
        whole = some.model(**others, **{of: ids}, use_cache=False).logits
        for start, stop in ((0, 3), *((at, at + 1) for at in range(3, n - 2)), (n - 2, n)):
            step = some.model(**others, **{of: ids[:, start:stop]}, past_key_values=past, use_cache=True)
            past, found = step.past_key_values, [*found, step.logits]
    assert (torch.cat(found, 1) - whole).abs().max() <= ROUNDING * whole.abs().max()


def generate(some: Grown, rows: int, **settings: Any) -> Tensor:
    """Ids written after several beginnings, the first of which is padded on the left."""
    ids = some.inputs["input_ids"]
    ids = torch.cat([ids.roll(row, 1) for row in range(rows)])
    real = torch.ones_like(ids)
    real[0, :2] = 0
    given = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "eos_token_id": None, "pad_token_id": 0} | settings
    return some.model.generate(ids, attention_mask=real, **given)


@pytest.mark.parametrize("settings", [{}, {"num_beams": 3}], ids=str)
@pytest.mark.parametrize(("name", "kind", "number"), CASES)
def test_generated_texts(name: str, kind: str, number: int, settings: dict[str, Any]) -> None:
    """Greedily, and by beams, for which the cache is reordered."""
    some = wide(name, kind, number)
    expected = generate(some, 3, use_cache=False, **settings)
    assert torch.equal(generate(some, 3, use_cache=True, **settings), expected)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_guesses_that_are_taken_back(name: str) -> None:
    """The cache is cut to the tokens before a wrong guess."""
    some = wide(name, "")
    expected = generate(some, 1, use_cache=False)
    assert torch.equal(generate(some, 1, use_cache=True, prompt_lookup_num_tokens=2), expected)


def test_the_cache_has_the_added_columns_behind_all_layers() -> None:
    """Also where the layers of the cache are made one by one, and in a copy of it."""
    some = wide("llama", "", 0)
    _, ids, _ = words(some)
    with torch.no_grad():
        whole = some.model(ids, use_cache=False).logits
        cache = transformers.DynamicCache()
        some.model(ids[:, :-2], past_key_values=cache, use_cache=True)
        layers = some.model.config.num_hidden_layers
        assert len(cache.layers) == layers + 1
        assert cache.layers[-1].keys.shape == (1, 1, ids.shape[1] - 2, KEYS + NEW_K + VALUES + NEW_V)
        other = copy.deepcopy(cache)
        for some_cache in (cache, other):
            last = some.model(ids[:, -2:], past_key_values=some_cache, use_cache=True).logits
            assert (last - whole[:, -2:]).abs().max() <= ROUNDING * whole.abs().max()


# What is refused -----------------------------------------------------------------------------------------------------


def test_a_cache_that_was_filled_before() -> None:
    some = grown("llama")
    _, ids, _ = words(some)
    cache = transformers.DynamicCache(config=some.model.config)
    with torch.no_grad():
        some.model(ids[:, :-2], past_key_values=cache, use_cache=True)
        some.add(some.some())
        with pytest.raises(UsageError, match="an input of 11 keys, got an input of 2; pass use_cache=False"):
            some.model(ids[:, -2:], past_key_values=cache, use_cache=True)


def test_a_cache_of_fixed_length() -> None:
    some = wide("llama", "")
    with pytest.raises(UsageError, match=r"expected layers of a DynamicCache .* got StaticLayer in StaticCache"):
        generate(some, 1, cache_implementation="static", disable_compile=True)


def test_a_cache_of_another_class() -> None:
    """MiniMax's finds the states of its linear attention by the number of layers."""
    some = wide("minimax", "")
    with pytest.raises(UsageError, match="got DynamicLayer in MiniMaxCache; pass use_cache=False"):
        generate(some, 1)
    assert generate(some, 1, use_cache=False).shape[1] > NEW_TOKENS


def test_a_cache_of_fewer_layers_than_the_model() -> None:
    """What is stored behind its layers is not overwritten."""
    some = wide("llama", "")
    _, ids, _ = words(some)
    cache = transformers.DynamicCache(config=some.model.config)
    with torch.no_grad():
        some.model(ids, past_key_values=cache, use_cache=True)
    K = V = torch.zeros(1, 1, 1, 2)
    with pytest.raises(UsageError, match="a cache with fewer layers than the model has"):
        cache.update(K, V, len(cache.layers) - 1)
