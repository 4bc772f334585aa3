"""attnworks's own models under examination: what is shown is what they compute, and not a bit is changed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import attnworks
from attnworks.attention.heads import HeadWeights
from attnworks.core.errors import UsageError
from attnworks.core.places import Kind
from attnworks.models import Recurrent, build
from attnworks.text.grammar import grammar_passages
from attnworks.text.tokens import Batch
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.layer import LayerTrace
from attnworks.traces.own import OwnSubject
from attnworks.traces.rows import rows_of
from tests.helpers import unchecked
from tests.model_helpers import (
    Recorder,
    attention_config,
    filled,
    recurrent_config,
    the,
    transformer,
)
from tests.traces.trace_helpers import Keep, dense_map, random_batch

SOURCE, TARGET = (7, 7, 5, 3), (5, 11, 3, 2)
ONE, BOTH = random_batch(SOURCE, words=17), random_batch(SOURCE, TARGET, words=17)
MIXED = ("dense", "luong-dot", "bahdanau-additive")


def own(**changes: Any) -> OwnSubject:
    return OwnSubject(transformer(**changes).eval())


def recurrent(mechanism: str | None, **changes: Any) -> OwnSubject:
    model = filled(build(recurrent_config(mechanism=mechanism, **changes))).double().eval()
    assert isinstance(model, Recurrent)
    return OwnSubject(model)


TRANSFORMERS: dict[str, tuple[OwnSubject, Batch, str, list[str]]] = {
    "encoder": (own(decoder_layers=0), ONE, "encoder", ["enc.0", "enc.1"]),
    "decoder": (own(encoder_layers=0), ONE, "decoder", ["dec.0", "dec.1"]),
    "both": (
        own(encoder_layers=1, norm="pre"), BOTH, "encoder-decoder", ["enc.0", "dec.0", "cross.0", "dec.1", "cross.1"],
    ),
    "luong": (own(attention=attention_config(mechanism="luong-dot")), BOTH, "encoder-decoder", []),
    "bahdanau": (own(attention=attention_config(mechanism="bahdanau-additive"), decoder_layers=0), ONE, "encoder", []),
    "mixed": (own(attention=attention_config(mechanism=MIXED)), BOTH, "encoder-decoder", []),
    "mixed-decoder": (own(attention=attention_config(mechanism=MIXED), encoder_layers=0), ONE, "decoder", []),
    "one-layer-other": (own(slots={"dec.1": attention_config(heads=5, d_k=2)}), BOTH, "encoder-decoder", []),
}  # fmt: skip
RECURRENT = {
    f"{cell}-{mechanism}": (recurrent(mechanism, cell=cell), BOTH, "encoder-decoder", ["cross.0"])
    for cell, mechanism in (
        ("lstm", "dense"),
        ("gru", "bahdanau-additive"),
        ("lstm", "luong-dot"),
        ("gru", "luong-multiplicative"),
    )
}
SUBJECTS = TRANSFORMERS | RECURRENT
by_subject = pytest.mark.parametrize("name", SUBJECTS)


def watched(name: str) -> tuple[OwnSubject, Batch, Keep]:
    subject, batch, *_ = SUBJECTS[name]
    keep = Keep()
    with torch.no_grad():
        subject.run(batch, keep)
    return subject, batch, keep


@torch.no_grad()
@by_subject
def test_observing_changes_no_bit(name: str) -> None:
    subject, batch, kind, slots = SUBJECTS[name]
    keep = Keep()
    plain, seen = subject.run(batch, logits=True), subject.run(batch, keep, logits=True)
    assert torch.equal(plain.hidden, seen.hidden) and torch.equal(the(plain.logits), the(seen.logits))
    assert subject.abilities.kind == kind and subject.abilities.vocabulary
    if slots:
        assert [str(trace.slot) for trace in keep.traces] == slots
    assert subject.run(batch).logits is None
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in subject.model.modules())


@torch.no_grad()
@by_subject
def test_what_is_shown_is_what_is_computed(name: str) -> None:
    _, batch, keep = watched(name)
    for trace in keep.traces:
        assert trace.queries is batch.sides(trace.slot.kind)[0] and trace.keys is batch.sides(trace.slot.kind)[1]
        P, real = dense_map(trace), trace.queries.real[:, None, :, None]
        torch.testing.assert_close((P @ trace.V) * real, trace.Y * real, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(P.sum(-1) * real[..., 0], real[..., 0].double().expand(P.shape[:3]))
        if trace.slot.kind == "decoder":
            assert not P.triu(1).any()


@torch.no_grad()
@by_subject
def test_maps_are_the_weights_of_the_observer(name: str) -> None:
    subject, batch, keep = watched(name)
    recorder = Recorder()
    source, target = batch.source, batch.target
    sides: Any = (source.ids, the(target).ids, source.real, the(target).real) if target is not None else None
    if sides is None:
        decoder = subject.abilities.kind == "decoder"
        sides = (None, source.ids, None, source.real) if decoder else (source.ids, None, source.real, None)
    subject.model.hidden(*sides, observe=recorder)
    for trace in keep.traces:
        real = trace.queries.real[:, None, :, None]
        torch.testing.assert_close(dense_map(trace), recorder.P(str(trace.slot)) * real, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", TRANSFORMERS)
def test_streams_surround_the_blocks(name: str) -> None:
    subject, batch, keep = watched(name)
    blocks = the(subject.blocks)
    kinds: set[Kind] = {block.kind for block in blocks}
    for kind in kinds:
        streams = [stream for stream in keep.streams if stream.kind == kind]
        assert [stream.depth for stream in streams] == list(range(1 + sum(block.kind == kind for block in blocks)))
        assert all(stream.tokens is batch.sides(kind)[0] for stream in streams)
        reading = [trace for trace in keep.traces if trace.slot.kind == kind]
        if all(block.norm == "post" for block in blocks):
            for stream, trace in zip(streams, reading, strict=False):
                assert torch.equal(stream.X, the(trace.X))


@pytest.mark.parametrize("name", RECURRENT)
def test_a_recurrent_network_has_no_residual_stream(name: str) -> None:
    subject, _, keep = watched(name)
    assert subject.blocks is None and not keep.streams
    (trace,) = keep.traces
    assert trace.weights is None and trace.heads == 1 and torch.equal(trace.K, trace.V)


def projected(X: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    Y = torch.einsum("bie,hek->bhik", X, W)
    return Y if b is None else Y + b[:, None]


@by_subject
def test_bilinear_scores_follow_from_weights(name: str) -> None:
    _, _, keep = watched(name)
    for trace in keep.traces:
        assert trace.bilinear is (trace.scale is not None)
        weights: HeadWeights | None = trace.weights
        if weights is not None:
            X, Z = the(trace.X), the(trace.Z)
            torch.testing.assert_close(trace.Q, projected(X, weights.W_Q, weights.b_Q), rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(trace.K, projected(Z, weights.W_K, weights.b_K), rtol=1e-9, atol=1e-11)
            torch.testing.assert_close(trace.V, projected(Z, weights.W_V, weights.b_V), rtol=1e-9, atol=1e-11)


@torch.no_grad()
def test_weights_are_those_of_now() -> None:
    """Also after a change of dtype and after training, for the same subject."""
    subject, keep = OwnSubject(transformer(torch.float32, decoder_layers=0).eval()), Keep()
    subject.run(ONE, keep)
    twice = {name: 2 * tensor.double() for name, tensor in subject.model.state_dict().items()}
    subject.model.load_state_dict(twice, assign=True)
    again = Keep()
    subject.run(ONE, again)
    for trace in (*keep.traces[1:], *again.traces):
        weights = the(trace.weights)
        assert weights.W_Q.dtype == torch.float64 and weights is trace.weights
        block = the(subject.blocks)[trace.slot.layer]
        assert torch.equal(weights.W_Q, the(block.parts[0].weights)().W_Q)


def test_weights_are_read_when_looked_at() -> None:
    first = watched("encoder")[2].traces[0]
    W, asked = the(first.weights), []
    read = partial(next, iter([W]))

    def count() -> HeadWeights:
        asked.append(1)
        return read()

    fields = (first.slot, first.Q, first.K, first.V, first.Y, first.mask, first.scale, first.queries, first.keys)
    with unchecked():
        trace = LayerTrace(*fields, read_weights=count)
        assert not asked and trace.heads == first.heads and not asked
        assert trace.weights is W and trace.weights is W and len(asked) == 1
        assert replace(trace, bilinear=True).weights is W and replace(trace, weights=None).weights is None
        assert LayerTrace(*fields, weights=W).weights is W and LayerTrace(*fields).weights is None
    with pytest.raises(AttributeError, match=r"LayerTrace has no weight$"):
        getattr(trace, "weight")  # noqa: B009


def test_which_mechanisms_have_a_scale() -> None:
    scales = {name: {trace.scale for trace in watched(name)[2].traces} for name in SUBJECTS}
    assert scales["both"] == {5**-0.5} and scales["luong"] == {1.0}
    assert scales["bahdanau"] == scales["mixed"] == scales["gru-bahdanau-additive"] == {None}


@torch.no_grad()
def test_rows_of_heads_that_score_otherwise() -> None:
    """The dense heads of a layer of mixed heads have the rows of a layer that is dense throughout."""
    mixed = own(attention=attention_config(mechanism=("dense", "bahdanau-additive", "dense")), decoder_layers=0)
    dense = own(decoder_layers=0)
    dense.model.load_state_dict(mixed.model.state_dict(), strict=False)
    keeps = [Keep(), Keep()]
    for subject, keep in zip((mixed, dense), keeps, strict=True):
        subject.run(ONE, keep)
    first: list[LayerTrace] = [keep.traces[0] for keep in keeps]
    one, other = (rows_of(trace, 3) for trace in first)
    for name in ("entropy", "max_weight", "jacobian_norm", "score_range", "received", "diagonal"):
        torch.testing.assert_close(getattr(one, name)[:, ::2], getattr(other, name)[:, ::2], rtol=1e-9, atol=1e-10)
    assert torch.equal(one.argmax[:, ::2], other.argmax[:, ::2])


def test_without_attention_there_is_nothing_to_examine() -> None:
    subject = recurrent(None)
    with torch.no_grad():
        assert subject.run(BOTH).hidden.isfinite().all()
    with pytest.raises(UsageError, match="a model that attends, got one without"):
        subject.run(BOTH, Keep())
    passages = grammar_passages(3)
    english, italian = (
        Vocabulary.train("word", [the(getattr(passage, side)).text.split() for passage in passages])
        for side in ("source", "target")
    )
    model = build(recurrent_config(vocabulary=len(english), target_vocabulary=len(italian)))
    with pytest.raises(UsageError, match="one with a mechanism"):
        attnworks.examine(model, passages, tokenizer=(english, italian))
