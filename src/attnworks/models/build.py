"""From a config, or the name of a preset, to a model."""

from __future__ import annotations

from dataclasses import replace
from typing import overload

import torch
from torch import nn

from attnworks.core.checks import choice, integer
from attnworks.core.errors import UsageError
from attnworks.models.block import PureAttention
from attnworks.models.config import (
    AttentionConfig,
    ModelConfig,
    NormOrder,
    PositionKind,
    PureConfig,
    RecurrentConfig,
    TransformerConfig,
)
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
    "small": _transformer(256, 1024, heads=4, layers=3, norm="pre", tie="target"),
    "tiny": _transformer(128, 512, heads=4, layers=2, norm="pre"),
    "lstm-plain": _lstm(None),
    "lstm-dot": _lstm("luong-dot"),
    "lstm-multiplicative": _lstm("luong-multiplicative"),
    "lstm-additive": _lstm("bahdanau-additive"),
}
"""base is the model of the 2017 paper, 63,045,632 parameters (S4.38).
conti-1h and conti-8h are those of the documented experiment (S4.129)."""


def preset(
    name: str,
    *,
    d_model: int | None = None,
    num_layers: int | None = None,
    num_heads: int | None = None,
    d_ff: int | None = None,
    norm: NormOrder | None = None,
    positions: PositionKind | None = None,
) -> TransformerConfig | RecurrentConfig:
    """The config of a model by name, with other sizes where they are given.

    Args:
        name: "tiny", "small", "base", "conti-1h", "conti-8h", "lstm-plain", "lstm-dot", "lstm-multiplicative" or
            "lstm-additive".
        d_model: Width of embeddings and of the residual stream. Default: None, the preset's.
        num_layers: Layers of the encoder, and of the decoder. Default: None, the preset's.
        num_heads: Heads of every attention layer; they share `d_model`. Default: None, the preset's.
        d_ff: Hidden width of the feed-forward layers. Default: None, the preset's, or 4 `d_model` if that is given.
        norm: Layer norm before each part ("pre") or after each residual sum ("post"). Default: None, the preset's.
        positions: "sinusoid", "learned", "index", "normalised-index" or "none". Default: None, the preset's.

    Returns:
        A copy of the config, to give to `attnworks.build`.

    >>> preset("base").d_e, preset("tiny", d_model=64).d_ff
    (512, 256)
    """
    choice("preset", name, PRESETS)
    config = PRESETS[name]
    for option, size in (("d_model", d_model), ("num_layers", num_layers), ("num_heads", num_heads), ("d_ff", d_ff)):
        if size is not None:
            integer(option, size, 1)
    if isinstance(config, RecurrentConfig):
        others = {"num_heads": num_heads, "d_ff": d_ff, "norm": norm, "positions": positions}
        if given := [option for option, value in others.items() if value is not None]:
            asked, remedy = f"preset {name} with {given[0]}", "leave it out, or choose tiny, small or base"
            raise UsageError(asked, "a Transformer", "a recurrent model, which has none", remedy)
        width = {} if d_model is None else {"d_e": d_model, "d_h": d_model}
        return replace(config, layers=config.layers if num_layers is None else num_layers, **width)
    d_e, heads = d_model or config.d_e, num_heads or config.attention.heads
    attention = config.attention
    if d_model is not None or num_heads is not None:
        if d_e % heads:
            asked, remedy = f"d_model={d_e} with num_heads={heads}", "choose another number of heads"
            raise UsageError(asked, "a width that the heads divide", f"a remainder of {d_e % heads}", remedy)
        attention = replace(attention, heads=heads, d_k=d_e // heads, d_v=d_e // heads)
    return replace(
        config,
        d_e=d_e,
        d_ff=d_ff or (config.d_ff if d_model is None else 4 * d_e),
        attention=attention,
        encoder_layers=num_layers or config.encoder_layers,
        decoder_layers=num_layers or config.decoder_layers,
        norm=norm or config.norm,
        positions=positions or config.positions,
    )
