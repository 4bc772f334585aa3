"""The Transformer against torch's own, and what its documentation promises: causality, padding, tying, slots."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnworks.core.errors import UsageError
from attnworks.models import Transformer, build
from attnworks.models.block import Block
from attnworks.models.layers import Dropout, sinusoid
from tests.model_helpers import (
    BATCH,
    D_E,
    D_FF,
    FLOATS,
    SOURCE,
    TARGET,
    TARGET_VOCABULARY,
    VOCABULARY,
    Recorder,
    attention_config,
    close,
    filled,
    gradient,
    the,
    tokens,
    transformer,
    transformer_config,
    transformer_in_torch_layout,
    value,
)

SOURCE_PADDING = torch.tensor([[True] * 4 + [False] * 3, [True] * 7, [True] + [False] * 6])
TARGET_PADDING = torch.tensor([[True] * 5, [True] * 2 + [False] * 3, [True] * 4 + [False]])
SOURCE_TOKENS = tokens(VOCABULARY, BATCH, SOURCE)
TARGET_TOKENS = tokens(TARGET_VOCABULARY, BATCH, TARGET, seed=1)


# Against torch.nn.Transformer ----------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("norm", ["post", "pre"])
@pytest.mark.parametrize("layers", [(1, 1), (3, 2)])
def test_equals_torch(layers: tuple[int, int], norm: str, padded: bool, dtype: torch.dtype) -> None:
    heads = 2
    ours = transformer(
        dtype,
        attention=attention_config(heads=heads, d_k=D_E // heads, d_v=D_E // heads),
        encoder_layers=layers[0],
        decoder_layers=layers[1],
        norm=norm,
        final_norm=True,
        positions="none",
    )
    theirs = nn.Transformer(
        D_E, heads, *layers, D_FF, dropout=0.0, batch_first=True, norm_first=norm == "pre", dtype=dtype
    )
    theirs.load_state_dict(transformer_in_torch_layout(ours, value))
    source_real, target_real = (SOURCE_PADDING, TARGET_PADDING) if padded else (None, None)

    Z = ours.encode(SOURCE_TOKENS, source_real)
    got = ours.decode(TARGET_TOKENS, Z, source_real, target_real)
    expected = theirs(
        the(ours.source_embedding)(SOURCE_TOKENS).detach(),
        the(ours.target_embedding)(TARGET_TOKENS).detach(),
        tgt_mask=torch.ones(TARGET, TARGET, dtype=torch.bool).triu(1),
        src_key_padding_mask=None if source_real is None else ~source_real,
        tgt_key_padding_mask=None if target_real is None else ~target_real,
        memory_key_padding_mask=None if source_real is None else ~source_real,
    )
    close(got, expected)

    G = torch.randn(got.shape, dtype=torch.float64).to(dtype)
    (got * G).sum().backward()
    (expected * G).sum().backward()
    layout = transformer_in_torch_layout(ours, gradient)
    assert layout.keys() == {name for name, _ in theirs.named_parameters()}
    for name, parameter in theirs.named_parameters():
        close(layout[name], gradient(parameter), scale=10)


def test_forward_is_encode_then_decode_then_scores() -> None:
    ours = transformer(output_bias=True)
    Z = ours.encode(SOURCE_TOKENS, SOURCE_PADDING)
    Y = ours.decode(TARGET_TOKENS, Z, SOURCE_PADDING, TARGET_PADDING)
    got = ours(SOURCE_TOKENS, TARGET_TOKENS, SOURCE_PADDING, TARGET_PADDING)
    assert torch.equal(got, ours.logits(Y))
    assert got.shape == (BATCH, TARGET, TARGET_VOCABULARY)
    close(got, Y @ ours.output.weight.T + the(ours.output.bias))


def test_encoder_by_hand_as_documented() -> None:
    """u = LN(x + u'), z = LN(u + z') on sqrt(d) E + f(t), with sigma + eps and no norm at the end (S4.33, S4.35)."""
    ours = transformer(encoder_layers=1, decoder_layers=0, norm_kind="documented", norm_eps=1e-2)
    (block,) = ours.encoder
    assert isinstance(block, Block)

    def norm(z: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
        return gamma * (z - z.mean(-1, keepdim=True)) / (z.std(-1, correction=0, keepdim=True) + 1e-2) + beta

    embedded = the(ours.source_embedding).weight[SOURCE_TOKENS] * D_E**0.5
    x = embedded + sinusoid(torch.arange(SOURCE), D_E)
    first, second, mlp = the(block.attention_residual.norm), the(the(block.mlp_residual).norm), the(block.mlp)
    u = norm(x + block.attention(x), first.gamma, first.beta)
    z = (u @ mlp.W_1 + mlp.b_1).clamp_min(0) @ mlp.W_2 + mlp.b_2
    close(ours.encode(SOURCE_TOKENS), norm(u + z, second.gamma, second.beta))


# One side only -------------------------------------------------------------------------------------------------------


def test_encoder_only_scores_its_own_tokens() -> None:
    ours = transformer(decoder_layers=0)
    got = ours(SOURCE_TOKENS, source_real=SOURCE_PADDING)
    assert got.shape == (BATCH, SOURCE, VOCABULARY)
    close(got, ours.encode(SOURCE_TOKENS, SOURCE_PADDING) @ ours.output.weight.T)
    assert ours.target_embedding is None and len(ours.decoder) == 0 and ours.decoder_norm is None


def test_decoder_only_has_no_cross_attention() -> None:
    ours, recorder = transformer(encoder_layers=0), Recorder()
    got = ours(target=TARGET_TOKENS, observe=recorder)
    assert got.shape == (BATCH, TARGET, TARGET_VOCABULARY)
    assert [str(seen.slot) for seen in recorder.seen] == ["dec.0", "dec.1"]
    assert not any("cross" in name for name, _ in ours.named_parameters())
    assert ours.source_embedding is None


@pytest.mark.parametrize("encoder_layers", [0, 2])
@pytest.mark.parametrize("real", [None, TARGET_PADDING])
def test_no_position_sees_a_later_target(encoder_layers: int, real: Tensor | None) -> None:
    """By gradient: d output_t / d embedding_s = 0 exactly for s > t, and not for s <= t among real tokens."""
    ours = transformer(encoder_layers=encoder_layers)
    source = SOURCE_TOKENS if encoder_layers else None
    embedded: list[Tensor] = []
    the(ours.target_embedding).register_forward_hook(lambda *call: embedded.append(call[-1]))
    got = ours(source, TARGET_TOKENS, None, real)
    for t in range(TARGET):
        (G,) = torch.autograd.grad(got[:, t].square().sum(), embedded, retain_graph=True)
        assert not G[:, t + 1 :].any()
        seen = G[:, : t + 1].abs().sum(-1) > 0
        expected = torch.ones_like(seen) if real is None else real[:, : t + 1].clone()
        expected[:, t] = True
        assert torch.equal(seen, expected)


def test_encoder_sees_both_ways() -> None:
    ours = transformer(decoder_layers=0)
    changed = SOURCE_TOKENS.clone()
    changed[:, -1] = (changed[:, -1] + 1) % VOCABULARY
    assert (ours(SOURCE_TOKENS) - ours(changed)).abs().amax(-1).min() > 1e-6


# Padding -------------------------------------------------------------------------------------------------------------


def reroll(drawn: Tensor, real: Tensor, vocabulary: int) -> Tensor:
    """Other tokens at every padded place."""
    return torch.where(real, drawn, (drawn + 1 + tokens(vocabulary - 1, *drawn.shape, seed=9)) % vocabulary)


@pytest.mark.parametrize("positions", ["sinusoid", "normalised-index"])
def test_padded_source_tokens_change_nothing(positions: str) -> None:
    ours = transformer(positions=positions)
    other = reroll(SOURCE_TOKENS, SOURCE_PADDING, VOCABULARY)
    assert not torch.equal(other, SOURCE_TOKENS)
    before = ours(SOURCE_TOKENS, TARGET_TOKENS, SOURCE_PADDING)
    assert torch.equal(ours(other, TARGET_TOKENS, SOURCE_PADDING), before)
    assert not torch.allclose(ours(other, TARGET_TOKENS), ours(SOURCE_TOKENS, TARGET_TOKENS))


@pytest.mark.parametrize("positions", ["sinusoid", "normalised-index"])
def test_padding_equals_a_shorter_source(positions: str) -> None:
    ours = transformer(positions=positions)
    padded = ours(SOURCE_TOKENS, TARGET_TOKENS, SOURCE_PADDING)
    for row, length in enumerate(SOURCE_PADDING.sum(-1).tolist()):
        one = slice(row, row + 1)
        close(padded[one], ours(SOURCE_TOKENS[one, :length], TARGET_TOKENS[one]))


def test_padded_target_tokens_change_only_their_own_rows() -> None:
    ours = transformer()
    other = reroll(TARGET_TOKENS, TARGET_PADDING, TARGET_VOCABULARY)
    before = ours(SOURCE_TOKENS, TARGET_TOKENS, SOURCE_PADDING, TARGET_PADDING)
    after = ours(SOURCE_TOKENS, other, SOURCE_PADDING, TARGET_PADDING)
    assert torch.equal(after[TARGET_PADDING], before[TARGET_PADDING])
    assert not torch.allclose(after[~TARGET_PADDING], before[~TARGET_PADDING])


def test_a_source_of_padding_alone_gives_no_nan() -> None:
    ours = transformer()
    got = ours(SOURCE_TOKENS, TARGET_TOKENS, torch.zeros_like(SOURCE_PADDING), TARGET_PADDING)
    assert got.isfinite().all()
    got.sum().backward()
    assert all(gradient(parameter).isfinite().all() for parameter in ours.parameters())


# Tying ---------------------------------------------------------------------------------------------------------------


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_tied_weights_are_one_and_counted_once() -> None:
    sizes: dict[str, Any] = {"vocabulary": VOCABULARY, "target_vocabulary": None}
    free, target, both = (transformer(tie=tie, **sizes) for tie in ("none", "target", "all"))
    one = VOCABULARY * D_E
    assert count(free) - count(target) == one and count(free) - count(both) == 2 * one
    assert the(target.target_embedding).weight is target.output.weight
    assert the(target.source_embedding).weight is not target.output.weight
    assert the(both.target_embedding).weight is both.output.weight is the(both.source_embedding).weight
    assert the(free.target_embedding).weight is not free.output.weight


@pytest.mark.parametrize("tie", ["target", "all"])
def test_gradients_of_tied_weights_add_up(tie: str) -> None:
    """The gradient of one matrix is the sum over the places where the untied twin has copies of it."""
    tied = transformer(tie=tie, target_vocabulary=None)
    config = replace(tied.config, tie="none")
    twin = build(config)
    assert isinstance(twin, Transformer)
    twin = twin.double()
    twin.load_state_dict(tied.state_dict())
    places = [the(twin.target_embedding).weight, twin.output.weight]
    if tie == "all":
        places.append(the(twin.source_embedding).weight)
    target = TARGET_TOKENS % VOCABULARY
    for model in (tied, twin):
        model(SOURCE_TOKENS, target).square().mean().backward()
    close(gradient(tied.output.weight), sum((gradient(place) for place in places), torch.zeros(())))
    assert all(gradient(place).any() for place in places)


@pytest.mark.parametrize(("encoder_layers", "decoder_layers"), [(2, 0), (0, 2)])
@pytest.mark.parametrize("tie", ["target", "all"])
def test_tying_with_one_side(tie: str, encoder_layers: int, decoder_layers: int) -> None:
    ours = transformer(tie=tie, encoder_layers=encoder_layers, decoder_layers=decoder_layers, target_vocabulary=None)
    embedding = the(ours.source_embedding or ours.target_embedding)
    assert ours.output.weight is embedding.weight


# Norms ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("norm", "final_norm", "expected"), [("post", None, 0), ("pre", None, 2), ("post", True, 2), ("pre", False, 0)]
)
def test_final_norms_are_there_when_asked_for(norm: str, final_norm: bool | None, expected: int) -> None:
    ours = transformer(norm=norm, final_norm=final_norm)
    assert [ours.encoder_norm, ours.decoder_norm].count(None) == 2 - expected


def test_norm_kind_and_eps_reach_every_norm() -> None:
    """With a large eps the two kinds differ everywhere, so that one norm left standard would show."""
    ours = transformer(norm_kind="documented", norm_eps=0.25, final_norm=True)
    norms = [module for name, module in ours.named_modules() if name.endswith("norm")]
    assert len(norms) == 2 * 2 + 2 * 3 + 2
    assert {(norm.kind, norm.eps) for norm in norms} == {("documented", 0.25)}
    standard = transformer(norm_eps=0.25, final_norm=True)
    standard.load_state_dict(ours.state_dict())
    assert not torch.allclose(ours(SOURCE_TOKENS, TARGET_TOKENS), standard(SOURCE_TOKENS, TARGET_TOKENS), atol=1e-3)


# Slots and observing -------------------------------------------------------------------------------------------------


def test_slots_are_shown_in_the_order_of_the_data() -> None:
    ours, recorder = transformer(), Recorder()
    watched = ours(SOURCE_TOKENS, TARGET_TOKENS, SOURCE_PADDING, TARGET_PADDING, observe=recorder)
    names = ["enc.0", "enc.1", "dec.0", "cross.0", "dec.1", "cross.1"]
    assert [str(seen.slot) for seen in recorder.seen] == names == [*map(str, ours.config.slot_names())]
    close(watched, ours(SOURCE_TOKENS, TARGET_TOKENS, SOURCE_PADDING, TARGET_PADDING))
    for name in names:
        queries, keys = (SOURCE if name.startswith("enc") else TARGET), (TARGET if name.startswith("dec") else SOURCE)
        P = recorder.P(name)
        assert P.shape == (BATCH, 3, queries, keys)
        close(P.sum(-1), torch.ones(BATCH, 3, queries, dtype=torch.float64))
        assert recorder[name].mask.causal == name.startswith("dec")
    assert recorder["cross.0"].Z is recorder["cross.1"].Z
    close(recorder["cross.0"].Z, ours.encode(SOURCE_TOKENS, SOURCE_PADDING))


@pytest.mark.parametrize("slot", ["enc.0", "enc.1", "dec.0", "dec.1", "cross.0", "cross.1"])
def test_a_slot_overrides_one_layer_alone(slot: str) -> None:
    special = attention_config(heads=2, d_k=13, d_v=7, bias=False, mechanism="luong-dot", scale=0.7)
    ours, recorder = transformer(slots={slot: special}), Recorder()
    ours(SOURCE_TOKENS, TARGET_TOKENS, observe=recorder)
    for seen in recorder.seen:
        heads, d_k, d_v = (2, 13, 7) if str(seen.slot) == slot else (3, 5, 2)
        assert seen.Q.shape[1::2] == (heads, d_k) and seen.V.shape[1::2] == (heads, d_v)
    S = 0.7 * recorder[slot].Q @ recorder[slot].K.mT
    if slot.startswith("dec"):
        S = S.masked_fill(torch.ones(TARGET, TARGET, dtype=torch.bool).triu(1), -torch.inf)
    close(recorder.P(slot), S.softmax(-1))


# Dropout -------------------------------------------------------------------------------------------------------------


def test_dropout_acts_in_training_only() -> None:
    dropping = transformer(dropout=0.5)
    still = transformer()
    still.load_state_dict(dropping.state_dict())
    dropping.eval()
    quiet = dropping(SOURCE_TOKENS, TARGET_TOKENS)
    assert torch.equal(quiet, still(SOURCE_TOKENS, TARGET_TOKENS))
    dropping.train()
    one, other = dropping(SOURCE_TOKENS, TARGET_TOKENS), dropping(SOURCE_TOKENS, TARGET_TOKENS)
    assert not torch.allclose(one, quiet) and not torch.allclose(one, other)


def test_dropout_reaches_every_part() -> None:
    ours = transformer(dropout=0.3)
    dropouts = [module.p for module in ours.modules() if isinstance(module, Dropout)]
    assert dropouts == [0.3] * (1 + 2 * 3 + 2 * 4)


# What must be given --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "given", "expected", "got"),
    [
        ((1, 1), (True, False), "source and target tokens", "source"),
        ((1, 1), (False, True), "source and target tokens", "target"),
        ((1, 1), (False, False), "source and target tokens", "none"),
        ((1, 0), (True, True), "source tokens", "source and target"),
        ((1, 0), (False, True), "source tokens", "target"),
        ((0, 1), (True, True), "target tokens", "source and target"),
        ((0, 1), (True, False), "target tokens", "source"),
    ],
)
def test_missing_or_superfluous_tokens(
    layers: tuple[int, int], given: tuple[bool, bool], expected: str, got: str
) -> None:
    ours = transformer(encoder_layers=layers[0], decoder_layers=layers[1])
    source, target = (
        drawn if wanted else None for drawn, wanted in zip((SOURCE_TOKENS, TARGET_TOKENS), given, strict=True)
    )
    with pytest.raises(UsageError) as caught:
        ours(source, target)
    assert str(caught.value).startswith(f"a forward pass: expected {expected}, got {got};")


def test_decoding_without_what_the_cross_attention_looks_at_is_an_error() -> None:
    with pytest.raises(UsageError, match="encoder"):
        transformer().decode(TARGET_TOKENS)


def test_glorot_start_gives_scores_of_moderate_size() -> None:
    """A fresh model starts near the uniform guess: loss about ln(vocabulary)."""
    config = transformer_config(d_e=64, d_ff=128, attention=attention_config(heads=4, d_k=16, d_v=16))
    scores = build(config, seed=3)(SOURCE_TOKENS, TARGET_TOKENS)
    loss = nn.functional.cross_entropy(scores.flatten(0, 1), TARGET_TOKENS.flatten())
    assert abs(float(loss.detach()) - math.log(TARGET_VOCABULARY)) < 1.5


def test_filled_really_fills() -> None:
    assert all(parameter.abs().min() > 0 for parameter in filled(transformer()).parameters())
