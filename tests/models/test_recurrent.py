"""The recurrent encoder-decoder: attention by hand, padding, gradients, decoding step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.core.errors import UsageError
from attnworks.models import Recurrent, build
from tests.model_helpers import (
    BATCH,
    SOURCE,
    TARGET,
    TARGET_VOCABULARY,
    VOCABULARY,
    Recorder,
    close,
    filled,
    gradient,
    recurrent_config,
    the,
    tokens,
)

CELLS = ("lstm", "gru")
SCORES = ("luong-dot", "luong-multiplicative", "bahdanau-additive")
PADDING = torch.tensor([[True] * 4 + [False] * 3, [True] * 7, [True] + [False] * 6])
LENGTHS = (4, 7, 1)
SOURCE_TOKENS = tokens(VOCABULARY, BATCH, SOURCE)
TARGET_TOKENS = tokens(TARGET_VOCABULARY, BATCH, TARGET, seed=1)


def recurrent(**changes: Any) -> Recurrent:
    return filled(build(recurrent_config(**changes))).double()


def parts(state: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
    return (state,) if isinstance(state, Tensor) else state


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("layers", [1, 2])
def test_without_attention_the_last_state_is_all(cell: str, layers: int) -> None:
    ours = recurrent(cell=cell, layers=layers)
    _, last = ours.encoder(the(ours.source_embedding)(SOURCE_TOKENS))
    H, _ = ours.decoder(the(ours.target_embedding)(TARGET_TOKENS), last)
    got = ours(SOURCE_TOKENS, TARGET_TOKENS)
    assert got.shape == (BATCH, TARGET, TARGET_VOCABULARY)
    close(got, H @ ours.output.weight.T)
    assert ours.attention is None and ours.combine is None


@pytest.mark.parametrize("real", [None, PADDING])
@pytest.mark.parametrize("mechanism", SCORES)
@pytest.mark.parametrize("cell", CELLS)
def test_context_by_hand(cell: str, mechanism: str, real: Tensor | None) -> None:
    """S4.13-S4.16 for every target position: a = softmax(score), c = sum a s, out = tanh(W [c; h])."""
    ours, recorder = recurrent(cell=cell, mechanism=mechanism), Recorder()
    got = ours(SOURCE_TOKENS, TARGET_TOKENS, real, observe=recorder)
    close(got, ours(SOURCE_TOKENS, TARGET_TOKENS, real))
    seen, P = recorder["cross.0"], recorder.P("cross.0")
    states, last = ours.encode(SOURCE_TOKENS, real)
    H, _ = ours.decoder(ours.target_embedding(TARGET_TOKENS), last)
    close(seen.X, H)
    close(seen.Z, states)
    parameters = {name: p[0] for name, p in the(ours.attention).named_parameters()}
    W = the(ours.combine).weight
    for b in range(BATCH):
        length = SOURCE if real is None else LENGTHS[b]
        for t in range(TARGET):
            h, s = H[b, t], states[b, :length]
            if mechanism == "luong-dot":
                score = s @ h
            elif mechanism == "luong-multiplicative":
                score = s @ (parameters["W_a"].T @ h)
            else:
                W_a = torch.cat([parameters["W_q"], parameters["W_k"]])
                score = torch.cat([h.expand_as(s), s], -1).matmul(W_a).tanh() @ parameters["v_a"]
            a = score.softmax(-1)
            close(P[b, 0, t, :length], a)
            assert not P[b, 0, t, length:].any()
            close(seen.Y[b, 0, t], a @ s)
            close(got[b, t], ours.output.weight @ (W @ torch.cat([a @ s, h])).tanh())


@pytest.mark.parametrize("mechanism", [None, *SCORES])
@pytest.mark.parametrize("cell", CELLS)
def test_padding_of_the_source_changes_nothing(cell: str, mechanism: str | None) -> None:
    ours = recurrent(cell=cell, mechanism=mechanism)
    other = torch.where(PADDING, SOURCE_TOKENS, (SOURCE_TOKENS + 3) % VOCABULARY)
    got = ours(SOURCE_TOKENS, TARGET_TOKENS, PADDING)
    assert torch.equal(ours(other, TARGET_TOKENS, PADDING), got)
    assert not torch.allclose(ours(other, TARGET_TOKENS), ours(SOURCE_TOKENS, TARGET_TOKENS))
    for row, length in enumerate(LENGTHS):
        one = slice(row, row + 1)
        close(got[one], ours(SOURCE_TOKENS[one, :length], TARGET_TOKENS[one]))


@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("layers", [1, 2])
def test_the_last_state_is_that_of_the_last_real_token(cell: str, layers: int) -> None:
    ours = recurrent(cell=cell, layers=layers)
    states, last = ours.encode(SOURCE_TOKENS, PADDING)
    assert states.shape == (BATCH, SOURCE, 5)
    for row, length in enumerate(LENGTHS):
        alone, end = ours.encode(SOURCE_TOKENS[row : row + 1, :length])
        close(states[row, :length], alone[0])
        assert not states[row, length:].any()
        for got, expected in zip(parts(last), parts(end), strict=True):
            close(got[:, row], expected[:, 0])
        close(parts(last)[0][-1, row], states[row, length - 1])


def test_padding_that_is_not_at_the_end_is_refused() -> None:
    """The cells read left to right: padding in front would be read as the sentence."""
    ours = recurrent()
    for real in ([False, True, True], [True, False, True]):
        with pytest.raises(UsageError, match="expected padding at the end, got a token after padding"):
            ours.encode(SOURCE_TOKENS[:1, :3], torch.tensor([real]))


@pytest.mark.parametrize("mechanism", [None, *SCORES])
@pytest.mark.parametrize("cell", CELLS)
def test_gradient_reaches_every_parameter(cell: str, mechanism: str | None) -> None:
    ours = recurrent(cell=cell, mechanism=mechanism, layers=2)
    ours(SOURCE_TOKENS, TARGET_TOKENS, PADDING).square().mean().backward()
    for name, parameter in ours.named_parameters():
        assert gradient(parameter).isfinite().all() and gradient(parameter).any(), name


@pytest.mark.parametrize("mechanism", SCORES)
def test_weights_have_the_right_gradient(mechanism: str) -> None:
    """Finite differences through cell, score, softmax and output, in the direction of a random change."""
    ours = recurrent(mechanism=mechanism)

    def loss() -> Tensor:
        return ours(SOURCE_TOKENS, TARGET_TOKENS, PADDING).square().mean()

    loss().backward()
    direction = [torch.randn_like(p) for p in ours.parameters()]
    slope = sum(float((gradient(p) * d).sum()) for p, d in zip(ours.parameters(), direction, strict=True))
    ends = []
    with torch.no_grad():
        for step in (1e-5, -2e-5):
            for p, d in zip(ours.parameters(), direction, strict=True):
                p.add_(d, alpha=step)
            ends.append(float(loss()))
    assert (ends[0] - ends[1]) / 2e-5 == pytest.approx(slope, rel=1e-6)


@pytest.mark.parametrize("mechanism", [None, *SCORES])
@pytest.mark.parametrize("cell", CELLS)
@pytest.mark.parametrize("layers", [1, 2])
def test_step_by_step_equals_all_at_once(layers: int, cell: str, mechanism: str | None) -> None:
    ours = recurrent(cell=cell, mechanism=mechanism, layers=layers)
    states, last = ours.encode(SOURCE_TOKENS, PADDING)
    whole, end = ours.decode(TARGET_TOKENS, states, last, PADDING)
    steps = []
    for t in range(TARGET):
        step, last = ours.decode(TARGET_TOKENS[:, t : t + 1], states, last, PADDING)
        steps.append(step)
    close(torch.cat(steps, 1), whole)
    for got, expected in zip(parts(last), parts(end), strict=True):
        close(got, expected)
    close(ours.logits(whole), ours(SOURCE_TOKENS, TARGET_TOKENS, PADDING))


def test_no_position_sees_a_later_target() -> None:
    ours = recurrent(mechanism="luong-dot")
    changed = TARGET_TOKENS.clone()
    changed[:, 3] = (changed[:, 3] + 1) % TARGET_VOCABULARY
    before, after = ours(SOURCE_TOKENS, TARGET_TOKENS), ours(SOURCE_TOKENS, changed)
    assert torch.equal(after[:, :3], before[:, :3])
    assert not torch.allclose(after[:, 3], before[:, 3])


def test_dropout_acts_in_training_only() -> None:
    dropping, still = recurrent(dropout=0.5, layers=2), recurrent(layers=2)
    quiet = dropping.eval()(SOURCE_TOKENS, TARGET_TOKENS)
    assert torch.equal(quiet, still(SOURCE_TOKENS, TARGET_TOKENS))
    assert not torch.allclose(dropping.train()(SOURCE_TOKENS, TARGET_TOKENS), quiet)
