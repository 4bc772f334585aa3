"""Named configs have their documented sizes, and building is reproducible."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from attnworks.core.errors import UnknownNameError, UsageError
from attnworks.models import (
    PRESETS,
    ModelConfig,
    PureAttention,
    Recurrent,
    RecurrentConfig,
    Transformer,
    TransformerConfig,
    build,
    preset,
)
from attnworks.models.build import skeleton
from tests.model_helpers import pure_config, recurrent_config, transformer_config


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_names() -> None:
    assert set(PRESETS) == {
        "base",
        "conti-1h",
        "conti-8h",
        "small",
        "tiny",
        "lstm-plain",
        "lstm-dot",
        "lstm-multiplicative",
        "lstm-additive",
    }


def test_unknown_preset_suggests_the_closest() -> None:
    with pytest.raises(UnknownNameError) as caught:
        preset("conti-8")
    assert str(caught.value) == (
        "preset 'conti-8': expected one of base, conti-1h, conti-8h, lstm-additive, lstm-dot, lstm-multiplicative, "
        "lstm-plain, small, tiny, got an unknown name; did you mean 'conti-8h'?"
    )


def test_base_is_the_model_of_the_paper() -> None:
    """S4.38: d = 512, k = 64, m = 2048, H = 8, L = 6, and 63,045,632 parameters without biases in attention."""
    config = preset("base")
    assert isinstance(config, TransformerConfig)
    assert (config.d_e, config.d_ff, config.encoder_layers, config.decoder_layers) == (512, 2048, 6, 6)
    assert tuple(config.attention.geometry) == (8, 64, 64)
    assert (config.norm, config.positions, config.dropout, config.tie) == ("post", "sinusoid", 0.1, "all")
    assert config.vocabulary == config.target_size == 37_000 and not config.has_final_norm
    assert count(skeleton(config)) == 63_045_632


@pytest.mark.parametrize(("name", "heads"), [("conti-1h", 1), ("conti-8h", 8)])
def test_the_documented_experiment(name: str, heads: int) -> None:
    """One layer, d = 512; one head of width 512 or eight of 64, with the same number of parameters (S3.7)."""
    config = preset(name)
    assert isinstance(config, TransformerConfig)
    assert tuple(config.attention.geometry) == (heads, 512 // heads, 512 // heads)
    assert (config.encoder_layers, config.decoder_layers, config.d_ff) == (1, 1, 2048)
    assert count(skeleton(config)) == count(skeleton(preset("conti-1h")))


def test_tiny() -> None:
    config = preset("tiny")
    assert isinstance(config, TransformerConfig)
    assert tuple(config.attention.geometry) == (4, 32, 32)
    assert (config.d_e, config.d_ff, config.encoder_layers, config.decoder_layers) == (128, 512, 2, 2)


def test_small() -> None:
    """Between tiny and base: norms first, and the matrix of the target embedding is that of the output."""
    config = preset("small")
    assert isinstance(config, TransformerConfig)
    assert tuple(config.attention.geometry) == (4, 64, 64)
    assert (config.d_e, config.d_ff, config.encoder_layers, config.decoder_layers) == (256, 1024, 3, 3)
    assert (config.norm, config.tie) == ("pre", "target") and config.has_final_norm


def test_other_sizes() -> None:
    config = preset("tiny", d_model=60, num_layers=3, num_heads=5, norm="pre", positions="learned")
    assert isinstance(config, TransformerConfig)
    assert tuple(config.attention.geometry) == (5, 12, 12)
    assert (config.d_e, config.d_ff, config.encoder_layers, config.decoder_layers) == (60, 240, 3, 3)
    assert (config.norm, config.positions) == ("pre", "learned")
    assert preset("tiny", d_ff=7) == replace(preset("tiny"), d_ff=7)
    recurrent = preset("lstm-dot", d_model=24, num_layers=2)
    assert isinstance(recurrent, RecurrentConfig)
    assert (recurrent.d_e, recurrent.d_h, recurrent.layers) == (24, 24, 2)


def test_sizes_that_cannot_be() -> None:
    with pytest.raises(UsageError, match="d_model=128 with num_heads=5: expected a width that the heads divide"):
        preset("tiny", num_heads=5)
    with pytest.raises(UsageError, match="num_layers=0"):
        preset("tiny", num_layers=0)
    with pytest.raises(UsageError, match="preset lstm-dot with norm: expected a Transformer"):
        preset("lstm-dot", norm="pre")


@pytest.mark.parametrize(
    ("name", "mechanism"),
    [
        ("lstm-plain", None),
        ("lstm-dot", "luong-dot"),
        ("lstm-multiplicative", "luong-multiplicative"),
        ("lstm-additive", "bahdanau-additive"),
    ],
)
def test_recurrent_presets(name: str, mechanism: str | None) -> None:
    config = preset(name)
    assert isinstance(config, RecurrentConfig)
    assert (config.d_e, config.d_h, config.cell, config.mechanism) == (512, 512, "lstm", mechanism)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_builds_and_runs_with_a_small_vocabulary(name: str) -> None:
    config = preset(name)
    if isinstance(config, TransformerConfig) and config.tie == "all":
        config = replace(config, tie="target")
    model = build(config.with_vocabulary(11, 13), seed=0).eval()
    drawn = torch.arange(10).reshape(2, 5)
    with torch.inference_mode():
        scores = model(drawn, drawn[:, :3])
    assert scores.shape == (2, 3, 13) and scores.isfinite().all()


CONFIGS: list[tuple[ModelConfig, type[nn.Module]]] = [
    (transformer_config(), Transformer),
    (recurrent_config(mechanism="bahdanau-additive"), Recurrent),
    (pure_config(mlp=True), PureAttention),
]


@pytest.mark.parametrize(("config", "kind"), CONFIGS, ids=lambda value: getattr(value, "kind", ""))
def test_build_with_a_seed_is_reproducible_and_leaves_the_random_state_alone(
    config: ModelConfig, kind: type[nn.Module]
) -> None:
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = build(config, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(7)
    second, other = build(config, seed=5), build(config, seed=6)
    assert isinstance(first, kind)
    for (name, one), two in zip(first.named_parameters(), second.parameters(), strict=True):
        assert torch.equal(one, two), name
    assert any(not torch.equal(one, two) for one, two in zip(first.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize(("config", "kind"), CONFIGS, ids=lambda value: getattr(value, "kind", ""))
def test_build_without_a_seed_follows_torch(config: ModelConfig, kind: type[nn.Module]) -> None:
    del kind
    torch.manual_seed(5)
    plain = build(config)
    for one, two in zip(plain.parameters(), build(config, seed=5).parameters(), strict=True):
        assert torch.equal(one, two)
    for one, two in zip(plain.parameters(), build(config).parameters(), strict=True):
        if one.dim() > 1 and one.any():
            assert not torch.equal(one, two)


def test_skeleton_holds_no_memory_and_the_same_names() -> None:
    config = transformer_config(tie="target", positions="learned", norm="pre")
    empty, full = skeleton(config), build(config)
    assert all(parameter.is_meta for parameter in empty.parameters())
    shapes = [{name: p.shape for name, p in model.named_parameters()} for model in (empty, full)]
    assert shapes[0] == shapes[1]
