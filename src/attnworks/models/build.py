"""From a config, or the name of a preset, to a model."""

from __future__ import annotations

from dataclasses import replace
from typing import overload

import torch
from torch import nn

from attnworks.core.checks import choice
from attnworks.core.errors import UsageError
from attnworks.models.block import PureAttention
from attnworks.models.config import AttentionConfig, ModelConfig, PureConfig, RecurrentConfig, TransformerConfig
from attnworks.models.recurrent import Recurrent
from attnworks.models.transformer import Transformer

Model = Transformer | Recurrent | PureAttention

BASE_VOCABULARY = 37_000
"""Byte-pair tokens shared by English and German in the 2017 paper; training replaces it by the corpus's own."""


@overload
def build(config: TransformerConfig, *, seed: int | None = None) -> Transformer: ...
@overload
def build(config: RecurrentConfig, *, seed: int | None = None) -> Recurrent: ...
@overload
def build(config: PureConfig, *, seed: int | None = None) -> PureAttention: ...
@overload
def build(config: TransformerConfig | RecurrentConfig, *, seed: int | None = None) -> Transformer | Recurrent: ...
@overload
def build(config: ModelConfig, *, seed: int | None = None) -> Model: ...
def build(config: ModelConfig, *, seed: int | None = None) -> Model:
    """Build a model with new weights.

    Args:
        config: A config of attnworks: `attnworks.preset(name)`, or a TransformerConfig, RecurrentConfig or PureConfig
            of `attnworks.models`.
        seed: Random seed of the weights; the random state of torch stays as it is. Default: None, use that state.

    Returns:
        The model, a `torch.nn.Module`.

    >>> model = build(preset("tiny"), seed=0)
    """
    if seed is None:
        return _construct(config)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _construct(config)


def _construct(config: ModelConfig) -> Model:
    match config:
        case TransformerConfig():
            return Transformer(config)
        case RecurrentConfig():
            return Recurrent(config)
        case PureConfig():
            return PureAttention(config)
        case _:
            raise UsageError("build a model", "a config", repr(config)[:60], 'for instance attnworks.preset("tiny")')


def skeleton(config: ModelConfig) -> nn.Module:
    """The model on torch's meta device: every name and shape, no memory."""
    with torch.device("meta"):
        return build(config)


def _transformer(
    d_e: int, d_ff: int, heads: int, layers: int, *, bias: bool = True, **options: object
) -> TransformerConfig:
    attention = AttentionConfig(heads=heads, d_k=d_e // heads, d_v=d_e // heads, bias=bias)
    return TransformerConfig(
        vocabulary=BASE_VOCABULARY,
        d_e=d_e,
        d_ff=d_ff,
        attention=attention,
        encoder_layers=layers,
        decoder_layers=layers,
        **options,  # pyright: ignore[reportArgumentType]
    )


def _lstm(mechanism: str | None) -> RecurrentConfig:
    return RecurrentConfig(vocabulary=BASE_VOCABULARY, d_e=512, d_h=512, mechanism=mechanism)


PRESETS: dict[str, TransformerConfig | RecurrentConfig] = {
    "base": _transformer(512, 2048, heads=8, layers=6, tie="all", bias=False),
    "conti-1h": _transformer(512, 2048, heads=1, layers=1),
    "conti-8h": _transformer(512, 2048, heads=8, layers=1),
    "tiny": _transformer(128, 512, heads=4, layers=2),
    "lstm-plain": _lstm(None),
    "lstm-dot": _lstm("luong-dot"),
    "lstm-multiplicative": _lstm("luong-multiplicative"),
    "lstm-additive": _lstm("bahdanau-additive"),
}
"""base is the model of the 2017 paper, 63,045,632 parameters (S4.38).
conti-1h and conti-8h are those of the documented experiment (S4.129)."""


def preset(name: str) -> TransformerConfig | RecurrentConfig:
    """The config of a model by name.

    Args:
        name: "tiny", "base", "conti-1h", "conti-8h", "lstm-plain", "lstm-dot", "lstm-multiplicative" or
            "lstm-additive".

    Returns:
        A copy of the config, to give to `attnworks.build`.

    >>> preset("base").d_e
    512
    """
    choice("preset", name, PRESETS)
    return replace(PRESETS[name])
