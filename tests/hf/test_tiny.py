"""Tiny models of any type: sizes that all differ, the same from the same seed, twins with the options of a model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from attnworks.hf.tiny import text_model_types, tiny_inputs, tiny_like, tiny_model
from attnworks.hf.tiny_config import special_ids
from attnworks.hf.tiny_text import TEXTS, WORDS, tiny_tokenizer, word_ids

transformers: Any = pytest.importorskip("transformers")

SIZES = (
    *("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("num_hidden_layers", "sliding_window", "max_position_embeddings", "vocab_size"),
)
TYPES = ("bert", "gpt2", "t5", "llama", "deepseek_v3", "qwen2_vl", "mamba2")


def logits(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize("sizes", ["first", "second"])
@pytest.mark.parametrize("model_type", TYPES)
def test_a_type_runs_in_float64_and_the_seed_decides_everything(model_type: str, sizes: str) -> None:
    one, same, other = (tiny_model(model_type, seed, sizes) for seed in (5, 5, 6))
    assert one.reason == "" and one.model.dtype == torch.float64
    assert one.model.config.model_type == model_type
    assert torch.equal(logits(one.model, one.inputs), logits(same.model, one.inputs))
    assert not torch.allclose(logits(one.model, one.inputs), logits(other.model, one.inputs))
    assert all(weight.std() > 0 for weight in one.model.parameters() if weight.numel() > 1)


@pytest.mark.parametrize("sizes", ["first", "second"])
def test_no_two_sizes_of_a_layer_are_equal(sizes: str) -> None:
    config = tiny_model("mistral", sizes=sizes).model.config
    heads, groups, width = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    numbers = [getattr(config, name) for name in SIZES] + [heads * width, groups * width, heads // groups]
    numbers += [(heads + 2 * groups) * width, width // 2, 3 * config.hidden_size]
    assert [number for number, count in Counter(numbers).items() if count > 1] == []


def test_the_two_sets_of_sizes_share_none() -> None:
    first, second = (vars(tiny_model("mistral", sizes=sizes).model.config) for sizes in ("first", "second"))
    assert [name for name in SIZES if first[name] == second[name]] == []


def test_an_encoder_and_a_decoder_read_different_lengths() -> None:
    inputs = tiny_model("bart").inputs
    assert inputs["input_ids"].shape != inputs["decoder_input_ids"].shape


def test_padding_is_masked() -> None:
    inputs = tiny_inputs(tiny_model("llama").model, batch=3, padding=4)
    assert inputs["attention_mask"].sum(1).tolist() == [11, 7, 7]


@pytest.mark.parametrize(("model_type", "reason"), [("clip", "needs pictures"), ("moonshine", "needs sound")])
def test_a_type_that_does_not_run_on_text_says_what_it_needs(model_type: str, reason: str) -> None:
    tiny = tiny_model(model_type)
    assert tiny.model is None and tiny.reason == reason


@pytest.mark.slow  # imports all of transformers
def test_types_are_those_that_take_token_ids() -> None:
    types = text_model_types()
    assert len(types) >= 367
    assert {"bert", "llama", "t5", "qwen2_vl_text"} <= {*types} and not {"vit", "wav2vec2"} & {*types}


def test_a_twin_keeps_the_options_of_a_model() -> None:
    config = transformers.LlamaConfig(
        hidden_size=72, num_attention_heads=9, num_key_value_heads=3, intermediate_size=31, vocab_size=997,
        num_hidden_layers=5, attention_bias=True, hidden_act="gelu", tie_word_embeddings=True,
    )  # fmt: skip
    twin = tiny_like(transformers.LlamaModel(config))
    own = twin.model.config
    assert type(twin.model) is transformers.LlamaModel
    assert (own.attention_bias, own.hidden_act, own.tie_word_embeddings) == (True, "gelu", True)
    assert (own.num_attention_heads, own.num_key_value_heads, own.hidden_size) == (15, 5, 180)
    assert dict(twin.model.named_parameters()).keys() == {
        name
        for name, _ in transformers.LlamaModel(config).named_parameters()
        if name.split(".")[1] not in {"2", "3", "4"}
    }


@pytest.mark.parametrize(("groups", "expected"), [(4, 15), (1, 1), (2, 5)])
def test_a_twin_shares_keys_as_the_model_does(groups: int, expected: int) -> None:
    config = transformers.LlamaConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=groups, intermediate_size=31, num_hidden_layers=1
    )
    assert tiny_like(transformers.LlamaModel(config)).model.config.num_key_value_heads == expected


def test_a_twin_has_a_layer_of_each_kind() -> None:
    config = transformers.Gemma3TextConfig(
        hidden_size=32, num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=31,
        num_hidden_layers=8, vocab_size=99,
    )  # fmt: skip
    assert len(config.layer_types) == 8
    twin = tiny_like(transformers.Gemma3ForCausalLM(config))
    assert twin.model.config.layer_types == ["sliding_attention", "full_attention"]


def test_a_twin_keeps_the_flag_of_parallel_branches() -> None:
    config = transformers.GPTNeoXConfig(
        hidden_size=32, num_attention_heads=4, intermediate_size=31, num_hidden_layers=1, use_parallel_residual=False
    )
    assert tiny_like(transformers.GPTNeoXForCausalLM(config)).model.config.use_parallel_residual is False


@pytest.mark.parametrize("model_type", ["bert", "roberta", "gpt2", "t5", "llama", "bart", "qwen2_vl"])
def test_a_tokenizer_has_the_special_tokens_of_the_config_and_words_elsewhere(model_type: str) -> None:
    model = tiny_model(model_type).model
    tokenizer, config = tiny_tokenizer(model), model.config.get_text_config()
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        wanted = getattr(config, name, None)
        assert wanted is None or getattr(tokenizer, name) == wanted
    assert None not in (tokenizer.pad_token_id, tokenizer.mask_token_id, tokenizer.unk_token_id)
    words = {tokenizer.convert_tokens_to_ids(word) for word in WORDS}
    assert words <= {*word_ids(model.config)} and not words & special_ids(model.config)
    assert len(words) == len(WORDS) and tokenizer.unk_token_id not in words
    read = tokenizer(list(TEXTS), padding=True)
    assert len({len(ids) for ids in read["input_ids"]}) == 1
    assert len({sum(mask) for mask in read["attention_mask"]}) > 3
    assert max(max(ids) for ids in read["input_ids"]) < model.get_input_embeddings().num_embeddings


def test_only_texts_of_known_words_are_read() -> None:
    assert {word for text in TEXTS for word in text.split()} <= {*WORDS}


@pytest.mark.slow
def test_nearly_all_types_are_built_in_both_sizes() -> None:
    for sizes in ("first", "second"):
        assert sum(tiny_model(name, sizes=sizes).model is not None for name in text_model_types()) >= 360
