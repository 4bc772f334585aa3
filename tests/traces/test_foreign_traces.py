"""Hugging Face models through the attention interface: true Q, K, V, mask and scale, and not a bit changed."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from trace_helpers import Keep, dense_map, random_batch, random_tokens

from attnworks.data.text_batch import TextBatch
from attnworks.errors import UsageError
from attnworks.traces.foreign import ForeignSubject
from attnworks.traces.layer import Slot

sys.path.insert(0, str(Path(__file__).parent.parent / "models"))
from tiny_models import TINY, inputs  # noqa: E402

transformers: Any = pytest.importorskip("transformers")

SOURCE, TARGET = (7, 7, 5, 3), (5, 11, 3, 2)
READS_TEXT = [name for name in TINY if name not in ("vit", "bert-decoder", "gpt2-cross")]


def subject_of(name: str, **changes: Any) -> tuple[ForeignSubject, TextBatch]:
    model = TINY[name].build(**changes)
    both = getattr(model.config, "is_encoder_decoder", False)
    return ForeignSubject(model, name), random_batch(SOURCE, TARGET if both else None)


@pytest.mark.parametrize("name", READS_TEXT)
def test_looking_changes_no_bit_and_shows_what_the_model_computes(name: str) -> None:
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
        relative = subject.model.config.model_type in ("t5", "mt5") and trace.slot.kind != "cross"
        assert trace.bilinear is not (TINY[name].rotary or relative), trace.slot
        assert trace.weights is not None and trace.X is not None


def test_padding_changes_nothing() -> None:
    subject, batch = subject_of("bert")
    keep, alone = Keep(), Keep()
    lonely = TextBatch(random_tokens(SOURCE))
    with torch.no_grad():
        subject.run(batch, keep)
        last = [field[-1:, :3] for field in (lonely.source.ids, lonely.source.real)]
        subject.run(TextBatch(random_tokens((3,))), alone)
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
    subject = ForeignSubject(model, given=lambda batch: pixels)
    patches, keep = TextBatch(random_tokens((5, 5))), Keep()
    with torch.no_grad():
        subject.run(patches, keep)
    assert [str(trace.slot) for trace in keep.traces] == ["enc.0", "enc.1"]


@pytest.mark.parametrize("name", ["XLNet", "BigBird"])
def test_models_that_bypass_the_interface_are_refused(name: str) -> None:
    small = {"vocab_size": 53, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if name == "XLNet":
        config = transformers.XLNetConfig(vocab_size=53, d_model=16, n_layer=2, n_head=2, d_inner=23)
    else:
        config = transformers.BigBirdConfig(**small, intermediate_size=23, attention_type="block_sparse", block_size=4)
    subject = ForeignSubject(getattr(transformers, f"{name}Model")(config).eval())
    with pytest.raises(UsageError, match="attention interface"), torch.no_grad():
        subject.run(random_batch((7, 5)), Keep())


def test_the_model_is_left_as_it_was() -> None:
    subject, batch = subject_of("bert")
    before = subject.model.config._attn_implementation
    with torch.no_grad():
        subject.run(batch, Keep())
    assert subject.model.config._attn_implementation == before
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in subject.model.modules())
