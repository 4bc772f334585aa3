"""Heads of one layer with several mechanisms; heads that attend by position alone have no queries and keys."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnworks.attention import Context, Geometry, Mask, Mechanism, MechanismSpec
from attnworks.attention.heads import HeadGroups, mask_of_heads
from attnworks.models import MultiHead, Transformer
from tests.helpers import D_K, D_V, assert_close, qkv
from tests.model_helpers import (
    BATCH,
    D_E,
    SOURCE,
    TARGET,
    TARGET_VOCABULARY,
    VOCABULARY,
    Recorder,
    attention_config,
    close,
    filled,
    randn,
    the,
    tokens,
    transformer,
)

MIXED = "structured:members=-1..1/first,error=-3/3,eps=0.1"
MEAN = "structured:members=mean/last,error=none"
BY_HEAD = (MIXED, "dense", MEAN, MIXED, "luong-dot")
HEADS, LOOKING, N = len(BY_HEAD), (1, 4), 7
PADDING = torch.tensor([[True] * 4 + [False] * 3, [True] * 7, [True] + [False] * 6])


def head_groups_of(by_head: tuple[str, ...] = BY_HEAD) -> HeadGroups:
    config = attention_config(heads=len(by_head), mechanism=by_head)
    groups = HeadGroups(tuple(config.mechanism_groups()), D_K, D_V)
    return filled(groups).double()


def alone(groups: HeadGroups, head: int) -> Mechanism:
    """The mechanism of one head, built for that head only."""
    at = next(place for place, heads in enumerate(groups.heads) if head in heads)
    mechanism = MechanismSpec.parse(BY_HEAD[head]).build(Geometry(1, D_K, D_V)).double()
    row = groups.heads[at].index(head)
    with torch.no_grad():
        for name, tensor in (*mechanism.named_parameters(), *mechanism.named_buffers()):
            tensor.copy_(getattr(groups.mechanisms[at], name)[row : row + 1])
    return mechanism


MASKS = {
    "none": Mask(),
    "padding": Mask(PADDING),
    "causal": Mask(causal=True),
    "both": Mask(PADDING, causal=True),
    "a table for each head": Mask(dense=(randn(HEADS, N, N, seed=3) > -0.5) | torch.eye(N, dtype=torch.bool)),
    "one table": Mask(dense=torch.ones(N, N, dtype=torch.bool).triu()),
}


@pytest.mark.parametrize("mask", MASKS)
def test_each_head_is_its_own_mechanism(mask: str) -> None:
    groups, (Q, K, V) = head_groups_of(), qkv(h=HEADS, i=N, j=N, grad=True)
    weight = randn(3, HEADS, N, D_V, seed=5)
    whole = groups(Q, K, V, MASKS[mask], Context(), weights=True)
    fused = groups(Q, K, V, MASKS[mask], Context())
    got = torch.autograd.grad((fused.Y * weight).sum(), (Q, K, V))
    assert fused.P is None
    assert_close(fused.Y, whole.Y)
    for head in range(HEADS):
        one = slice(head, head + 1)
        inputs = [T.detach()[:, one].clone().requires_grad_() for T in (Q, K, V)]
        attended = alone(groups, head)(*inputs, mask_of_heads(MASKS[mask], (head,)), Context(), weights=True)
        assert_close(whole.Y[:, one], attended.Y, message=BY_HEAD[head])
        assert_close(the(whole.P)[:, one], attended.P, message=BY_HEAD[head])
        expected = torch.autograd.grad((attended.Y * weight[:, one]).sum(), inputs, allow_unused=True)
        for mine, theirs in zip(got, expected, strict=True):
            assert_close(mine[:, one], torch.zeros_like(mine[:, one]) if theirs is None else theirs)


@pytest.mark.parametrize("mask", MASKS)
def test_queries_and_keys_of_the_heads_that_look_are_enough(mask: str) -> None:
    groups, (Q, K, V) = head_groups_of(), qkv(h=HEADS, i=N, j=N)
    assert groups.content_heads == LOOKING and groups.count == HEADS and groups.by_head() == BY_HEAD
    rows = list(LOOKING)
    few = groups(Q[:, rows], K[:, rows], V, MASKS[mask], Context(), weights=True)
    every = groups(Q, K, V, MASKS[mask], Context(), weights=True)
    assert torch.equal(few.Y, every.Y) and torch.equal(the(few.P), the(every.P))


@pytest.mark.parametrize("by_head", [(MIXED,) * 3, (MIXED, MEAN, MIXED)])
def test_no_head_looks(by_head: tuple[str, ...]) -> None:
    groups, (Q, K, V) = head_groups_of(by_head), qkv(h=3, i=N, j=N)
    assert groups.content_heads == ()
    none = groups(Q[:, :0], K[:, :0], V, Mask(PADDING), Context())
    assert torch.equal(none.Y, groups(Q, K, V, Mask(PADDING), Context()).Y) and none.Y.any()


def test_zeros_for_heads_that_do_not_look() -> None:
    groups, W = head_groups_of(), randn(len(LOOKING), D_E, D_K)
    whole, Q = groups.whole(W), groups.every_head(W[None])
    assert whole.shape == (HEADS, D_E, D_K) and Q.shape == (1, HEADS, D_E, D_K)
    assert torch.equal(whole[list(LOOKING)], W) and torch.equal(Q[0], whole)
    assert not whole[[0, 2, 3]].any()
    assert groups.whole(whole) is whole and groups.every_head(Q) is Q
    assert torch.equal(groups.whole(W[:, 0]), whole[:, 0]), "biases too"


# Layers and models ---------------------------------------------------------------------------------------------------

THREE = (MIXED, "dense", MEAN)
BY_POSITION = (MEAN, MIXED, MIXED)


@pytest.mark.parametrize(("by_head", "looking"), [(THREE, 1), (BY_POSITION, 0), (("dense",) * 3, 3)])
def test_slices_of_the_weights(by_head: tuple[str, ...], looking: int) -> None:
    layer = filled(MultiHead(D_E, attention_config(mechanism=by_head))).double()
    assert layer.W_Q.shape == layer.W_K.shape == (looking, D_E, 5)
    assert the(layer.b_Q).shape == the(layer.b_K).shape == (looking, 5)
    assert layer.W_V.shape == (3, D_E, 2) and layer.W_O.shape == (3, 2, D_E)
    scores, values, _ = layer.folded()
    assert scores.shape == (3, D_E, D_E) and values.shape == (3, D_E, D_E)
    seen = [head for head, spec in enumerate(by_head) if spec == "dense"]
    assert [head for head in range(3) if scores[head].any()] == seen


@pytest.mark.parametrize("by_head", [THREE, BY_POSITION])
def test_observers_are_shown_every_head(by_head: tuple[str, ...]) -> None:
    layer = filled(MultiHead(D_E, attention_config(mechanism=by_head))).double()
    X, recorder = randn(BATCH, SOURCE, D_E), Recorder()
    assert torch.equal(layer(X, observe=recorder), layer(X))
    (seen,) = recorder.seen
    assert seen.Q.shape == seen.K.shape == (BATCH, 3, SOURCE, 5)
    assert not seen.Q[:, 0].any() and not seen.Q[:, 2].any()
    assert_close(seen.P @ seen.V, seen.Y)


def model_of(**slots: tuple[str, ...]) -> Transformer:
    named = {name.replace("_", "."): attention_config(mechanism=by_head) for name, by_head in slots.items()}
    return transformer(slots=named)


MODELS = {
    "some heads": model_of(enc_0=THREE, dec_0=THREE, dec_1=(MEAN, "dense", "dense")),
    "all heads": model_of(enc_0=BY_POSITION, enc_1=BY_POSITION, dec_0=BY_POSITION, dec_1=(MIXED,) * 3),
}


@pytest.mark.parametrize("real", [None, PADDING])
@pytest.mark.parametrize("name", MODELS)
def test_one_token_at_a_time_is_all_at_once(name: str, real: Tensor | None) -> None:
    model, source = MODELS[name], tokens(VOCABULARY, BATCH, SOURCE)
    written = tokens(TARGET_VOCABULARY, BATCH, TARGET, seed=1)
    expected, state = model(source, written, real), model.start(source, real)
    for t in range(TARGET):
        scores, state = model.step(written[:, t : t + 1], state)
        close(scores[:, 0], expected[:, t])


@pytest.mark.parametrize("name", MODELS)
def test_every_parameter_learns(name: str) -> None:
    model: Any = MODELS[name]
    scores = model(tokens(VOCABULARY, BATCH, SOURCE), tokens(TARGET_VOCABULARY, BATCH, TARGET), PADDING)
    scores.square().sum().backward()
    for parameter_name, parameter in model.named_parameters():
        if parameter.numel():
            assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
            assert parameter.grad.any() or parameter_name.endswith("b_K"), parameter_name
    model.zero_grad(set_to_none=True)
