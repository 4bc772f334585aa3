"""Config -> model."""

from __future__ import annotations

import torch
from torch import nn

from attnworks.models.config import ModelConfig, PureConfig, RecurrentConfig, TransformerConfig
from attnworks.models.pure import PureAttention
from attnworks.models.recurrent import Recurrent
from attnworks.models.transformer import Transformer

Model = Transformer | Recurrent | PureAttention

_MODELS: dict[type[ModelConfig], type[Model]] = {
    TransformerConfig: Transformer,
    RecurrentConfig: Recurrent,
    PureConfig: PureAttention,
}


def build(config: ModelConfig, *, seed: int | None = None) -> Model:
    """A freshly initialised model; with `seed`, always the same one, and torch's own random state left alone."""
    if seed is None:
        return _MODELS[type(config)](config)  # pyright: ignore[reportArgumentType]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _MODELS[type(config)](config)  # pyright: ignore[reportArgumentType]


def skeleton(config: ModelConfig) -> nn.Module:
    """The model on torch's meta device: every name and shape, no memory."""
    with torch.device("meta"):
        return build(config)
