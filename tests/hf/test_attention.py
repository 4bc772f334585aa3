"""Our mechanisms inside models of Hugging Face, through transformers' own attention interface."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.hf.attention import register_mechanism
from attnworks.hf.tiny import tiny_model
from tests.covering import noted
from tests.helpers import assert_close
from tests.tiny_models import TINY, inputs


def outputs(model: Any, given: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        result = model(**given)
    return result[0]


def with_attention(model: Any, name: str) -> Any:
    model.set_attn_implementation(name)
    return model


@pytest.mark.parametrize("family", TINY)
def test_mechanisms_that_see_everything_change_nothing(family: str) -> None:
    model = TINY[family].build()
    given = inputs(model)
    want = outputs(model, given)
    masked = want.dim() == 3 and "attention_mask" in given and want.shape[1] == given["attention_mask"].shape[1]
    real = given["attention_mask"].bool() if masked else slice(None)
    for mechanism in ("dense", "window:window=40", "longformer:window=1,n_global=40", "graph"):
        with noted(mechanism):
            name = register_mechanism(mechanism)
            got = outputs(with_attention(model, name), given)
            assert model.config._attn_implementation == name
            assert_close(got[real], want[real])


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "bart", "t5"])
def test_mechanisms_that_see_less_change_something(family: str) -> None:
    model = TINY[family].build()
    given = inputs(model)
    want = outputs(model, given)
    for mechanism in ("window:window=1", "bigbird:window=2,block=2,n_global=1,n_random=0", "linear"):
        if family == "t5" and mechanism == "linear":
            continue  # positions are added to the scores, which linear attention does not have
        with noted(mechanism):
            got = outputs(with_attention(model, register_mechanism(mechanism)), given)
            assert got.shape == want.shape and got.isfinite().all() and (got - want).abs().max() > 1e-3


@pytest.mark.parametrize("mechanism", ["window:window=2", "linear", "bigbird:window=2,block=2,n_global=1,n_random=1"])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_writing_with_a_cache_is_writing_without(family: str, mechanism: str) -> None:
    model = with_attention(TINY[family].build(), register_mechanism(mechanism))
    prompt = inputs(model, padded=False)["input_ids"]
    settings = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    kinds: list[dict[str, Any]] = [{"use_cache": True}, {"cache_implementation": "static"}, {"use_cache": False}]
    cached, fixed, again = (model.generate(prompt, **settings, **kind) for kind in kinds)
    assert torch.equal(cached, again) and torch.equal(fixed, again)


def test_a_mask_for_all_places_of_a_cache_of_fixed_length() -> None:
    """A row of padding may be as long as the tokens so far, or as the cache."""
    model = with_attention(TINY["llama"].build(), "sdpa")
    ids = inputs(model, padded=False)["input_ids"]
    n = ids.shape[1]
    real = torch.zeros(len(ids), n + 4, dtype=torch.long)
    real[:, :n] = 1
    real[-1, :2] = 0
    want = outputs(model, {"input_ids": ids, "attention_mask": real[:, :n]})
    with_attention(model, register_mechanism("dense"))
    for mask in (real[:, :n], real):
        with noted(f"a mask of {mask.shape[1]} places"):
            cache: Any = transformers.StaticCache(config=model.config, max_cache_len=n + 4)
            given = {"input_ids": ids, "attention_mask": mask, "past_key_values": cache, "use_cache": True}
            assert_close(outputs(model, given)[real[:, :n].bool()], want[real[:, :n].bool()])


def test_positions_that_a_cache_may_have_forgotten_are_refused() -> None:
    model = with_attention(tiny_model("mistral").model, register_mechanism("longformer:window=1,n_global=1"))
    settings = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    with pytest.raises(UsageError, match=r"n_global=1 in a model with sliding_window: .*, got sliding_window=13; "):
        model.generate(torch.arange(10, 18)[None], **settings)


@pytest.mark.parametrize("family", ["bart", "t5", "gpt2-cross", "bert-decoder"])
def test_a_window_is_never_laid_across_two_sequences(family: str) -> None:
    """Even where source and target are of one length: what is padded by one token must give the same."""
    model = TINY[family].build()
    given = inputs(model, padded=False)
    n = given["input_ids"].shape[1]
    equal = {name: part[:, :n].contiguous() for name, part in given.items()}
    longer = {**equal}
    if "encoder_hidden_states" in given:
        states = given["encoder_hidden_states"][:, : n + 1].contiguous()
        longer["encoder_hidden_states"] = states
        longer["encoder_attention_mask"] = (torch.arange(n + 1) < n).long().expand(len(states), -1)
    else:
        pad = torch.full_like(given["input_ids"][:, :1], 1)
        longer["input_ids"] = torch.cat([given["input_ids"], pad], 1)
        longer["attention_mask"] = torch.cat([given["attention_mask"], torch.zeros_like(pad)], 1)
    want = outputs(model, equal)
    model = with_attention(model, register_mechanism("window:window=0"))
    got = outputs(model, equal)
    assert_close(got, outputs(model, longer))
    assert (got - want).abs().max() > 1e-3


@pytest.mark.parametrize("option", [{"sliding_window": 3}, {"softcap": 30.0}])
def test_what_an_implementation_would_leave_out_is_refused(option: dict[str, Any]) -> None:
    from transformers import AttentionInterface

    attend = AttentionInterface()[register_mechanism("dense")]
    Q = torch.randn(1, 2, 7, 4)
    with pytest.raises(UsageError, match=f"dense in a model with {next(iter(option))}"):
        attend(torch.nn.Module(), Q, Q, Q, None, **option)
    attend(torch.nn.Module(), Q, Q, Q, None, sliding_window=7, softcap=None)


def test_a_mechanism_keeps_its_own_scale() -> None:
    """Luong's dot score has none, whatever is usual in the model; a scale that is not usual belongs to the model."""
    model = TINY["bert"].build()
    given = inputs(model)
    want = outputs(model, given)
    assert (outputs(with_attention(model, register_mechanism("luong-dot")), given) - want).abs().max() > 1e-3


def test_a_mechanism_with_parameters_is_refused() -> None:
    with pytest.raises(UsageError, match="a mechanism without parameters, got linformer, which has some"):
        register_mechanism("linformer")


def test_scores_with_positions_added_are_refused_where_there_are_no_scores() -> None:
    model = with_attention(TINY["t5"].build(), register_mechanism("linear"))
    with pytest.raises(UsageError, match="linear attention with a dense mask"):
        outputs(model, inputs(model))
