"""Gradients of attention layers, against autograd through an attention that is written out.

With S the scores, P = softmax(S) where keys are seen, Y = P V: dL/dS = P o (dP - 1 (P . dP)) with dP = dL/dY V^T. Here
a model runs with scores to which zeros E are added in the open, and dL/dE is asked of autograd.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.attention.heads import HeadMatrices
from attnworks.core.places import Slot
from attnworks.models import AttentionConfig
from attnworks.models.anatomy import heads_of
from attnworks.reshape.growth.apply import GrowthPlace, GrowthStep, NewHead, grown
from attnworks.reshape.growth.graded import GradedLayer, cap_slopes, graded_layers, softmax_back
from attnworks.reshape.surgery import layers_of
from attnworks.traces.frozen_pass import whole_maps
from attnworks.traces.layer import LayerTrace
from attnworks.traces.loss import TextLoss
from attnworks.traces.subject import LayerHook
from tests.helpers import assert_close
from tests.model_helpers import randn, the
from tests.reshape.reshape_helpers import D_E, D_V, context_of, model_of, subject_of
from tests.traces.trace_helpers import dense_map

SLOTS = tuple(map(Slot.parse, ("enc.0", "enc.1", "dec.1", "cross.0")))


class InTheOpen(LayerHook):
    """One layer with Y computed by hand from scores S + E, and the output u + U, where E and U are zeros."""

    def __init__(self, slot: Slot) -> None:
        self.slot = slot

    def attention(self, trace: LayerTrace) -> Tensor | None:
        if trace.slot != self.slot:
            return None
        with torch.no_grad():
            seen = dense_map(trace) > 0
        S = the(trace.scale) * trace.Q @ trace.K.mT
        self.E = torch.zeros_like(S, requires_grad=True)
        P = (S + self.E).masked_fill(~seen, -torch.inf).softmax(-1)
        self.Y = torch.where(seen.any(-1, keepdim=True), P.nan_to_num(0.0) @ trace.V, trace.Y)
        self.seen = seen
        return self.Y


def text_loss(**changes: Any) -> TextLoss:
    return context_of(subject_of(model_of(**changes))).calibration


def graded(own: TextLoss, slot: Slot) -> GradedLayer:
    """Of the last batch, whose sentences are of several lengths."""
    number = len(own.text.batches) - 1
    branches = {slot: layers_of(own.original.model)[slot].branch}
    (layer,) = graded_layers(own, *own.text.batch(number), branches)
    return layer


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("slot", SLOTS)
def test_by_scores_and_by_heads(slot: Slot, norm: str) -> None:
    own = text_loss(norm=norm)
    layer, open_one = graded(own, slot), InTheOpen(slot)
    batch, rows = own.text.batch(len(own.text.batches) - 1)
    assert not batch.source.real.all(), "some padding"
    losses = own.losses(own.original, batch, rows, open_one)
    by_scores, by_heads = torch.autograd.grad(losses.sum(), [open_one.E, open_one.Y])
    found = layer.by_scores()
    real = layer.trace.queries.real[:, None, :, None]
    assert_close(found, by_scores.nan_to_num(0.0) * real)
    assert_close(layer.by_heads, by_heads)
    assert not found[~open_one.seen].any() and not layer.P[~open_one.seen].any()
    assert not (found * ~real).any()
    assert_close(found.sum(-1), torch.zeros_like(found[..., 0]))
    assert found.abs().max() > 1e-6
    if slot == Slot.parse("dec.1"):
        assert not found.triu(1).any()


@pytest.mark.parametrize("slot", SLOTS)
def test_by_output(slot: Slot) -> None:
    """The gradient of what a layer adds to the stream: that of its bias b_O, position by position."""
    own = text_loss()
    layer, model = graded(own, slot), own.original.model
    branch: Any = layers_of(model)[slot].branch
    U: list[Tensor] = []

    def plus_zeros(_: Any, __: Any, output: Tensor) -> Tensor:
        U.append(torch.zeros_like(output, requires_grad=True))
        return output + U[0]

    hook = branch.register_forward_hook(plus_zeros)
    own.losses(own.original, *own.text.batch(len(own.text.batches) - 1)).sum().backward()
    hook.remove()
    assert_close(layer.by_output, the(U[0].grad))
    attention: Any = layers_of(model)[slot].attention
    assert_close(layer.by_output.sum((0, 1)), the(attention.b_O.grad))
    model.zero_grad()


def test_all_layers_at_once_and_nothing_is_left_behind() -> None:
    own = text_loss()
    model = own.original.model
    model.train()
    parts = layers_of(model)
    branches = {slot: part.branch for slot, part in parts.items()}
    together = {layer.trace.slot: layer for layer in graded_layers(own, *own.text.batch(0), branches)}
    assert list(together) == list(branches)
    for slot, layer in together.items():
        (alone,) = graded_layers(own, *own.text.batch(0), {slot: branches[slot]})
        assert_close(layer.by_scores(), alone.by_scores())
        assert_close(layer.by_output, alone.by_output)
    assert all(module.training for module in model.modules()), "dropout is off only inside"
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


@given(seed=st.integers(0, 50))
def test_the_softmax_backwards(seed: int) -> None:
    S, G = randn(2, 3, 5, 7, seed=seed).requires_grad_(), randn(2, 3, 5, 7, seed=seed + 1)
    P = S.softmax(-1)
    (expected,) = torch.autograd.grad((P * G).sum(), S)
    assert_close(softmax_back(P.detach(), G), expected)


# As if there were one more head --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("slot", [Slot.parse("enc.1"), Slot.parse("dec.0"), Slot.parse("cross.1")])
def test_as_a_model_that_has_the_head(slot: Slot, bias: bool) -> None:
    """The gradient by the scores of a head that is not there is t -> 0 of that of a model where it is, by t:

    with outputs t b it adds t P' Z a b to the layer, so that dL/dS' = t P' o (...) + O(t^2), and the loss of the model
    with keys that differ by s alpha beta^T has the mixed derivative <X'^T (dL/dS') Z, alpha beta^T> in t and s.
    """
    own = text_loss(attention=AttentionConfig(heads=2, d_k=3, d_v=D_V, bias=bias))
    model, parent = own.original.model, 1
    like = heads_of(layers_of(model)[slot])[parent].each(lambda tensor: 1.2 * tensor.detach() + 0.05)
    a, b, alpha, beta = randn(D_E, 2), randn(2, D_E, seed=1), randn(D_E, 1, seed=2), randn(D_E, 1, seed=3)
    layer = graded(own, slot).as_head(like, a, b, parent)
    assert layer.P.shape[1] == layer.by_heads.shape[1] == 1
    X, Z, scale = the(layer.trace.X), the(layer.trace.Z), the(layer.trace.scale)
    expected = float((layer.by_scores()[:, 0] * ((X @ alpha) @ (Z @ beta).mT)).sum().detach())
    original: Any = own.original
    batch, rows = own.text.batch(len(own.text.batches) - 1)

    def slope(t: float) -> float:
        """d loss / d s at s = 0 of the model with the head at length t, by autograd: columns alpha and zero keys."""
        head: HeadMatrices = like._replace(
            W_Q=torch.cat([like.W_Q, alpha], 1),
            W_K=torch.cat([like.W_K, torch.zeros_like(beta)], 1),
            b_Q=None if like.b_Q is None else torch.cat([like.b_Q, torch.zeros(1).double()]),
            b_K=None if like.b_K is None else torch.cat([like.b_K, torch.zeros(1).double()]),
        )
        new = grown(model, [GrowthStep(GrowthPlace(slot, None), NewHead(head, a, b), t, scale)])
        own.losses(original.with_model(new), batch, rows).sum().backward()
        attention: Any = layers_of(new)[slot].attention
        by_keys = attention.key_widths.split(attention.W_K.grad)[-1][:, -1]
        return float(by_keys @ beta[:, 0]) / scale

    found = (slope(1e-6) - slope(-1e-6)) / 2e-6
    assert found == pytest.approx(expected, rel=1e-4, abs=1e-8) and abs(expected) > 1e-7


def test_a_copy_of_a_head_sees_what_the_head_sees() -> None:
    own = text_loss()
    for slot in SLOTS:
        layer = graded(own, slot)
        head = heads_of(layers_of(own.original.model)[slot])[1].each(torch.detach)
        alone = layer.as_head(head, head.W_V, head.W_O, 1)
        assert_close(alone.P, layer.P[:, 1:])
        assert_close(alone.by_heads, layer.by_heads[:, 1:])
        if head.b_V is not None:  # a row of P (Z W_V + 1 b^T) has b added, which the softmax does not notice
            assert_close(alone.by_scores(), layer.by_scores()[:, 1:])


@torch.no_grad()
def test_a_copy_of_a_head_has_the_sink_logit_of_that_head() -> None:
    own = text_loss()
    plain = graded(own, Slot.parse("enc.0"))
    trace = replace(plain.trace, sink=torch.tensor([-1.0, 2.0], dtype=torch.float64))
    layer = GradedLayer(trace, whole_maps(trace), plain.by_heads, plain.by_output)
    head = heads_of(layers_of(own.original.model)[Slot.parse("enc.0")])[1].each(torch.detach)
    alone = layer.as_head(head, head.W_V, head.W_O, 1)
    assert_close(alone.P, layer.P[:, 1:])
    assert layer.P[:, 1].sum(-1).max() < 1 and alone.trace.sink is not None and alone.trace.sink.shape == (1,)


def test_the_gradient_by_capped_scores_is_that_before_the_cap() -> None:
    """With S' = c tanh(S / c), P = softmax(S') and a loss <W, P V>: dL/dS by autograd."""
    layer = graded(text_loss(), Slot.parse("enc.0"))
    trace = replace(layer.trace, softcap=1.3)
    S = (the(trace.scale) * trace.Q @ trace.K.mT).detach().requires_grad_()
    seen = dense_map(layer.trace) > 0
    P = (1.3 * (S / 1.3).tanh()).masked_fill(~seen, -torch.inf).softmax(-1).nan_to_num(0.0)
    ((P @ trace.V.detach()) * layer.by_heads).sum().backward()
    with torch.no_grad():
        capped = replace(layer, trace=trace, P=whole_maps(trace))
    assert_close(capped.by_scores(), the(S.grad).nan_to_num(0.0))
    slopes = cap_slopes(trace)
    assert slopes is not None and slopes.mean() < 0.9, "the cap is felt"
    assert cap_slopes(layer.trace) is None
