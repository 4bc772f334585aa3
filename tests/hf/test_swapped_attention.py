"""Single layers of Hugging Face models with mechanisms of attnworks, in models of many kinds."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from transformers import StaticCache

from attnworks.attention.heads import HeadGroups, grouped
from attnworks.attention.structured import Structured
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.hf.anatomy import hf_layers
from attnworks.hf.head_modules import head_groups_of
from attnworks.hf.observe import attention_hook, observe_interface
from attnworks.hf.swapped_attention import HEAD_GROUPS, own_attention, remove_groups, set_groups
from attnworks.hf.tiny import TinyModel, tiny_inputs, tiny_model
from attnworks.reshape.surgery import mechanisms_of, with_mechanisms
from tests.helpers import assert_close
from tests.tiny_models import TINY, inputs

WINDOW, BAND = "window:window=2", "structured:members=-1..0/first,error=none"
BY_CONTENT = ("bert", "t5", "gemma3_text", "llama4_text", "qwen3_next", "deepseek_v32", "diffllama", "doge")
"""Positions added to scores, windows in some layers, chunks, other mixers, latent keys that are chosen for each query,
two calls in one layer, a mask for each head."""
BY_POSITION = ("gemma2", "gpt_oss")
"""Capped scores, sink logits: other heads of such a layer keep these."""
CASES = [*((name, WINDOW) for name in BY_CONTENT), *((name, BAND) for name in (*BY_CONTENT, *BY_POSITION))]


class Case(NamedTuple):
    """A model, two sentences with padding that are longer than its windows, and the first layer that is changed."""

    tiny: TinyModel
    given: dict[str, Any]
    slots: tuple[Slot, ...]

    @property
    def attention(self) -> Any:
        return hf_layers(self.tiny.model)[self.slots[0]].place()[2]

    def changed(self, spec: str) -> Any:
        """The model with this mechanism in every second head of a layer."""
        heads = len(mechanisms_of(self.tiny.model)[self.slots[0]])
        by_head = tuple("dense" if head % 2 else spec for head in range(heads))
        return with_mechanisms(self.tiny.model, dict.fromkeys(self.slots, by_head))


@cache
def case(name: str) -> Case:
    tiny = tiny_model(name)
    given = tiny_inputs(tiny.model, sizes="second", batch=2, padding=3)
    slot = next(slot for slot in mechanisms_of(tiny.model) if not slot.crosses)
    return Case(tiny, given, hf_layers(tiny.model)[slot].place()[1].slots)


def read(model: Any, given: dict[str, Any]) -> Tensor:
    with torch.no_grad():
        outputs = model(**given)[0]
    rows = given["attention_mask"].bool()
    return outputs[rows] if outputs.shape[:2] == rows.shape else outputs


def expected(case: Case, new: Any, spec: str) -> Tensor:
    """What the model gives if the outputs of every second head of the layer are computed from tables of weights."""
    attention = case.attention
    groups = head_groups_of(hf_layers(new)[case.slots[0]].place()[2])
    assert groups is not None
    structured = [mechanism for mechanism in groups.mechanisms if isinstance(mechanism, Structured)]

    def hook(module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Any, Y: Tensor, options: Any) -> Tensor | None:
        if module is not attention:
            return None
        (h, i), j = Q.shape[1:3], K.shape[2]
        K, V = (T.repeat_interleave(h // T.shape[1], 1) for T in (K, V))
        allowed, added = mask.allowed(i, j), mask.additive()
        seen = (torch.ones(1, 1, i, j, dtype=torch.bool) if allowed is None else allowed).expand(len(Q), h, i, j)
        distance = torch.arange(i)[:, None] - torch.arange(j)
        if spec == WINDOW:
            S = options["scaling"] * (Q @ K.mT) + (0.0 if added is None else added)
            P = S.masked_fill(~seen | (distance.abs() > 2), -torch.inf).softmax(-1).nan_to_num(0.0)
        else:
            first = torch.zeros_like(seen).scatter(-1, seen.int().argmax(-1, keepdim=True), True)
            maps = torch.stack([(distance == 1) & seen, (distance == 0) & seen, first & seen]).to(Y.dtype)
            mix = structured[0].mix.to(Y.dtype).repeat_interleave(2, 0)[:h]
            W = torch.einsum("hm,mbhij->bhij", mix, maps)
            P = W / W.sum(-1, keepdim=True).clamp_min(1e-30)
        Y = Y.clone()
        Y[:, ::2] = (P @ V)[:, ::2]
        return Y

    with observe_interface(case.tiny.model), attention_hook(hook):
        return read(case.tiny.model, case.given)


@pytest.mark.parametrize(("name", "spec"), CASES)
def test_a_layer_computes_what_its_mechanisms_are_and_others_what_they_did(name: str, spec: str) -> None:
    some = case(name)
    new = some.changed(spec)
    before, wanted = read(some.tiny.model, some.given), expected(some, new, spec)
    assert_close(read(new, some.given), wanted, torch.float32)
    assert (wanted - before).norm() > 1e-3 * before.norm()


@pytest.mark.parametrize("name", ["gemma3_text", "llama", "gpt_oss", "deepseek_v32"])
def test_reading_with_a_cache(name: str) -> None:
    """Also where the cache of a layer forgets tokens, and where keys at the end are hidden from the last query."""
    some = case(name)
    new, ids = some.changed(BAND if name == "gpt_oss" else WINDOW), some.given["input_ids"]
    real = torch.ones_like(ids)
    real[1, :3] = 0
    whole, steps, cache = read(new, {"input_ids": ids, "attention_mask": real, "use_cache": False}), [], None
    for start, stop in ((0, 15), (15, 17), (17, 18), (18, 19)):
        with torch.no_grad():
            step = new(ids[:, start:stop], attention_mask=real[:, :stop], past_key_values=cache, use_cache=True)
        cache = step.past_key_values
        steps.append(step[0])
    assert_close(torch.cat(steps, 1)[real.bool()], whole, torch.float32)


def test_a_cache_of_fixed_length() -> None:
    """Its empty places are behind the last token."""
    new: Any = with_mechanisms(TINY["llama"].build(), {Slot.parse("dec.0"): (WINDOW,) * 3 + (BAND,) * 3})
    settings = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    settings |= {"output_logits": True, "return_dict_in_generate": True}
    prompt = inputs(new, padded=False)["input_ids"]
    fixed, growing = (
        torch.stack(new.generate(prompt, cache_implementation=kind, **settings).logits) for kind in ("static", None)
    )
    assert_close(fixed, growing)


def everywhere(model: Any, spec: str) -> Any:
    """The model with this mechanism in every second head of all layers of the decoder."""
    layers = {slot: len(specs) for slot, specs in mechanisms_of(model).items() if slot.causal}
    wanted = {slot: tuple("dense" if head % 2 else spec for head in range(heads)) for slot, heads in layers.items()}
    return with_mechanisms(model, wanted)


def generated(model: Any, **cache: Any) -> Tensor:
    """Logits of a greedy continuation of two sentences, of which one is padded."""
    ids = tiny_inputs(model, sizes="second", batch=2)["input_ids"]
    real = torch.ones_like(ids)
    real[1, :3] = 0
    settings = {"max_new_tokens": 7, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    settings |= {"output_logits": True, "return_dict_in_generate": True}
    return torch.stack(model.generate(ids, attention_mask=real, **settings, **cache).logits)


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("llama", WINDOW),
        ("llama", "linear"),
        ("gpt2", "bigbird:window=1,block=1,n_global=1,n_random=0"),
        ("mistral", WINDOW),
        ("mistral", BAND),
        ("gemma3_text", WINDOW),
        ("gemma3n_text", BAND),
        ("llama4_text", WINDOW),
        ("gpt_oss", BAND),
        ("deepseek_v32", WINDOW),
        ("t5", WINDOW),
        ("bart", "structured:members=block4/mean,error=none"),
    ],
)
def test_generation_with_a_cache(name: str, spec: str) -> None:
    """Caches that grow, that forget and that have a fixed length, also where layers share their keys (Gemma 3n)."""
    model = tiny_model(name).model
    if name == "llama4_text":
        model.config.attention_chunk_size = 5
    new = everywhere(model, spec)
    without = generated(new, use_cache=False)
    assert_close(generated(new, use_cache=True), without, torch.float32)
    assert_close(generated(new, cache_implementation="static"), without, torch.float32)
    assert (generated(model) - without).norm() > 1e-3 * without.norm()


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3_text"])
def test_pieces_of_a_text_with_a_cache_of_fixed_length(name: str) -> None:
    some = case(name)
    new, ids = everywhere(some.tiny.model, WINDOW), some.given["input_ids"]
    whole, steps = read(new, {**some.given, "attention_mask": torch.ones_like(ids)}), []
    cache = StaticCache(config=new.config, max_cache_len=23)
    for start, stop in ((0, 4), (4, 11), (11, 15), (15, 17), (17, 18), (18, 19)):
        with torch.no_grad():
            step = new(ids[:, start:stop], attention_mask=torch.ones_like(ids[:, :stop]), past_key_values=cache)
        steps.append(step[0])
    assert_close(torch.cat(steps, 1).flatten(0, 1), whole, torch.float32)


def test_positions_that_a_cache_has_forgotten() -> None:
    model = tiny_model("llama4_text").model
    model.config.attention_chunk_size = 5
    new = everywhere(model, "structured:members=block4,error=none")
    generated(new, use_cache=False)
    with pytest.raises(UsageError) as error:
        generated(new)
    assert str(error.value) == (
        "structured:members=block4,error=none with a key/value cache: expected all earlier tokens, as positions are "
        "counted from the first one, got a cache that has forgotten 15 of them; pass use_cache=False"
    )


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "bart", "t5"])
def test_eager_attention_gives_the_same_masks(name: str) -> None:
    model = TINY[name].build()
    slot = next(iter(mechanisms_of(model)))
    new: Any = with_mechanisms(model, {slot: (WINDOW, *mechanisms_of(model)[slot][1:])})
    with torch.no_grad():
        sdpa = new(**inputs(model))[0]
        new.set_attn_implementation("eager")
        assert_close(new(**inputs(model))[0], sdpa, torch.float32)


def test_layers_that_are_not_changed_keep_their_function() -> None:
    some = case("gemma3_text")
    new = some.changed(WINDOW)
    names = [str(part.place()[2].config._attn_implementation) for part in hf_layers(new).values()]
    assert names[0] == HEAD_GROUPS and {*names[1:]} == {"sdpa"} and new.config._attn_implementation == "sdpa"


def test_mechanisms_put_in_and_taken_out() -> None:
    model = TINY["bert"].build()
    given, attention = inputs(model), model.bert.encoder.layer[0].attention.self
    before = read(model, given)
    set_groups(attention, HeadGroups(grouped([WINDOW] * 3), 5, 5))
    other = copy.deepcopy(model)
    changed = read(model, given)
    assert not torch.equal(changed, before) and torch.equal(read(other, given), changed)
    with own_attention(model):
        assert torch.equal(read(model, given), before)
    assert torch.equal(read(model, given), changed)
    remove_groups(attention)
    assert torch.equal(read(model, given), before) and attention.config is model.config
