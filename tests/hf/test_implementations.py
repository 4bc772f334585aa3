"""How attention of Hugging Face models is shown: in several threads at once, and with any implementation."""

from __future__ import annotations

from threading import Event, Thread
from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.hf.attention import register_mechanism
from attnworks.hf.subject import HFSubject
from attnworks.traces.layer import LayerTrace
from tests.tiny_models import TINY
from tests.traces.trace_helpers import Keep, dense_map, random_batch

transformers: Any = pytest.importorskip("transformers")

PATIENCE = 180.0
LENGTHS = (7, 5)


class Held(Keep):
    """Says when it has seen a layer, and then waits until it may continue."""

    def __init__(self) -> None:
        super().__init__()
        self.inside, self.may_end = Event(), Event()

    def attention(self, trace: LayerTrace) -> Tensor | None:
        super().attention(trace)
        self.inside.set()
        assert self.may_end.wait(PATIENCE)
        return None


class InThread(Thread):
    """One forward pass in a thread of its own, and what it gave."""

    def __init__(self, subject: HFSubject, hook: Keep | None = None) -> None:
        super().__init__()
        self.subject, self.hook = subject, hook
        self.hidden: Tensor | None = None
        self.found: Any = None
        self.start()

    def run(self) -> None:
        with torch.no_grad():
            self.hidden = self.subject.run(random_batch(LENGTHS), self.hook).hidden
        self.found = transformers.AttentionInterface().get_interface("sdpa", print)

    def ended(self) -> Tensor:
        self.join(PATIENCE)
        assert self.hidden is not None, "it failed, or still runs"
        return self.hidden


@pytest.mark.parametrize("first_to_end", [0, 1])
def test_threads_examine_at_once_and_another_one_sees_no_change(first_to_end: int) -> None:
    subjects = [HFSubject(TINY[name].build()) for name in ("bert", "gpt2", "roberta")]
    expected = [InThread(subject).ended() for subject in subjects]
    plain = transformers.AttentionInterface.get_interface
    held = Held(), Held()
    running: list[InThread] = []
    try:
        for subject, hook in zip(subjects, held, strict=False):
            running.append(InThread(subject, hook))
            assert hook.inside.wait(PATIENCE)
        other = InThread(subjects[2])
        assert torch.equal(other.ended(), expected[2])
        assert other.found is transformers.AttentionInterface()["sdpa"]
        held[first_to_end].may_end.set()
        running[first_to_end].ended()
        assert transformers.AttentionInterface.get_interface is not plain, "one thread still examines"
    finally:
        for hook in held:
            hook.may_end.set()
    for thread, hook, want in zip(running, held, expected, strict=False):
        assert torch.equal(thread.ended(), want)
        kind = "enc" if hook is held[0] else "dec"
        assert [str(trace.slot) for trace in hook.traces] == [f"{kind}.0", f"{kind}.1"]
    assert transformers.AttentionInterface.get_interface is plain


class Named(Keep):
    """Remembers which implementation a model has while it is examined."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model, self.names = model, set[str]()

    def attention(self, trace: LayerTrace) -> Tensor | None:
        self.names.add(self.model.config._attn_implementation)
        return super().attention(trace)


def gemma2() -> Any:
    small = {"vocab_size": 53, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 6}
    config = transformers.Gemma2Config(**small, num_key_value_heads=1, intermediate_size=13, pad_token_id=1)
    with torch.random.fork_rng():
        return transformers.Gemma2Model(config).eval()


@torch.no_grad()
def test_a_mechanism_of_ours_is_examined_with_sdpa() -> None:
    model, name = TINY["bert"].build(), register_mechanism("dense")
    model.set_attn_implementation(name)
    named, usual = Named(model), Keep()
    HFSubject(model).run(random_batch(LENGTHS), named)
    assert named.names == {"sdpa"} and model.config._attn_implementation == name
    model.set_attn_implementation("sdpa")
    HFSubject(model).run(random_batch(LENGTHS), usual)
    for one, other in zip(named.traces, usual.traces, strict=True):
        assert torch.equal(one.Y, other.Y)


@torch.no_grad()
def test_a_model_that_sdpa_cannot_compute_is_examined_with_eager() -> None:
    """Gemma 2 caps its scores, which flex attention and eager attention do."""
    model = gemma2()
    model.set_attn_implementation("flex_attention")
    named = Named(model)
    HFSubject(model).run(random_batch(LENGTHS), named)
    assert named.names == {"eager"} and model.config._attn_implementation == "flex_attention"
    assert len(named.traces) == 2 and all(trace.softcap is not None for trace in named.traces)


def test_the_implementation_is_restored_after_an_error() -> None:
    class Failing(Keep):
        def attention(self, trace: LayerTrace) -> Tensor | None:
            raise ValueError("a mistake of the hook")

    model, name = TINY["bert"].build(), register_mechanism("dense")
    model.set_attn_implementation(name)
    plain = transformers.AttentionInterface.get_interface
    with pytest.raises(ValueError, match="a mistake of the hook"), torch.no_grad():
        HFSubject(model).run(random_batch(LENGTHS), Failing())
    assert model.config._attn_implementation == name
    assert transformers.AttentionInterface.get_interface is plain


@torch.no_grad()
def test_code_that_indexes_the_interface_is_observed_at_its_softmax(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pattern of transformers 4: ALL_ATTENTION_FUNCTIONS[name], without get_interface."""

    class Indexed(transformers.AttentionInterface):
        def get_interface(self, name: str, default: Any) -> Any:
            return self[name]

    model, usual, indexed = TINY["bert"].build(), Keep(), Keep()
    model.set_attn_implementation("sdpa")
    HFSubject(model).run(random_batch(LENGTHS), usual)
    monkeypatch.setattr(transformers.models.bert.modeling_bert, "ALL_ATTENTION_FUNCTIONS", Indexed())
    HFSubject(model).run(random_batch(LENGTHS), indexed)
    for one, other in zip(usual.traces, indexed.traces, strict=True):
        assert other.at_softmax and not one.at_softmax
        assert torch.equal(one.Y, other.Y)
        torch.testing.assert_close(dense_map(one), dense_map(other))
