"""Columns and heads that are added by a step of any length: what becomes of scores and outputs, and of nothing.

A head scores with S = s (X W_Q + 1 b_Q^T)(Z W_K + 1 b_K^T)^T. With r = sqrt(|t / s|) and the sign of t s, the columns
sign r alpha beside W_Q, sign r bias beside b_Q and r beta beside W_K (zeros beside b_K) add
    s sign r^2 (X alpha + 1 bias^T)(Z beta)^T = t (X alpha + 1 bias^T)(Z beta)^T,
as s sign |t / s| = t. In the same way columns sign r a beside W_V and rows r b below W_O, with r = sqrt(|t|), add
t P Z a b to the output. The factor s is the old one, though keys are wider.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnworks.attention.heads import HeadMatrices
from attnworks.core.errors import UsageError
from attnworks.core.places import Slot
from attnworks.hf.subject import HFSubject
from attnworks.models import MultiHead, Observation, Transformer
from attnworks.models.anatomy import attention_layers, heads_of
from attnworks.models.folder import weights_fingerprint
from attnworks.reshape.growth.apply import (
    GrowthPlace,
    GrowthStep,
    Keys,
    NewHead,
    Rewritten,
    Values,
    grow_in_place,
    grown,
    grown_heads,
)
from attnworks.reshape.surgery import anatomy_of, layers_of
from attnworks.traces.layer import LayerTrace
from tests.helpers import assert_close
from tests.model_helpers import D_E, Recorder, attention_config, filled, randn, the, tokens, transformer
from tests.tiny_models import TINY
from tests.traces.trace_helpers import Keep, random_batch

P_ = 3
LENGTHS = (0.7, -1.3)
SLOTS = tuple(map(Slot.parse, ("enc.0", "enc.1", "dec.0", "cross.1")))
SOURCE, TARGET = tokens(17, 2, 7), tokens(19, 2, 5, seed=1)
PADDING = torch.tensor([[True] * 4 + [False] * 3, [True] * 7])
TARGET_PADDING = torch.tensor([[True] * 5, [True] * 3 + [False] * 2])


def keys(bias: bool, seed: int = 11, p: int = P_) -> Keys:
    return Keys(randn(D_E, p, seed=seed), randn(D_E, p, seed=seed + 1), randn(p, seed=seed + 2) if bias else None)


def values(seed: int = 23, p: int = P_) -> Values:
    return Values(randn(D_E, p, seed=seed), randn(p, D_E, seed=seed + 1))


def new_head(model: Transformer, slot: Slot, parent: int) -> NewHead:
    """With queries and keys that are not those of any head."""
    like = heads_of(layers_of(model)[slot])[parent].each(lambda tensor: 1.5 * tensor.detach() + 0.1)
    return NewHead(like, randn(D_E, P_, seed=41), randn(P_, D_E, seed=42))


def seen(model: Any, slot: Slot) -> tuple[Observation, Tensor]:
    """What a layer computes on padded sentences, and what it gives."""
    recorder, given = Recorder(), list[Any]()
    hook = layer(model, slot).register_forward_hook(lambda _, __, output: given.append(output))
    with torch.no_grad():
        model(SOURCE, TARGET, PADDING, TARGET_PADDING, observe=recorder)
        recorder.P(slot)
    hook.remove()
    return recorder[slot], given[0]


def layer(model: Any, slot: Slot) -> MultiHead:
    attention = layers_of(model)[slot].attention
    assert isinstance(attention, MultiHead)
    return attention


def scores(observed: Observation) -> Tensor:
    return the(observed.scale) * observed.Q @ observed.K.mT


def everything(model: Any) -> Tensor:
    with torch.no_grad():
        return model(SOURCE, TARGET, PADDING, TARGET_PADDING)


# What a step adds ----------------------------------------------------------------------------------------------------


def test_models_of_attnworks_refuse_columns_that_turn() -> None:
    model, added = transformer(), keys(True)
    turning = added._replace(turns=torch.tensor([0.5, 0.5, 0.0]).double())
    with pytest.raises(UsageError, match=r"wider or more heads in enc\.0: .* columns that turn by position"):
        grown(model, [GrowthStep(GrowthPlace(SLOTS[0], 1), turning, 0.5, 1.0)])
    still = added._replace(turns=torch.zeros(P_).double())
    grown(model, [GrowthStep(GrowthPlace(SLOTS[0], 1), still, 0.5, 1.0)])


def test_angles_are_no_weights() -> None:
    head = heads_of(layers_of(transformer())[SLOTS[0]])[0]._replace(turns=torch.tensor([0.5, 0.5]))
    changed = head.each(lambda tensor: 2 * tensor)
    assert changed.turns is head.turns and torch.equal(changed.W_Q, 2 * head.W_Q)
    assert len(head.weights) == 7 and all(one is not head.turns for one in head.weights)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("slot", SLOTS)
def test_keys_add_to_the_scores_of_their_head(slot: Slot, bias: bool, length: float) -> None:
    model, head, added = transformer(attention=attention_config(bias=bias)), 1, keys(bias)
    before, _ = seen(model, slot)
    after, _ = seen(grown(model, [GrowthStep(GrowthPlace(slot, head), added, length, the(before.scale))]), slot)
    assert after.scale == before.scale, "the factor stays what it was"
    queries = before.X @ added.alpha + (0.0 if added.bias is None else added.bias)
    expected = scores(before)
    expected[:, head] += length * queries @ (before.Z @ added.beta).mT
    assert_close(scores(after), expected)
    P = torch.where(before.P > 0, expected, -torch.inf).softmax(-1).nan_to_num(0.0)
    assert_close(after.P, P)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("slot", SLOTS)
def test_values_add_to_the_output(slot: Slot, bias: bool, length: float) -> None:
    model, head, added = transformer(attention=attention_config(bias=bias)), 2, values()
    before, output = seen(model, slot)
    after, new_output = seen(grown(model, [GrowthStep(GrowthPlace(slot, head), added, length)]), slot)
    assert torch.equal(after.P, before.P)
    assert_close(new_output, output + length * before.P[:, head] @ before.Z @ added.a @ added.b)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("slot", SLOTS)
def test_a_new_head_adds_to_the_output(slot: Slot, bias: bool, length: float) -> None:
    model = transformer(attention=attention_config(bias=bias))
    added = new_head(model, slot, 1)
    before, output = seen(model, slot)
    after, new_output = seen(
        grown(model, [GrowthStep(GrowthPlace(slot, None), added, length, the(before.scale))]), slot
    )
    Q, K = before.X @ added.like.W_Q, before.Z @ added.like.W_K
    if bias:
        Q, K = Q + the(added.like.b_Q), K + the(added.like.b_K)
    S = the(before.scale) * Q @ K.mT
    P = torch.where(before.P[:, 0] > 0, S, -torch.inf).softmax(-1).nan_to_num(0.0)
    assert_close(after.P, torch.cat([before.P, P.unsqueeze(1)], 1))
    assert_close(new_output, output + length * P @ before.Z @ added.a @ added.b)


def test_several_steps_at_once() -> None:
    """Keys and values of one head, keys of another, and two new heads, in one layer: their sum, and one after another.

    Columns that come twice to the same head lie side by side.
    """
    model, slot = transformer(), Slot.parse("enc.0")
    scale = the(layer(model, slot).scoring.scale)
    steps = [
        GrowthStep(GrowthPlace(slot, 0), keys(True), 0.3, scale),
        GrowthStep(GrowthPlace(slot, 0), values(), -0.4, scale),
        GrowthStep(GrowthPlace(slot, 0), keys(True, seed=51, p=2), 0.2, scale),
        GrowthStep(GrowthPlace(slot, 2), keys(True, seed=61, p=1), 0.5, scale),
        GrowthStep(GrowthPlace(slot, None), new_head(model, slot, 0), 0.6, scale),
        GrowthStep(GrowthPlace(slot, None), new_head(model, slot, 2), 0.1, scale),
    ]
    together, one_by_one = grown(model, steps), model
    for step in steps:
        one_by_one = grown(one_by_one, [step])
    assert weights_fingerprint(together) == weights_fingerprint(one_by_one)
    config = layer(together, slot).config
    assert config.key_widths == (5 + 3 + 2, 5, 5 + 1, 5, 5) and config.value_widths == (2 + 3, 2, 2, 3, 3)
    both, before = seen(together, slot)[0], seen(model, slot)[0]
    first, second = steps[0].addition, steps[2].addition
    assert isinstance(first, Keys) and isinstance(second, Keys)
    expected = scores(before)[:, 0]
    for t, one in ((0.3, first), (0.2, second)):
        expected = expected + t * (before.X @ one.alpha + the(one.bias)) @ (before.Z @ one.beta).mT
    assert_close(scores(both)[:, 0], expected)


@given(t=st.floats(-5, 5), s=st.sampled_from([0.2, 3.0, -0.7]), bias=st.booleans())
def test_heads_alone_for_any_length_and_factor(t: float, s: float, bias: bool) -> None:
    e, k, v, n = 7, 3, 2, 5
    b = (randn(k, seed=5), randn(k, seed=6), randn(v, seed=7)) if bias else (None, None, None)
    head = HeadMatrices(randn(e, k, seed=1), randn(e, k, seed=2), randn(e, v, seed=3), randn(v, e, seed=4), *b)
    X, Z = randn(n, e, seed=8), randn(n, e, seed=9)
    more = Keys(randn(e, P_, seed=10), randn(e, P_, seed=11), randn(P_, seed=12) if bias else None)
    wide = Values(randn(e, P_, seed=13), randn(P_, e, seed=14))
    (new,) = grown_heads(
        [head],
        [
            GrowthStep(GrowthPlace(Slot.parse("enc.0"), 0), more, t, s),
            GrowthStep(GrowthPlace(Slot.parse("enc.0"), 0), wide, t, s),
        ],
    )

    def product(head: HeadMatrices) -> Tensor:
        Q, K = X @ head.W_Q, Z @ head.W_K
        return s * Q @ K.mT if head.b_Q is None or head.b_K is None else s * (Q + head.b_Q) @ (K + head.b_K).mT

    Q = X @ more.alpha if more.bias is None else X @ more.alpha + more.bias
    assert_close(product(new), product(head) + t * Q @ (Z @ more.beta).mT)
    assert_close(new.W_V @ new.W_O, head.W_V @ head.W_O + t * wide.a @ wide.b)
    if bias:
        assert not the(new.b_K)[k:].any() and not the(new.b_V)[v:].any()
    size = math.sqrt(abs(t / s))
    assert_close(new.W_K[:, k:].norm() * more.alpha.norm(), new.W_Q[:, k:].norm() * more.beta.norm())
    assert_close(new.W_K[:, k:].norm(), size * more.beta.norm())


def test_keys_without_a_bias_in_a_layer_that_has_one() -> None:
    model, slot = transformer(), Slot.parse("enc.0")
    before, _ = seen(model, slot)
    added = keys(bias=False)
    after, _ = seen(grown(model, [GrowthStep(GrowthPlace(slot, 0), added, 0.5, the(before.scale))]), slot)
    assert_close(scores(after)[:, 0], scores(before)[:, 0] + 0.5 * before.X @ added.alpha @ (before.Z @ added.beta).mT)


@pytest.mark.parametrize("length", [0.0, 2.0])
def test_a_head_in_the_place_of_another(length: float) -> None:
    model, slot = transformer(), Slot.parse("dec.1")
    other = heads_of(attention_layers(anatomy_of(transformer(seed=7)))[slot])[0].each(torch.clone)
    new = grown(model, [GrowthStep(GrowthPlace(slot, 1), Rewritten(other), length)])
    heads = heads_of(layers_of(new)[slot])
    assert all(torch.equal(the(one), the(two)) for one, two in zip(heads[1].weights, other.weights, strict=True))
    for at in (0, 2):
        old = heads_of(layers_of(model)[slot])[at]
        assert all(torch.equal(the(one), the(two)) for one, two in zip(heads[at].weights, old.weights, strict=True))


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize(
    ("name", "slot"),
    [
        ("bert", Slot.parse("enc.0")),
        ("bart", Slot.parse("cross.0")),
        ("bart", Slot.parse("dec.1")),
        ("t5", Slot.parse("dec.0")),
    ],
)
def test_models_of_hugging_face(name: str, slot: Slot, length: float) -> None:
    model = TINY[name].build()
    batch = random_batch((7, 4), None if name == "bert" else (5, 3))

    def trace(model: Any) -> LayerTrace:
        keep = Keep()
        with torch.no_grad():
            HFSubject(model).run(batch, keep)
        return next(trace for trace in keep.traces if trace.slot == slot)

    before = trace(model)
    X, Z, scale = the(before.X), the(before.Z), the(before.scale)
    biased = the(before.weights).b_Q is not None
    added = Keys(randn(X.shape[-1], P_), randn(Z.shape[-1], P_, seed=1), randn(P_, seed=2) if biased else None)
    more = Values(randn(Z.shape[-1], P_, seed=3), randn(P_, X.shape[-1], seed=4))
    after = trace(grown(model, [GrowthStep(GrowthPlace(slot, 1), added, length, scale)]))
    (i, j), every = (X.shape[1], Z.shape[1]), slice(None)
    Q = X @ added.alpha if added.bias is None else X @ added.alpha + added.bias
    expected = before.scores(every, every, i, j).clone()
    expected[:, 1] += length * Q @ (Z @ added.beta).mT
    assert after.scale == scale
    assert_close(after.scores(every, every, i, j), expected)
    wide = grown(model, [GrowthStep(GrowthPlace(slot, 1), more, length, scale)])
    old, new = (heads_of(layers_of(of)[slot])[1] for of in (model, wide))
    assert_close(new.W_V @ new.W_O, old.W_V @ old.W_O + length * more.a @ more.b)


# Nothing, and the model that is grown --------------------------------------------------------------------------------


def every_kind(model: Transformer, slot: Slot, length: float) -> list[GrowthStep]:
    observed = layer(model, slot)
    scale, bias = the(observed.scoring.scale), observed.b_Q is not None
    return [
        GrowthStep(GrowthPlace(slot, 0), keys(bias), length, scale),
        GrowthStep(GrowthPlace(slot, 1), values(), length, scale),
        GrowthStep(GrowthPlace(slot, None), new_head(model, slot, 1), length, scale),
    ]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_step_of_zero_changes_nothing(norm: str, bias: bool) -> None:
    model = transformer(norm=norm, attention=attention_config(bias=bias))
    steps = [step for slot in layers_of(model) for step in every_kind(model, slot, 0.0)]
    expected, found = everything(model), everything(grown(model, steps))
    assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()
    further = [step._replace(length=1e-3) for step in steps]
    assert (everything(grown(model, further)) - expected).abs().max() > 1e-6


def test_a_step_of_zero_when_writing_word_by_word() -> None:
    model = transformer()
    new = grown(model, [step for slot in layers_of(model) for step in every_kind(model, slot, 0.0)])
    assert isinstance(new, Transformer)
    states: list[Any] = [one.start(SOURCE, PADDING) for one in (model, new)]
    for place in range(TARGET.shape[1]):
        word = TARGET[:, place : place + 1]
        (expected, states[0]), (found, states[1]) = model.step(word, states[0]), new.step(word, states[1])
        assert (found - expected).abs().max() <= 1e-12 * expected.abs().max()


def test_growing_by_nothing_is_the_same_bit_for_bit() -> None:
    model = transformer()
    before = weights_fingerprint(model)
    assert weights_fingerprint(grown(model, ())) == before
    everything_else = grown(model, every_kind(model, Slot.parse("enc.0"), 0.5))
    assert weights_fingerprint(model) == before and weights_fingerprint(everything_else) != before, (
        "the model itself stays as it is"
    )
    grow_in_place(model, ())
    assert weights_fingerprint(model) == before


@pytest.mark.parametrize("bias", [True, False])
def test_how_many_parameters_are_added(bias: bool) -> None:
    """p columns of keys: 2 e p, and 2 p biases; of values: 2 e p, and p; a head of k and p: 2 e (k + p), 2 k + p."""
    model = transformer(attention=attention_config(bias=bias))

    def count(model: Any) -> int:
        return sum(parameter.numel() for parameter in model.parameters())

    kinds = (2 * D_E * P_ + 2 * P_ * bias, 2 * D_E * P_ + P_ * bias, 2 * D_E * (5 + P_) + (2 * 5 + P_) * bias)
    for step, added in zip(every_kind(model, Slot.parse("cross.0"), 0.1), kinds, strict=True):
        assert count(grown(model, [step])) == count(model) + added


def test_types_modes_and_frozen_weights_are_kept() -> None:
    model = filled(transformer(torch.float32)).train()
    layer(model, Slot.parse("enc.0")).W_K.requires_grad_(False)
    new = grown(model, every_kind(model, Slot.parse("enc.0"), 0.3))
    assert {parameter.dtype for parameter in new.parameters()} == {torch.float32}
    assert all(module.training for module in new.modules())
    assert {name: p.requires_grad for name, p in new.named_parameters()} == {
        name: p.requires_grad for name, p in model.named_parameters()
    }


def test_new_columns_are_trained() -> None:
    new = grown(transformer(), every_kind(transformer(), Slot.parse("enc.0"), 0.2))
    assert isinstance(new, Transformer)
    new(SOURCE, TARGET, PADDING).square().sum().backward()
    for head in heads_of(layers_of(new)[Slot.parse("enc.0")]):
        assert head.W_Q.requires_grad
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        gradient = the(getattr(layer(new, Slot.parse("enc.0")), name).grad)
        assert gradient.any(-1 if name == "W_O" else 0).all(), name


def test_places_have_names() -> None:
    assert [str(GrowthPlace(Slot.parse("enc.0"), head)) for head in (2, None)] == ["enc.0.2", "enc.0"]
