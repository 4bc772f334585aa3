"""Gates that learn to close: what they are, what they do to heads, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnworks.core.places import HeadId, Slot
from attnworks.models import AttentionConfig
from attnworks.models.folder import weights_fingerprint
from attnworks.models.multihead import MultiHead
from attnworks.reshape.pruning.l0_gates import L0GateHook, chance_open, hard_concrete, train_gates
from attnworks.reshape.surgery import heads_off
from tests.helpers import assert_close
from tests.reshape.reshape_helpers import D_K, D_V, context_of, model_of, subject_of

SLOTS = [Slot.parse(name) for name in ("enc.0", "enc.1", "dec.0", "cross.0", "dec.1", "cross.1")]
UNITS = [(HeadId(slot, head),) for slot in SLOTS for head in range(2)]
TOGETHER = [(HeadId(Slot.parse("enc.0"), 0), HeadId(Slot.parse("enc.0"), 1)), (HeadId(Slot.parse("cross.1"), 1),)]


@given(st.floats(-5, 5), st.floats(1e-6, 1e-2))
def test_a_gate_is_closed_as_often_as_is_said(log_alpha: float, beside: float) -> None:
    """z grows with u, so that it is 0 exactly for u up to P(z = 0), and above 0 beyond."""
    alpha = torch.tensor(log_alpha, dtype=torch.float64)
    closed = 1 - chance_open(alpha)
    assert hard_concrete(alpha, closed * (1 - beside)) == 0 < hard_concrete(alpha, closed + (1 - closed) * beside)


def test_open_and_closed_are_reached() -> None:
    """At u = 1/2 the gate is 1.2 sigmoid(1.5 log alpha) - 0.1, kept within 0 and 1."""
    alpha = torch.tensor([-2.0, 0.0, 0.5, 2.0], dtype=torch.float64)
    between = 1.2 * torch.sigmoid(torch.tensor(0.75, dtype=torch.float64)) - 0.1
    assert_close(
        hard_concrete(alpha, torch.full_like(alpha, 0.5)),
        torch.tensor([0.0, 0.5, float(between), 1.0], dtype=torch.float64),
    )


@torch.no_grad()
def test_gates_are_factors_of_the_rows_of_output_weights() -> None:
    """Y_h W_O[h] with Y_h halved is Y_h (W_O[h] / 2); heads of no unit stay whole."""
    context = context_of(subject_of(model_of()))
    batch, _ = context.calibration.text.batch(0)
    subject, factors = context.subject, torch.tensor([0.5, 0.25], dtype=torch.float64)
    gated = subject.run(batch, L0GateHook(TOGETHER, factors.expand(len(batch), -1))).hidden
    for layer in context.model.modules():
        if isinstance(layer, MultiHead):
            for (slot, head), factor in ((head, factors[unit]) for unit in (0, 1) for head in TOGETHER[unit]):
                if slot == layer.slot:
                    layer.W_O[head] *= factor
    assert_close(gated, subject.run(batch).hidden)


@torch.no_grad()
def test_every_sentence_has_its_own_gates() -> None:
    context = context_of(subject_of(model_of()))
    batch, _ = context.calibration.text.batch(0)
    gates = torch.ones(len(batch), 2, dtype=torch.float64)
    gates[1] = 0.0
    subject = context.subject
    gated, whole = subject.run(batch, L0GateHook(TOGETHER, gates)).hidden, subject.run(batch).hidden
    off = subject.run(batch, heads_off(TOGETHER)).hidden
    assert_close(gated[0], whole[0])
    assert_close(gated[1], off[1])
    assert not torch.allclose(whole[1], off[1])


@pytest.mark.slow
def test_the_more_are_to_go_the_fewer_stay_open() -> None:
    """Without a wish to cut none closes; shares that are asked for are come near to, not reached."""
    model = model_of(attention=AttentionConfig(heads=7, d_k=D_K, d_v=D_V), encoder_layers=1, decoder_layers=0)
    context, units = (
        context_of(subject_of(model), objective="embedding"),
        [(HeadId(Slot.parse("enc.0"), head),) for head in range(7)],
    )
    none, some, many = (float(chance_open(train_gates(context, units, cut)).sum()) for cut in (0, 2, 5))
    assert none > 6.5 > some > many + 1


def test_a_seed_decides() -> None:
    context = context_of(subject_of(model_of()))
    first = train_gates(context, UNITS, 5, steps=7)
    torch.manual_seed(29)
    assert torch.equal(train_gates(context, UNITS, 5, steps=7), first)
    assert not torch.equal(train_gates(replace(context, seed=1), UNITS, 5, steps=7), first)


@pytest.mark.parametrize("objective", ["seq2seq", "embedding"])
def test_the_model_and_random_numbers_are_left_alone(objective: str) -> None:
    model = model_of().train()
    for parameter in [*model.parameters()][::3]:
        parameter.requires_grad_(False)
    context = context_of(subject_of(model), objective=objective)
    before, state = weights_fingerprint(model), torch.get_rng_state()
    flags = [parameter.requires_grad for parameter in model.parameters()]
    train_gates(context, UNITS, 5, steps=5)
    assert weights_fingerprint(model) == before and torch.equal(torch.get_rng_state(), state)
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(part.training for part in model.modules())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_progress_is_told() -> None:
    told: list[tuple[str, int, int]] = []
    context = replace(context_of(subject_of(model_of())), tell=lambda *event: told.append(event))
    train_gates(context, UNITS, 5, steps=3)
    assert told == [("training gates", step, 3) for step in range(3)]
