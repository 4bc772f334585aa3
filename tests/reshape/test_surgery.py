"""A model like another, with other mechanisms in some heads: what stays, what goes, and what it computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.attention.structured import Structured
from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.core.places import HeadId, Slot
from attnworks.hf.anatomy import hf_layers
from attnworks.hf.subject import HFSubject
from attnworks.models import MultiHead, Transformer, build
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.projection.forms import Form
from attnworks.reshape.projection.project import ProjectionHook, with_forms
from attnworks.reshape.surgery import attention_groups, attention_parts, mechanisms_of, with_mechanisms
from attnworks.text.tokens import Batch
from tests.model_helpers import (
    BATCH,
    SOURCE,
    TARGET,
    TARGET_VOCABULARY,
    VOCABULARY,
    attention_config,
    recurrent_config,
    the,
    tokens,
    transformer,
)
from tests.reshape.reshape_helpers import load, save
from tests.tiny_models import TINY, inputs, shared
from tests.traces.trace_helpers import Keep, dense_map, random_batch, random_tokens

BAND, ENDS = "structured:members=-1..0/first,error=none", "structured:members=first/mean,error=2,eps=0.3"
FORM = Form((-1, 0, "first"), (0.5, 0.2, 0.3), (), (), 0.02, 0.0)
SHARED = ("albert", "albert-groups")
LAYERED = [name for name in TINY if name not in SHARED]


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


def structured(model: Any, slot: Slot) -> list[Structured]:
    return [part for part in attention_groups(model)[slot].mechanisms if isinstance(part, Structured)]


# Own models ----------------------------------------------------------------------------------------------------------


def read(model: Transformer) -> Tensor:
    with torch.no_grad():
        return model(tokens(VOCABULARY, BATCH, SOURCE), tokens(TARGET_VOCABULARY, BATCH, TARGET, seed=1))


def layer_of(model: Transformer, slot: Slot) -> MultiHead:
    return next(layer for layer in model.modules() if isinstance(layer, MultiHead) and layer.slot == slot)


def test_what_heads_use() -> None:
    model = transformer(slots={"dec.1": attention_config(mechanism=("dense", BAND, "luong-dot"))})
    assert mechanisms_of(model) == {
        Slot.parse("enc.0"): ("dense",) * 3,
        Slot.parse("enc.1"): ("dense",) * 3,
        Slot.parse("dec.0"): ("dense",) * 3,
        Slot.parse("dec.1"): ("dense", BAND, "luong-dot"),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("training", [True, False])
def test_nothing_changed_is_the_same_bit_for_bit(training: bool, dtype: torch.dtype) -> None:
    model = transformer(dtype, slots={"enc.0": attention_config(mechanism=(BAND, "dense", ENDS))}).train(training)
    for wanted in ({}, mechanisms_of(model)):
        new = with_mechanisms(model, wanted)
        assert new is not model and new.training is training
        assert weights_fingerprint(new) == weights_fingerprint(model)
        assert torch.equal(read(new), read(model))


def test_weights_are_carried_over() -> None:
    model = transformer()
    before = weights_fingerprint(model)
    new = with_mechanisms(
        model, {Slot.parse("enc.1"): ("dense", BAND, "dense"), Slot.parse("dec.0"): (BAND, ENDS, BAND)}
    )
    assert mechanisms_of(new) == mechanisms_of(model) | {
        Slot.parse("enc.1"): ("dense", BAND, "dense"),
        Slot.parse("dec.0"): (BAND, ENDS, BAND),
    }
    ours, theirs = layer_of(new, Slot.parse("enc.1")), layer_of(model, Slot.parse("enc.1"))
    for name in ("W_Q", "W_K", "b_Q", "b_K"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)[[0, 2]]), name
        assert len(getattr(layer_of(new, Slot.parse("dec.0")), name)) == 0
    old = dict(model.named_parameters())
    for name, parameter in new.named_parameters():
        if not name.endswith(("W_Q", "W_K", "b_Q", "b_K", "log_mix", "raw_error")):
            assert torch.equal(parameter, old[name]), name
    assert weights_fingerprint(model) == before
    assert weights_fingerprint(new) != before and not torch.equal(read(new), read(model))


def test_a_second_reshape_keeps_what_the_first_one_learned() -> None:
    """The mix of a head goes with the head, whether its group grows, shrinks or moves."""
    first = with_mechanisms(transformer(), {Slot.parse("enc.0"): (ENDS, "dense", ENDS)})
    (ends,) = structured(first, Slot.parse("enc.0"))
    ends.set_weights(torch.tensor([[0.7, 0.3], [0.2, 0.8]]).double(), torch.tensor([[0.1], [0.25]]).double())
    both = with_mechanisms(first, {Slot.parse("enc.0"): (ENDS, BAND, ENDS)})
    assert torch.equal(structured(both, Slot.parse("enc.0"))[0].mix, ends.mix)
    assert torch.equal(structured(both, Slot.parse("enc.0"))[0].errors, ends.errors)
    grown = with_mechanisms(first, {Slot.parse("enc.0"): (ENDS, ENDS, ENDS)})
    assert torch.equal(structured(grown, Slot.parse("enc.0"))[0].mix[[0, 2]], ends.mix)
    moved = with_mechanisms(first, {Slot.parse("enc.0"): (BAND, "dense", ENDS)})
    assert torch.equal(structured(moved, Slot.parse("enc.0"))[1].mix, ends.mix[1:])
    assert torch.equal(structured(moved, Slot.parse("enc.0"))[1].errors, ends.errors[1:])
    assert torch.equal(layer_of(moved, Slot.parse("enc.0")).W_Q, layer_of(first, Slot.parse("enc.0")).W_Q)
    other = with_mechanisms(both, {Slot.parse("dec.1"): (BAND, "dense", "dense")})
    assert torch.equal(structured(other, Slot.parse("enc.0"))[0].mix, ends.mix)


def test_one_mechanism_written_in_two_ways() -> None:
    """What `mechanisms_of` says of both heads is the same text, so that they become one group."""
    ways = ("structured:members=first/mean,eps=0.3", "structured:members=first/mean,eps=0.30")
    first = with_mechanisms(transformer(), {Slot.parse("enc.0"): (*ways, "dense")})
    for part, mix in zip(structured(first, Slot.parse("enc.0")), ((0.7, 0.3), (0.2, 0.8)), strict=True):
        part.set_weights(torch.tensor([mix]).double())
    again = with_mechanisms(first, mechanisms_of(first))
    torch.testing.assert_close(structured(again, Slot.parse("enc.0"))[0].mix[1], torch.tensor([0.2, 0.8]).double())


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        (
            {Slot.parse("enc.7"): ("dense",) * 3},
            "other heads in enc.7: expected one of enc.0, enc.1, dec.0, cross.0, dec.1, cross.1",
        ),
        ({Slot.parse("cross.0"): ("window",) * 3}, "window attention in cross.0"),
        ({Slot.parse("enc.0"): ("dense",) * 2}, "expected 3 mechanisms, got 2"),
        ({Slot.parse("dec.0"): ("linformer", "dense", "dense")}, "linformer"),
    ],
)
def test_wishes_that_cannot_be_met(wanted: dict[Slot, Any], told: str) -> None:
    with pytest.raises(UsageError) as error:
        with_mechanisms(transformer(), wanted)
    assert told in one_line(error)


def test_names_that_are_not_known() -> None:
    with pytest.raises(UnknownNameError) as error:
        with_mechanisms(transformer(), {Slot.parse("enc.0"): ("danse", "dense", "dense")})
    assert "did you mean 'dense'?" in one_line(error)


def test_models_without_layers() -> None:
    with pytest.raises(UsageError, match="got a recurrent model"):
        with_mechanisms(build(recurrent_config()), {})


# Models of Hugging Face ----------------------------------------------------------------------------------------------


def subject_of(model: Any, name: str) -> tuple[HFSubject, Batch]:
    """A subject and a batch, some of it padded; pixels and the output of an encoder are given by hand."""
    given = inputs(model)
    if name == "vit":
        return HFSubject(model, inputs=lambda batch: given), Batch(random_tokens((5, 5)))
    batch = random_batch((7, 4), (11, 3) if getattr(model.config, "is_encoder_decoder", False) else None)
    if "encoder_hidden_states" not in given:
        return HFSubject(model), batch
    words = {"input_ids": batch.source.ids, "attention_mask": batch.source.real.long(), "use_cache": False}
    states = {"encoder_hidden_states": given["encoder_hidden_states"][:, :7].contiguous()}
    return HFSubject(model, inputs=lambda batch: words | states), batch


def run(model: Any, name: str, hook: Any = None) -> Tensor:
    """What the body gives for real tokens."""
    subject, batch = subject_of(model, name)
    with torch.no_grad():
        hidden = subject.run(batch, hook).hidden
    return hidden[(batch.target or batch.source).real]


@pytest.mark.parametrize("name", LAYERED)
def test_a_head_is_what_its_form_says(name: str) -> None:
    """The reshaped model, and the model as it was with the output of that head replaced."""
    model = shared(name)
    before, plain = weights_fingerprint(model), run(model, name)
    now = mechanisms_of(model)
    assert now and all(set(specs) == {"dense"} for specs in now.values())
    for slot in {slot.kind: slot for slot in now}.values():
        new, expected = (
            with_forms(model, {HeadId(slot, 1): FORM}),
            run(model, name, ProjectionHook(HeadId(slot, 1), FORM)),
        )
        torch.testing.assert_close(run(new, name), expected, rtol=1e-10, atol=1e-10)
        assert (expected - plain).abs().max() > 1e-6
        assert mechanisms_of(new)[slot] == ("dense", FORM.spec, *now[slot][2:])
    assert weights_fingerprint(model) == before


@pytest.mark.parametrize("name", TINY)
def test_queries_and_keys_that_are_not_needed_go(name: str) -> None:
    """In every layout; keys that heads share go with the last of them."""
    model = shared(name)
    part = next(iter(hf_layers(model).values()))
    W, slots = the(part.weights)(), part.place()[1].slots
    heads, e, k = W.W_Q.shape
    one = e * k + (0 if W.b_Q is None else k)
    first_head, every_head = (
        with_mechanisms(model, dict.fromkeys(slots, (BAND,) * count + ("dense",) * (heads - count)))
        for count in (1, heads)
    )
    assert parameters(model) - parameters(first_head) == one * (1 + (W.groups == heads)) - 3
    assert parameters(model) - parameters(every_head) == one * (heads + W.groups) - 3 * heads
    left = the(attention_parts(first_head, cross=True)[slots[0]].weights)()
    assert torch.equal(left.W_Q[1:], W.W_Q[1:]) and torch.equal(left.W_K[1:], W.W_K[1:])
    assert torch.equal(left.W_V, W.W_V) and not left.W_Q[0].any() and bool(left.W_K[0].any()) == (W.groups < heads)
    nothing = the(attention_parts(every_head, cross=True)[slots[0]].weights)()
    assert not nothing.W_Q.any() and not nothing.W_K.any() and torch.equal(nothing.W_V, W.W_V)


def parameters(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["gpt2", "llama", "albert"])
def test_columns_that_are_not_stored_are_not_in_the_folder(name: str, tmp_path: Path) -> None:
    model = shared(name)
    slots = next(iter(hf_layers(model).values())).place()[1].slots
    heads = len(mechanisms_of(model)[slots[0]])
    once = with_forms(model, {HeadId(slot, 1): FORM for slot in slots})
    twice = with_mechanisms(once, dict.fromkeys(slots, (BAND, FORM.spec, *(BAND,) * (heads - 2))))
    for number, new in enumerate((once, twice)):
        again = load(save(new, tmp_path / str(number)))
        assert weights_fingerprint(again) == weights_fingerprint(new) and mechanisms_of(again) == mechanisms_of(new)
        torch.testing.assert_close(run(again, name), run(new, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["bert", "bart", "t5", "gpt2"])
def test_no_head_looks_any_more(name: str) -> None:
    model = shared(name)
    now = mechanisms_of(model)
    forms = {HeadId(slot, head): FORM for slot, specs in now.items() for head in range(len(specs))}
    new = with_forms(model, forms)
    once_more = with_mechanisms(new, {slot: [FORM.spec] * len(specs) for slot, specs in now.items()})
    assert torch.equal(run(once_more, name), run(new, name)) and run(new, name).isfinite().all()
    assert weights_fingerprint(once_more) == weights_fingerprint(new)


@pytest.mark.parametrize("name", ["m2m_100", "mbart", "bart", "marian", "gpt2", "llama"])
def test_decoding_with_a_cache_where_no_head_of_a_layer_looks(name: str) -> None:
    """transformers takes the length of what was read from the keys of the first layer."""
    changes: dict[str, Any] = {"num_key_value_heads": 6} if name == "llama" else {}
    model = TINY[name].build(**changes)
    heads = len(mechanisms_of(model)[Slot.parse("dec.0")])
    new = with_forms(model, {HeadId(Slot.parse("dec.0"), head): FORM for head in range(heads)})
    given = inputs(new, padded=False)
    words = "decoder_input_ids" if "decoder_input_ids" in given else "input_ids"
    ids, others = given[words], {key: value for key, value in given.items() if key not in (words, "attention_mask")}
    with torch.no_grad():
        whole = new(**{**others, words: ids}, use_cache=False).logits
        cache, steps = None, []
        for place in range(ids.shape[1]):
            step = new(**{**others, words: ids[:, place : place + 1]}, past_key_values=cache, use_cache=True)
            cache, steps = step.past_key_values, [*steps, step.logits]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["bert", "bart", "gpt2"])
def test_nothing_changed_in_a_model_of_hugging_face(name: str) -> None:
    model = TINY[name].build()
    for wanted in ({}, mechanisms_of(model)):
        new = with_mechanisms(model, wanted)
        assert new is not model and weights_fingerprint(new) == weights_fingerprint(model)
        torch.testing.assert_close(run(new, name), run(model, name), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_the_first_of_two_reshapes_is_kept(name: str) -> None:
    model = TINY[name].build()
    slot = next(iter(mechanisms_of(model)))
    other = Form((-1, 0, "first"), (0.1, 0.6, 0.3), (), (), 0.02, 0.0)
    at_once = with_forms(model, {HeadId(slot, 0): FORM, HeadId(slot, 2): other, HeadId(slot, 1): FORM})
    in_turn = model
    for head, form in ((2, other), (0, FORM), (1, FORM)):
        in_turn = with_forms(in_turn, {HeadId(slot, head): form})
    assert mechanisms_of(in_turn) == mechanisms_of(at_once)
    torch.testing.assert_close(run(in_turn, name), run(at_once, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_writing_with_a_cache_is_writing_without(name: str, padded: bool) -> None:
    model = TINY[name].build()
    wide = Form((-3, -1, "first", "mean"), (0.2, 0.2, 0.3, 0.3), (-5,), (0.3,), 0.5, 0.0)
    new: Any = with_forms(
        model, {HeadId.parse("dec.0.0"): wide, HeadId.parse("dec.1.1"): FORM, HeadId.parse("dec.1.2"): wide}
    )
    prompt = inputs(model, padded=False)
    if padded:
        prompt["attention_mask"][1, :3] = 0
    settings = {"max_new_tokens": 7, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    settings |= {"output_logits": True, "return_dict_in_generate": True}
    cached, again, old = (
        torch.stack(one.generate(**prompt, use_cache=cache, **settings).logits)
        for one, cache in ((new, True), (new, False), (model, True))
    )
    torch.testing.assert_close(cached, again, rtol=1e-10, atol=1e-10)
    assert (cached - old).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["bert", "bert-decoder", "gpt2", "gpt_neox", "llama", "opt", "bart", "t5", "vit"])
def test_observing_changes_no_bit_and_shows_every_head(name: str) -> None:
    model = TINY[name].build()
    now = mechanisms_of(model)
    new = with_forms(model, {HeadId(slot, len(specs) - 1): FORM for slot, specs in now.items()})
    keep = Keep()
    assert torch.equal(run(new, name, keep), run(new, name))
    assert {trace.slot for trace in keep.traces} >= set(now)
    for trace in (trace for trace in keep.traces if trace.slot.kind != "cross"):
        heads, real = len(now[trace.slot]), trace.queries.real[:, None, :, None]
        assert trace.heads == heads and the(trace.weights).W_Q.shape[0] == heads
        with torch.no_grad():
            P = dense_map(trace)
        V = trace.shared(trace.V, slice(None))
        torch.testing.assert_close((P @ V) * real, trace.Y * real, rtol=1e-9, atol=1e-11)


def test_a_head_without_queries_stays_without() -> None:
    new = with_mechanisms(TINY["bert"].build(), {Slot.parse("enc.1"): ("dense", BAND, "dense")})
    with pytest.raises(UsageError) as error:
        with_mechanisms(new, {Slot.parse("enc.1"): ("dense",) * 3})
    assert "queries and keys in head enc.1.1: expected a head that has them" in one_line(error)
    assert "attnworks undo" in one_line(error)


@pytest.mark.parametrize("name", SHARED)
def test_layers_that_share_their_weights_get_the_same(name: str) -> None:
    model = TINY[name].build()
    slots, others = (hf_layers(model)[Slot.parse(f"enc.{layer}")].place()[1].slots for layer in (0, -1 % 5))
    assert len(slots) > 1
    forms = {HeadId(slot, 1): FORM for slot in slots}
    new = with_forms(model, forms)
    expected = run(model, name, ProjectionHook(HeadId(slots[0], 1), FORM, slots))
    torch.testing.assert_close(run(new, name), expected, rtol=1e-10, atol=1e-10)
    assert all((FORM.spec in specs) == (slot in slots) for slot, specs in mechanisms_of(new).items())
    assert others[0] in mechanisms_of(new)


@pytest.mark.parametrize("name", SHARED)
def test_other_mechanisms_in_some_layers_that_share_their_weights_are_refused(name: str) -> None:
    model = TINY[name].build()
    slots = hf_layers(model)[Slot.parse("enc.0")].place()[1].slots
    with pytest.raises(UsageError) as error:
        with_mechanisms(model, {slots[0]: (BAND, "dense", "dense")})
    assert f"the same in all layers that share its weights: {slots[0]}, {slots[1]}" in one_line(error)
    assert f"got none for {slots[1]}" in one_line(error)
    with pytest.raises(UsageError) as error:
        with_mechanisms(model, {slot: (BAND, "dense", ENDS if slot == slots[-1] else BAND) for slot in slots})
    assert "got others in" in one_line(error)
