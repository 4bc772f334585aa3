"""A small batch of random ids for any text model of transformers, to watch a forward pass on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

SOURCE_LENGTH, TARGET_LENGTH, ENCODED_LENGTH = 7, 5, 11
"""Of encoder, decoder, and states that an encoder would give. They differ, so that cross-attention is recognised."""
FIRST_ID = 10
"""Ids below are often special tokens."""
SEED = 11


def probe_run(model: Any, *, padding: bool = False) -> Callable[[], Any]:
    """A function that runs the body of the model once on random ids."""
    body = probe_body(model)
    given = probe_inputs(body, padding=padding)

    def run() -> Any:
        return body(**given)

    return run


def probe_body(model: Any) -> Any:
    """What reads text in a model: its body, or the model itself if that has none; of several towers, that for text."""
    body = getattr(model, "base_model", model)
    names = {*inspect.signature(body.forward).parameters}
    if {"pixel_values", "input_ids"} <= names and hasattr(body, "text_model"):
        return body.text_model
    return model if names <= {"args", "kwargs"} else body


def probe_inputs(model: nn.Module, *, padding: bool = False) -> dict[str, Any]:
    """Keyword arguments for one forward pass on random ids; with `padding`, of two rows of unequal lengths."""
    config: Any = getattr(model, "config", None)
    names = inspect.signature(model.forward).parameters
    if getattr(model, "main_input_name", "input_ids") == "pixel_values" and "pixel_values" in names:
        return {"pixel_values": _pixels(model, config)}
    rows = 2 if padding else 1
    given: dict[str, Any] = {"input_ids": _ids(model, rows, SOURCE_LENGTH, SEED)}
    if "attention_mask" in names:
        given["attention_mask"] = _real(rows, SOURCE_LENGTH)
    if "decoder_input_ids" in names and getattr(config, "is_encoder_decoder", True):
        given["decoder_input_ids"] = _ids(model, rows, TARGET_LENGTH, SEED + 1)
        if "decoder_attention_mask" in names:
            given["decoder_attention_mask"] = _real(rows, TARGET_LENGTH)
    if getattr(config, "add_cross_attention", False) and "encoder_hidden_states" in names:
        states = torch.randn(rows, ENCODED_LENGTH, config.hidden_size, generator=torch.Generator().manual_seed(SEED))
        given["encoder_hidden_states"] = states.to(next(model.parameters()).dtype)
    if "use_cache" in names:
        given["use_cache"] = False
    device = next(model.parameters()).device
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in given.items()}


def _ids(model: nn.Module, rows: int, length: int, seed: int) -> Tensor:
    size = _vocabulary_size(model)
    first = min(FIRST_ID, size - 1)
    return torch.randint(first, max(first + 1, size), (rows, length), generator=torch.Generator().manual_seed(seed))


def _vocabulary_size(model: Any) -> int:
    """Half of the ids that the model knows, at least a hundred: the last ones may stand for images or padding."""
    try:
        size = model.get_input_embeddings().num_embeddings
    except (AttributeError, NotImplementedError):
        size = getattr(model.config, "vocab_size", 100)
    return min(size, max(100, size // 2))


def _real(rows: int, length: int) -> Tensor:
    """All real in the first row; the second one is two tokens shorter."""
    real = torch.ones(rows, length, dtype=torch.long)
    real[1:, length - 2 :] = 0
    return real


def _pixels(model: nn.Module, config: Any) -> Tensor:
    size = getattr(config, "image_size", 224)
    height, width = (size, size) if isinstance(size, int) else size
    shape = (1, getattr(config, "num_channels", 3), height, width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(SEED)).to(next(model.parameters()))
