"""Gates on heads: gradients as finite differences, and a head off as rows of W_O that are zero."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.attention.heads import HeadWeights
from attnworks.core.places import HeadId, Slot
from attnworks.hf.subject import HFSubject
from attnworks.text.tokens import Batch
from attnworks.traces.edits import CountHeadsHook, HeadsOffHook, OpenGatesHook
from attnworks.traces.layer import LayerTrace
from attnworks.traces.own import OwnSubject
from attnworks.traces.subject import LayerHook, Subject
from tests.model_helpers import the, transformer
from tests.tiny_models import TINY
from tests.traces.trace_helpers import random_batch

SOURCE, TARGET = (7, 5, 3), (5, 11, 2)
NAMES = ["own", "own-post", "bert", "gpt2", "bart"]


def subject_of(name: str) -> tuple[Subject, Batch]:
    if name.startswith("own"):
        model = transformer(norm="post" if name == "own-post" else "pre").eval()
        return OwnSubject(model, name), random_batch(SOURCE, TARGET, words=17)
    model = TINY[name].build()
    both = getattr(model.config, "is_encoder_decoder", False)
    return HFSubject(model, name), random_batch(SOURCE, TARGET if both else None)


def losses(hidden: Tensor, batch: Batch) -> Tensor:
    """One number per sentence, of its real tokens."""
    real = (batch.source if batch.target is None else batch.target).real
    direction = torch.randn(hidden.shape[-1], generator=torch.Generator().manual_seed(5), dtype=hidden.dtype)
    return ((hidden @ direction).square() * real).sum(-1)


class Turned(LayerHook):
    """One gate of one sentence, a little open or closed."""

    def __init__(self, slot: Slot, sentence: int, head: int, by: float) -> None:
        self.slot, self.sentence, self.head, self.by = slot, sentence, head, by

    def attention(self, trace: LayerTrace) -> Tensor | None:
        if trace.slot != self.slot:
            return None
        Y = trace.Y.clone()
        Y[self.sentence, self.head] *= 1 + self.by
        return Y


class OutputWeights(LayerHook):
    def __init__(self) -> None:
        self.found: dict[Slot, HeadWeights] = {}

    def attention(self, trace: LayerTrace) -> Tensor | None:
        self.found[trace.slot] = the(trace.weights)
        return None


@pytest.mark.parametrize("name", [*NAMES, "gpt_neox"])
def test_gradients_of_gates_are_finite_differences(name: str) -> None:
    subject, batch = subject_of(name)
    gates = OpenGatesHook()
    loss = losses(subject.run(batch, gates).hidden, batch)
    grads = torch.autograd.grad(loss.sum(), list(gates.gates.values()))
    step = 1e-5
    with torch.no_grad():
        assert torch.equal(subject.run(batch).hidden, subject.run(batch, OpenGatesHook()).hidden)
        for (slot, gate), grad in zip(gates.gates.items(), grads, strict=True):
            sentence, head = slot.layer % len(SOURCE), (slot.layer + 1) % gate.shape[1]
            more, less = (
                losses(subject.run(batch, Turned(slot, sentence, head, by)).hidden, batch) for by in (step, -step)
            )
            difference = (more - less) / (2 * step)
            torch.testing.assert_close(grad[sentence, head], difference[sentence], rtol=1e-5, atol=1e-6)
            assert not difference[torch.arange(len(SOURCE)) != sentence].any()
            assert grad.abs().min() > 0


@torch.no_grad()
@pytest.mark.parametrize("name", [*NAMES, "llama", "t5"])
def test_a_head_off_is_a_head_whose_output_weights_are_zero(name: str) -> None:
    subject, batch = subject_of(name)
    weights, counted = OutputWeights(), CountHeadsHook()
    whole = subject.run(batch, weights).hidden
    subject.run(batch, counted)
    for slot, own in weights.found.items():
        assert counted.heads[slot] == len(own.W_O)
        head = slot.layer % len(own.W_O)
        off = subject.run(batch, HeadsOffHook([HeadId(slot, head)])).hidden
        assert own.W_O.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
        kept = own.W_O[head].clone()
        own.W_O[head] = 0.0
        expected = subject.run(batch).hidden
        own.W_O[head] = kept
        torch.testing.assert_close(off, expected, rtol=1e-10, atol=1e-10)
        assert not torch.allclose(off, whole)
    assert torch.equal(subject.run(batch).hidden, whole)


@torch.no_grad()
def test_other_layers_are_left_alone() -> None:
    subject, batch = subject_of("bert")
    whole: Any = subject.run(batch).hidden
    assert torch.equal(subject.run(batch, HeadsOffHook([HeadId(Slot("encoder", 29), 0)])).hidden, whole)
    assert torch.equal(subject.run(batch, HeadsOffHook([HeadId(Slot("decoder", 0), 0)])).hidden, whole)
