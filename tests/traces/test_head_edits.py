"""`with subject.edit(...)`: heads that are off or have other weights or outputs, against computations by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnworks
from attnworks.core.errors import UsageError
from attnworks.traces.subject import Subject
from tests.exam_helpers import LINES, tiny_tokenizer
from tests.helpers import unchecked
from tests.tiny_models import TINY, inputs
from tests.traces.test_cache import EVERY, TARGET, TEXT, close, hugging_face, subjects
from tests.traces.trace_helpers import random_batch

LAST = {"bert": "enc.1.2", "gpt2": "dec.1.2", "llama": "dec.1.4", "t5": "cross.1.1", "bart": "cross.2.3"}
LAST |= {"gpt_neox": "dec.0.1", "own encoder": "enc.1.2", "own decoder": "dec.0.1", "own encoder-decoder": "cross.1.2"}
LAST |= {"recurrent luong-dot": "cross.0.0", "recurrent bahdanau-additive": "cross.0.0"}
LAST |= {"adapted encoder": "enc.1.2", "adapted decoder": "dec.0.1", "adapted encoder-decoder": "cross.1.2"}
"""A head of each model."""

PROJECTION: dict[str, tuple[Callable[[Any], nn.Module], int, int]] = {
    "bert": (lambda model: model.bert.encoder.layer[1].attention.output.dense, 2, 5),
    "gpt2": (lambda model: model.transformer.h[1].attn.c_proj, 2, 5),
    "llama": (lambda model: model.model.layers[1].self_attn.o_proj, 4, 6),
    "t5": (lambda model: model.decoder.block[1].layer[1].EncDecAttention.o, 1, 5),
    "bart": (lambda model: model.model.decoder.layers[2].encoder_attn.out_proj, 3, 6),
    "gpt_neox": (lambda model: model.gpt_neox.layers[0].attention.dense, 1, 6),
}
"""The output projection of the layer of that head, its number, and its width."""


def target_of(subject: Subject) -> str | None:
    return TARGET if "-" in subject.abilities.kind else None


def logits(subject: Subject) -> Tensor:
    return subject.logits(TEXT, target=target_of(subject))


def traced(subject: Subject) -> Any:
    return attnworks.trace(subject, TEXT, target=target_of(subject))


@contextmanager
def projecting(projection: nn.Module, head: int, width: int, new: Tensor) -> Iterator[None]:
    """The columns of one head in the input of an output projection are replaced."""

    def change(_: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        joined = args[0].clone()
        joined[..., head * width : (head + 1) * width] = new
        return (joined, *args[1:])

    handle = projection.register_forward_pre_hook(change)
    try:
        yield
    finally:
        handle.remove()


@pytest.mark.parametrize("name", PROJECTION)
def test_a_head_that_is_off_adds_nothing_to_the_projection(name: str) -> None:
    subject = hugging_face(name)
    find, head, width = PROJECTION[name]
    plain = logits(subject)
    with projecting(find(subject.model), head, width, torch.zeros(())):
        expected = logits(subject)
    with subject.edit(off=LAST[name]):
        off = logits(subject)
    close(off, expected)
    assert not torch.allclose(off, plain) and torch.equal(logits(subject), plain)


@pytest.mark.parametrize("name", PROJECTION)
def test_other_outputs_enter_the_projection(name: str) -> None:
    subject = hugging_face(name)
    find, head, width = PROJECTION[name]
    Y = torch.randn_like(traced(subject)[LAST[name]].outputs)
    assert Y.shape[1] == width
    with projecting(find(subject.model), head, width, Y):
        expected = logits(subject)
    with subject.edit(outputs={LAST[name]: Y}):
        close(logits(subject), expected)
        assert torch.equal(traced(subject)[LAST[name]].outputs, Y)
    with subject.edit(outputs={LAST[name]: lambda Y: 0.0 * Y}), subject.edit(outputs={LAST[name]: Y.unsqueeze(0)}):
        close(logits(subject), expected)


@pytest.mark.parametrize("rows_sum_to_one", [True, False])
@pytest.mark.parametrize("name", EVERY)
def test_other_weights_give_other_outputs(name: str, rows_sum_to_one: bool) -> None:
    subject, head = subjects(name), LAST[name]
    before = traced(subject)
    P = torch.rand_like(before[head].weights)
    P = P / P.sum(-1, keepdim=True) if rows_sum_to_one else P - 0.3
    with subject.edit(weights={head: P}):
        after = traced(subject)
        edited = logits(subject)
    with subject.edit(outputs={head: P @ before[head].V}):
        close(logits(subject), edited)
    assert torch.equal(after[head].weights, P) and torch.equal(after.logits, edited)
    close(after[head].outputs, P @ before[head].V)
    assert not torch.allclose(edited, before.logits)
    layer = head.rpartition(".")[0]
    for other in range(before[layer].heads):
        if f"{layer}.{other}" != head:
            close(after[f"{layer}.{other}"].weights, before[f"{layer}.{other}"].weights)
            close(after[f"{layer}.{other}"].scores, before[f"{layer}.{other}"].scores)
            close(after[f"{layer}.{other}"].outputs, before[f"{layer}.{other}"].outputs)


@pytest.mark.parametrize("name", EVERY)
def test_a_function_of_the_weights(name: str) -> None:
    subject, head = subjects(name), LAST[name]
    before, given = traced(subject), []

    def no_first_key(P: Tensor) -> Tensor:
        given.append(P.clone())
        P[..., 0] = 0.0
        return P

    with subject.edit(weights={head: no_first_key}):
        after = traced(subject)
    (P,) = given
    close(P, before[head].weights.unsqueeze(0))
    expected = before[head].weights.clone()
    expected[:, 0] = 0.0
    close(after[head].weights, expected)
    close(after[head].outputs, expected @ before[head].V)


@pytest.mark.parametrize("name", EVERY)
def test_the_same_weights_change_nothing(name: str) -> None:
    subject = subjects(name)
    with subject.edit(weights={LAST[name]: lambda P: P}, outputs={LAST[name]: lambda Y: Y}):
        edited = logits(subject)
    close(edited, logits(subject), 1e-6 if name in TINY and TINY[name].rotary else 1e-9)


@pytest.mark.parametrize("name", EVERY)
def test_edits_end_with_the_block(name: str) -> None:
    subject = subjects(name)
    plain = logits(subject)
    with pytest.raises(KeyError), subject.edit(off=LAST[name]):
        assert not torch.allclose(logits(subject), plain)
        raise KeyError
    assert torch.equal(logits(subject), plain)

    def fails(P: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), subject.edit(weights={LAST[name]: fails}):
        logits(subject)
    assert torch.equal(logits(subject), plain) and torch.equal(traced(subject).logits, plain)


# Several edits -------------------------------------------------------------------------------------------------------


def edited_directly(subject: Subject) -> Tensor:
    """A direct call of the model on the same text."""
    model: Any = subject.model
    ids = torch.tensor([tiny_tokenizer(model.config.model_type)(TEXT)["input_ids"]])
    with torch.no_grad():
        return model(ids).logits[0]


@pytest.mark.parametrize("run", [logits, edited_directly])
def test_edits_of_outer_blocks_come_first(run: Callable[[Subject], Tensor]) -> None:
    subject = hugging_face("gpt2")
    seen = []

    def double(Y: Tensor) -> Tensor:
        return 2 * Y

    def add_one(Y: Tensor) -> Tensor:
        seen.append(Y)
        return Y + 1

    Y = traced(subject)["0.1"].outputs
    with subject.edit(outputs={"0.1": double}), subject.edit(outputs={"0.1": add_one}):
        nested = run(subject)
    close(seen[0][0], 2 * Y)
    with subject.edit(outputs={"0.1": 2 * Y + 1}):
        close(nested, run(subject))
    with subject.edit(weights={"0.1": lambda P: 3 * P}), subject.edit(weights={"0.1": lambda P: P + 1}):
        nested = run(subject)
    with subject.edit(weights={"0.1": lambda P: 3 * P + 1}):
        close(nested, run(subject))
    with subject.edit(off="0.1"):
        off = run(subject)
        with subject.edit(off="1.0"):
            both = run(subject)
        assert torch.equal(run(subject), off)
    with subject.edit(off="0.1,1.0"):
        assert torch.equal(run(subject), both)
    assert not torch.allclose(both, off)


def test_patterns_and_kinds() -> None:
    subject = hugging_face("bart")
    with subject.edit(off="enc.*,cross.1.*"):
        cache = traced(subject)
    for slot, layer in cache.layers.items():
        off = slot.kind == "encoder" or str(slot) == "cross.1"
        assert bool(layer.outputs.any()) is not off, slot
        close(layer.weights.sum(-1), torch.ones_like(layer.weights[..., 0]))
    with subject.edit(off="enc.0.0", outputs={"cross.*": lambda Y: 0 * Y}):
        cache = traced(subject)
    assert not any(cache[f"cross.{layer}"].outputs.any() for layer in range(3)) and cache["enc.0.1"].outputs.any()
    with subject.edit():
        assert torch.equal(logits(subject), traced(hugging_face("bart")).logits)


@pytest.mark.parametrize("name", EVERY)
def test_heads_that_do_not_exist(name: str) -> None:
    subject = subjects(name)
    plain = logits(subject)
    several: list[Any] = [{"off": "7.7"}, {"weights": {"enc.0.11": plain}}, {"off": f"{LAST[name]},nothing"}]
    for edits in several:
        with pytest.raises(UsageError, match="no such head") as found:
            edit = subject.edit(**edits)  # models whose parts are not known tell at their first run
            with nullcontext() if "adapted" not in name else edit:
                logits(subject)
        layer, _, head = LAST[name].rpartition(".")
        assert "\n" not in str(found.value) and f"{layer}.0 to {layer}." in str(found.value) and head
    assert torch.equal(logits(subject), plain)


@pytest.mark.parametrize("name", EVERY)
def test_short_names_where_there_is_one_kind_of_attention(name: str) -> None:
    subject = subjects(name)
    short = LAST[name].partition(".")[2]
    several = len({slot.kind for slot in traced(subject).layers}) > 1
    if several:
        with pytest.raises(UsageError, match="no such head"), subject.edit(off=short):
            logits(subject)
        return
    with subject.edit(off=LAST[name]):
        expected = logits(subject)
    with subject.edit(off=short):
        assert torch.equal(logits(subject), expected)


@pytest.mark.parametrize(
    "change",
    [torch.zeros(3, 7), None, "zero", lambda P: None, lambda P: P[..., 1:]],
    ids=["tensor", "none", "text", "nothing", "shape"],
)
def test_what_does_not_fit(change: Any) -> None:
    subject = hugging_face("bert")
    told = r"new weights of enc.1.2: expected a tensor of shape \[13, 13\]"
    with unchecked(), pytest.raises(UsageError, match=told) as found, subject.edit(weights={"1.2": change}):
        logits(subject)
    assert "\n" not in str(found.value)


# Batches, direct calls, generation ------------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5"])
def test_padding_in_a_batch(name: str) -> None:
    """Sentences of a padded batch have the same results as each of them alone, also with edits."""
    subject = hugging_face(name)
    lengths, targets = (7, 7, 5, 3), (5, 11, 3, 2) if name == "t5" else None
    batch = random_batch(lengths, targets)
    edits: Any = {"weights": {LAST[name]: lambda P: P.square()}, "off": "dec.0.0" if name == "t5" else "0.1"}
    with subject.edit(**edits):
        together = subject.run(batch, logits=True).logits
        for row in range(4):
            alone = subject.run(batch.some(slice(row, row + 1)), logits=True).logits
            assert together is not None and alone is not None
            close(together[row, : alone.shape[1]], alone[0], 1e-6 if TINY[name].rotary else 1e-9)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "bart"])
def test_direct_calls(name: str, implementation: str) -> None:
    """With padding, which the mask of the call hides; the body of the model may be called too."""
    subject = hugging_face(name, attn_implementation=implementation)
    model: Any = subject.model
    given = inputs(model)
    find, head, width = PROJECTION[name]
    with projecting(find(model), head, width, torch.zeros(())):
        expected = model(**given).logits
    plain, plain_body = model(**given).logits, model.base_model(**given)[0]
    several: list[Any] = [{"off": LAST[name]}, {"weights": {LAST[name]: torch.zeros(())}}]
    for edits in several:
        with subject.edit(**edits):
            for _ in range(2):
                close(model(**given).logits, expected)
            body, again = (model.base_model(**given)[0] for _ in range(2))
            assert torch.equal(body, again) and not torch.allclose(body, plain_body)
        assert torch.equal(model(**given).logits, plain)
    assert model.config._attn_implementation == implementation


@torch.no_grad()
def test_direct_calls_of_the_same_weights() -> None:
    model: Any = TINY["gpt2"].build()
    subject, given = attnworks.wrap(model, tiny_tokenizer("gpt2")), inputs(model)
    real = given["attention_mask"].bool()
    with subject.edit(weights={"*": lambda P: P}):
        close(model(**given).logits[real], hugging_face("gpt2").model(**given).logits[real], 1e-9)


def test_direct_calls_refuse_heads_that_do_not_exist() -> None:
    subject = hugging_face("gpt2")
    with pytest.raises(UsageError, match="no such head"), subject.edit(off="0.7"):
        subject.model(**inputs(subject.model))
    subject.model(**inputs(subject.model))


@pytest.mark.parametrize("name", ["t5", "bart", "own encoder-decoder", "recurrent luong-dot"])
def test_a_missing_target_is_written_without_edits(name: str) -> None:
    subject = subjects(name)
    plain = attnworks.trace(subject, TEXT)
    with subject.edit(outputs={"cross.*": lambda Y: 5 - Y}):
        edited, edited_logits = attnworks.trace(subject, TEXT), subject.logits(TEXT)
    assert edited.target == plain.target and edited.logits is not None and plain.logits is not None
    assert torch.equal(edited_logits, edited.logits) and not torch.allclose(edited.logits, plain.logits)


@pytest.mark.parametrize("name", ["gpt2", "llama", "bart"])
def test_generation_with_a_cache_equals_that_without(name: str) -> None:
    subject = hugging_face(name)
    model: Any = subject.model
    given = inputs(model, padded=False)
    given.pop("decoder_input_ids", None)
    settings = {"max_new_tokens": 11, "do_sample": False, "num_beams": 1, "pad_token_id": 1, "eos_token_id": None}
    written = {}
    plain = model.generate(**given, **settings)
    head = LAST[name]
    several: list[Any] = [{"off": head}, {"weights": {head: lambda P: P.flip(0) * 3}}, {"outputs": {head: torch.neg}}]
    for edits in several:
        with subject.edit(**edits):
            written = {cached: model.generate(**given, **settings, use_cache=cached) for cached in (True, False)}
            again = model.generate(**given, **settings)
        assert torch.equal(written[True], written[False]) and torch.equal(again, written[True])
    assert torch.equal(model.generate(**given, **settings), plain)


def test_generation_is_edited() -> None:
    """The tokens that an edited model writes are those with the largest edited logits."""
    subject = hugging_face("gpt2")
    model: Any = subject.model
    ids = inputs(model, padded=False)["input_ids"][:1]
    with subject.edit(off="0.*,1.0"):
        written = model.generate(ids, max_new_tokens=7, do_sample=False, pad_token_id=1, eos_token_id=None)
        with torch.no_grad():
            logits = model(written).logits[0]
    assert torch.equal(logits[ids.shape[1] - 1 : -1].argmax(-1), written[0, ids.shape[1] :])


def test_encoder_calls_by_themselves() -> None:
    subject = hugging_face("bart")
    model: Any = subject.model
    ids = inputs(model)["input_ids"]
    with torch.no_grad(), subject.edit(off="enc.1.0"):
        first, second = (model.get_encoder()(ids).last_hidden_state for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.allclose(first, model.get_encoder()(ids).last_hidden_state)


# Examinations --------------------------------------------------------------------------------------------------------


def numbers(exam: Any, name: str) -> Tensor:
    """One number per layer and head."""
    return torch.stack([torch.as_tensor(layer) for layer in exam[name].value])


def test_examinations_see_edits() -> None:
    subject, n = hugging_face("bert"), 2 + len(TEXT.split())

    def entropies() -> Tensor:
        return numbers(attnworks.examine(subject, [TEXT] * 3, measures=["saturation"]), "saturation.entropy")

    before = entropies()
    with subject.edit(weights={"1.2": torch.eye(n)}):
        edited = entropies()
    assert torch.equal(entropies(), before)
    assert before.shape == (2, 3) and before.min() > 0.5 and edited[1, 2] == 0
    torch.testing.assert_close(edited[0], before[0])
    torch.testing.assert_close(edited[1, :2], before[1, :2])


def test_importance_of_a_head_that_is_off_is_zero() -> None:
    subject = hugging_face("gpt2")
    with subject.edit(off="1.2"):
        found = numbers(attnworks.examine(subject, LINES, measures=["importance"]), "importance.gradient")
    assert found[1, 2] == 0 and found[0].abs().min() > 0 and found[1, :2].abs().min() > 0


def test_edits_of_copies() -> None:
    """A subject that was cut to a length, or given a tokenizer, inside a block is edited as well."""
    subject = hugging_face("gpt2")
    with subject.edit(off="*"):
        assert not attnworks.trace(subject, TEXT, max_length=5)["1"].outputs.any()
    assert attnworks.trace(subject, TEXT, max_length=5)["1"].outputs.any()


def test_another_model_inside_the_block_is_not_edited() -> None:
    edited, other = (hugging_face("gpt2") for _ in range(2))
    ids = inputs(other.model)
    before = other.model(**ids).logits
    with edited.edit(off="0.*"):
        assert torch.equal(other.model(**ids).logits, before)
        assert not torch.equal(edited.model(**ids).logits, before)


def test_copies_of_a_subject_have_edits_of_their_own() -> None:
    subject = hugging_face("gpt2")
    with subject.edit(off="0.0"):
        pass
    copied = subject.with_model(copy.deepcopy(subject.model))
    before = logits(subject)
    with copied.edit(off="0.*"):
        assert torch.equal(logits(subject), before) and not torch.equal(logits(copied), before)


def test_heads_by_a_list_of_names() -> None:
    subject = hugging_face("gpt2")
    with subject.edit(off="0.0,1.1"):
        by_text = logits(subject)
    with subject.edit(off=["0.0", "1.1"]):
        assert torch.equal(logits(subject), by_text)


def test_layers_and_heads_by_number() -> None:
    cache = traced(hugging_face("gpt2"))
    assert torch.equal(cache[1].weights, cache["1"].weights)
    assert torch.equal(cache[1, 2].weights, cache["1.2"].weights)
