"""Config -> model."""

from __future__ import annotations

from typing import overload

import torch
from torch import nn

from attnworks.core.errors import UsageError
from attnworks.models.config import ModelConfig, PureConfig, RecurrentConfig, TransformerConfig
from attnworks.models.pure import PureAttention
from attnworks.models.recurrent import Recurrent
from attnworks.models.transformer import Transformer

Model = Transformer | Recurrent | PureAttention


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
    """A freshly initialised model; with `seed`, always the same one, and torch's own random state left alone."""
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
            raise UsageError(
                asked="build a model",
                expected="a TransformerConfig, RecurrentConfig or PureConfig",
                got=repr(config)[:60],
                remedy='for instance attnworks.build(attnworks.preset("tiny"))',
            )


def skeleton(config: ModelConfig) -> nn.Module:
    """The model on torch's meta device: every name and shape, no memory."""
    with torch.device("meta"):
        return build(config)
