"""Hugging Face models through the attention interface: true Q, K, V, mask and scale, and not a bit changed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.hf import anatomy
from attnworks.hf.anatomy import attention_kinds, forget_layout, model_kind
from attnworks.hf.layout import ModelLayout
from attnworks.hf.observe import attention_hook, observe_interface
from attnworks.hf.subject import HFSubject
from attnworks.text.tokens import Batch
from attnworks.traces.layer import LayerTrace
from attnworks.traces.subject import LayerHook
from tests.model_helpers import the
from tests.tiny_models import TINY, inputs, unknown_causal
from tests.traces.trace_helpers import Keep, dense_map, random_batch, random_tokens

transformers: Any = pytest.importorskip("transformers")

SOURCE, TARGET = (7, 7, 5, 3), (5, 11, 3, 2)
READS_TEXT = [name for name in TINY if name not in ("vit", "bert-decoder", "gpt2-cross")]


def subject_of(name: str, **changes: Any) -> tuple[HFSubject, Batch]:
    model = TINY[name].build(**changes)
    both = getattr(model.config, "is_encoder_decoder", False)
    return HFSubject(model, name), random_batch(SOURCE, TARGET if both else None)


def config_of(subject: HFSubject) -> Any:
    return subject.model.config


@pytest.mark.parametrize("name", READS_TEXT)
def test_observing_changes_no_bit_and_shows_what_the_model_computes(name: str) -> None:
    subject, batch = subject_of(name)
    keep = Keep()
    with torch.no_grad():
        plain, seen = subject.run(batch), subject.run(batch, keep)
    assert torch.equal(plain.hidden, seen.hidden)
    assert keep.traces and keep.streams
    for trace in keep.traces:
        assert trace.queries is batch.sides(trace.slot.kind)[0] and trace.keys is batch.sides(trace.slot.kind)[1]
        P = dense_map(trace)
        real = trace.queries.real[:, None, :, None]
        V = trace.shared(trace.V, slice(None))
        torch.testing.assert_close((P @ V) * real, trace.Y * real, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(P.sum(-1) * real[..., 0], real[..., 0].double().expand(P.shape[:3]))
        if trace.slot.kind == "decoder":
            assert not P.triu(1).any()


@pytest.mark.parametrize("name", READS_TEXT)
def test_layers_are_counted_and_streams_surround_them(name: str) -> None:
    subject, batch = subject_of(name)
    keep = Keep()
    with torch.no_grad():
        subject.run(batch, keep)
    assert subject.blocks is not None
    expected = {
        Slot("cross" if part.role == "cross" else block.kind, block.layer)
        for block in subject.blocks
        for part in block.parts
        if part.role != "mlp"
    }
    assert {trace.slot for trace in keep.traces} == expected and len(keep.traces) == len(expected)
    for kind in {block.kind for block in subject.blocks}:
        depths = [stream.depth for stream in keep.streams if stream.kind == kind]
        assert depths == list(range(1 + sum(block.kind == kind for block in subject.blocks)))


@pytest.mark.parametrize("name", READS_TEXT)
def test_what_is_bilinear(name: str) -> None:
    subject, batch = subject_of(name)
    keep = Keep()
    with torch.no_grad():
        subject.run(batch, keep)
    for trace in keep.traces:
        relative = config_of(subject).model_type in ("t5", "mt5") and trace.slot.kind != "cross"
        assert trace.bilinear is not (TINY[name].rotary or relative), trace.slot
        assert trace.weights is not None and trace.X is not None


def test_padding_changes_nothing() -> None:
    subject, batch = subject_of("bert")
    keep, alone = Keep(), Keep()
    lonely = Batch(random_tokens(SOURCE))
    with torch.no_grad():
        subject.run(batch, keep)
        last = [field[-1:, :3] for field in (lonely.source.ids, lonely.source.real)]
        subject.run(Batch(random_tokens((3,))), alone)
        changed = random_batch(SOURCE)
        changed.source.ids[-1, 3:] = 17
        again = Keep()
        subject.run(changed, again)
    assert last[0].shape == (1, 3)
    for one, other in zip(keep.traces, again.traces, strict=True):
        torch.testing.assert_close(dense_map(one), dense_map(other))


def test_pixels_are_examined_with_arguments_of_their_own() -> None:
    model = TINY["vit"].build()
    pixels = inputs(model)
    subject = HFSubject(model, inputs=lambda batch: pixels)
    patches, keep = Batch(random_tokens((5, 5))), Keep()
    with torch.no_grad():
        subject.run(patches, keep)
    assert [str(trace.slot) for trace in keep.traces] == ["enc.0", "enc.1"]


@torch.no_grad()
def test_a_model_without_attention_is_refused() -> None:
    config = transformers.FNetConfig(vocab_size=53, hidden_size=15, num_hidden_layers=2, intermediate_size=23)
    subject = HFSubject(transformers.FNetModel(config).eval(), "a model of Fourier transforms")
    with pytest.raises(UsageError, match="of a model of Fourier transforms: expected a model with attention"):
        subject.run(random_batch(SOURCE), Keep())


class Refusing(LayerHook):
    def attention(self, trace: LayerTrace) -> Tensor | None:
        raise UsageError("attention", "another", str(trace.slot), "look elsewhere")


def test_what_a_spectator_refuses_is_said_as_it_is() -> None:
    subject, batch = subject_of("bert")
    before, plain = config_of(subject)._attn_implementation, transformers.AttentionInterface.get_interface
    with pytest.raises(UsageError, match=r"attention: expected another, got enc\.0"), torch.no_grad():
        subject.run(batch, Refusing())
    assert config_of(subject)._attn_implementation == before
    assert transformers.AttentionInterface.get_interface is plain


@torch.no_grad()
@pytest.mark.parametrize("name", ["Qwen3ForCausalLM", "Qwen3Model"])
def test_a_causal_model_is_a_decoder_throughout(name: str) -> None:
    subject, keep = HFSubject(unknown_causal(name)), Keep()
    subject.run(random_batch(SOURCE), keep)
    assert subject.abilities.kind == "decoder"
    assert [str(trace.slot) for trace in keep.traces] == ["dec.0", "dec.1"]
    assert [(stream.kind, stream.depth) for stream in keep.streams] == [("decoder", depth) for depth in range(3)]
    assert not any(trace.bilinear for trace in keep.traces), "queries are turned"


@torch.no_grad()
@pytest.mark.parametrize("name", [*READS_TEXT, "bert-decoder", "gpt2-cross", "vit"])
def test_what_is_guessed_is_what_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a layout, attention modules are of the same kind, and the blocks are the same lists."""
    model = TINY[name].build()
    found, stacks, kind = attention_kinds(model), HFSubject(model)._stacks, model_kind(model)
    monkeypatch.setattr(anatomy, "_find_layout", lambda model: ModelLayout((), (), "it is not looked for"))
    forget_layout(model)
    guessed = attention_kinds(model)
    assert {module: guessed[module] for module in found} == found and model_kind(model) == kind
    if not name.startswith("albert"):
        assert HFSubject(model)._stacks == stacks


@torch.no_grad()
@pytest.mark.parametrize("name", ["bert", "llama"])
def test_weights_are_those_of_now(name: str) -> None:
    """Also after a change of dtype and after training, for the same subject."""
    subject, batch = subject_of(name, dtype=torch.float32)
    subject.run(batch, Keep())
    subject.model.double()
    for parameter in subject.model.parameters():
        parameter.mul_(2)
    keep = Keep()
    subject.run(batch, keep)
    for trace in keep.traces:
        weights, now = the(trace.weights), the(the(subject.blocks)[trace.slot.layer].parts[0].weights)()
        for field in ("W_Q", "W_K", "W_V", "W_O"):
            assert torch.equal(getattr(weights, field), getattr(now, field))


def test_weights_of_ungrouped_heads_are_no_copies() -> None:
    subject, _ = subject_of("bert")
    parameters = {parameter.untyped_storage().data_ptr() for parameter in subject.model.parameters()}
    weights = the(the(subject.blocks)[0].parts[0].weights)()
    for T in (weights.W_Q, weights.W_K, weights.W_V, weights.W_O, the(weights.b_K), the(weights.b_V)):
        assert T.untyped_storage().data_ptr() in parameters


def test_the_model_is_left_as_it_was() -> None:
    subject, batch = subject_of("bert")
    before = config_of(subject)._attn_implementation
    with torch.no_grad():
        subject.run(batch, Keep())
    assert config_of(subject)._attn_implementation == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in subject.model.modules())


def test_calls_with_a_cache_of_fixed_length() -> None:
    """Without a mask, sdpa reads the first of its places."""
    model, sizes = TINY["llama"].build(), list[tuple[int, int]]()
    ids = inputs(model, padded=False)["input_ids"]

    def hook(module: Any, Q: Tensor, K: Tensor, V: Tensor, mask: Any, Y: Tensor, options: Any) -> None:
        K, V = (T.repeat_interleave(Q.shape[1] // T.shape[1], 1) for T in (K, V))
        allowed = mask.allowed(Q.shape[2], K.shape[2])
        S = options["scaling"] * (Q @ K.mT)
        P = (S if allowed is None else S.masked_fill(~allowed, -torch.inf)).softmax(-1)
        torch.testing.assert_close(P @ V, Y)
        sizes.append((Q.shape[2], K.shape[2]))

    with torch.no_grad(), observe_interface(model), attention_hook(hook):
        cache = transformers.StaticCache(config=model.config, max_cache_len=13)
        for start, stop in ((0, 4), (4, 6)):
            model(ids[:, start:stop], past_key_values=cache)
    assert {*sizes} == {(4, 4), (2, 13)}
