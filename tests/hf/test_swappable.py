"""Which mechanisms a layer can have, and the reasons against others."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.attention.heads import HeadGroups
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.hf.anatomy import hf_layers
from attnworks.hf.attention import register
from attnworks.hf.swappable import OwnAttention, hf_refusal_to_swap, own_attention_of
from attnworks.hf.tiny import tiny_model
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.surgery import mechanisms_of, with_mechanisms
from tests.tiny_models import TINY

WINDOW, BAND, BLOCKS = "window:window=2", "structured:members=-1..0,error=none", "structured:members=block4,error=none"
BIGBIRD = "bigbird:window=1,block=1,n_global=1,n_random=0"


@cache
def tiny(name: str) -> Any:
    return tiny_model(name).model


def told(name: str, spec: str, slot: str = "dec.0") -> str | None:
    model, where = tiny(name), Slot.parse(slot)
    return hf_refusal_to_swap(model, where, (spec,) * len(mechanisms_of(model, cross=True)[where]))


@pytest.mark.parametrize(
    ("name", "spec", "reason"),
    [
        ("bloom", WINDOW, "cannot take the place of attention outside of the attention interface of transformers"),
        ("bloom", BAND, "cannot take the place of attention outside of the attention interface of transformers"),
        ("gemma2", WINDOW, "cannot cap its scores, as the layer does"),
        ("gpt_oss", WINDOW, "has no sink logit in its softmax, as the layer has"),
        ("mistral", "linear", "cannot keep to the window of 13 tokens that the layer has"),
        ("mistral", BIGBIRD, "counts positions from the first one, which the layer forgets after 13 tokens"),
        ("mistral", BLOCKS, "counts positions from the first one, which the layer forgets after 13 tokens"),
        ("deepseek_v32", "linear", "would see more than the layer does, which hides keys in a way of its own"),
        ("t5", "linear", "has no scores that positions could be added to, as the model does"),
    ],
)
def test_reasons(name: str, spec: str, reason: str) -> None:
    assert told(name, spec) == reason
    layer = Slot.parse("dec.0")
    heads = len(mechanisms_of(tiny(name), cross=True)[layer])
    with pytest.raises(UsageError) as error:
        with_mechanisms(tiny(name), {layer: (spec, *("dense",) * (heads - 1))})
    assert f"got one that {reason}; " in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "spec", "slot"),
    [
        ("gemma2", BAND, "dec.0"),
        ("gpt_oss", BAND, "dec.0"),
        ("mistral", WINDOW, "dec.1"),
        ("gemma3_text", "linear", "dec.1"),
        ("modernbert", BIGBIRD, "enc.1"),
        ("t5", "linear", "cross.0"),
        ("deepseek_v32", WINDOW, "dec.0"),
        ("glm5_next_text", WINDOW, "dec.1"),
    ],
)
def test_what_layers_can_have(name: str, spec: str, slot: str) -> None:
    assert told(name, spec, slot) is None


def test_unchanged_heads_are_not_asked() -> None:
    assert told("bloom", "dense") is None and told("gpt_oss", "dense") is None


def test_what_layers_do() -> None:
    window, whole = own_attention_of(tiny("gemma2")).values()
    assert window == OwnAttention(scale=window.scale, capped=True, window=13)
    assert whole == OwnAttention(scale=window.scale, capped=True)
    assert {own.added for own in own_attention_of(tiny("t5")).values()} == {True, False}
    (llama, *_) = own_attention_of(TINY["llama"].build()).values()
    assert llama.scale == pytest.approx(6**-0.5) and llama == OwnAttention(scale=llama.scale)


def squared(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """Weights in proportion to squares of scores in layer 1, to exponentials in layer 0."""
    S = query @ key.mT * options["scaling"]
    odd = module is module.config.odd[0]
    P = S.square() / S.square().sum(-1, keepdim=True) if odd else S.softmax(-1)
    return (P @ value).transpose(1, 2).contiguous(), None


def test_attention_that_is_no_softmax_is_found() -> None:
    """Where it is computed through the interface in the model's own way; the other layer can still be changed."""
    model = TINY["bert"].build()
    model.config.odd = [model.bert.encoder.layer[1].attention.self]
    model.set_attn_implementation(register("tests-squared", squared))
    before = weights_fingerprint(model)
    ordinary, odd = own_attention_of(model).values()
    assert ordinary.problem is None or "no softmax" in ordinary.problem
    assert odd.problem is not None and odd.problem.startswith("cannot take the place of attention that is no softmax")
    assert weights_fingerprint(model) == before
    assert not any(isinstance(module, HeadGroups) for module in model.modules())


def test_it_is_found_once() -> None:
    model, runs = TINY["bert"].build(), list[int]()
    model.bert.register_forward_hook(lambda *call: runs.append(1))
    first = own_attention_of(model)
    count = len(runs)
    assert own_attention_of(model) is first and len(runs) == count <= 12
    with_mechanisms(model, {Slot.parse("enc.0"): (WINDOW, "dense", "dense")})
    assert own_attention_of(model) is first and len(runs) == count


def test_models_that_do_not_run_are_refused_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    model = TINY["bert"].build()
    layers = hf_layers(model)
    monkeypatch.setattr(model.bert, "forward", lambda **given: torch.zeros(3) @ torch.zeros(2))
    problem = next(iter(own_attention_of(model).values())).problem
    assert problem is not None and problem.startswith("would be in a model that does not run on a few token ids")
    assert len(layers) == 2
