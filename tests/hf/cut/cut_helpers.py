"""Tiny models of many types, and one of their layers to cut."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

from attnworks.hf.anatomy import layout_of
from attnworks.hf.cut.plan import Place
from attnworks.hf.cut.proof import outputs_of, running, runs_of
from attnworks.hf.tiny import tiny_model

SOME_TYPES = (
    *("albert", "bart", "bert", "bloom", "deberta-v2", "deepseek_v3", "falcon", "gemma3_text", "gpt2", "gpt_neox"),
    *("gpt_oss", "gptj", "llama", "modernbert", "mpnet", "olmo2", "opt", "phi3", "qwen3", "qwen3_next", "t5"),
    *("umt5", "xlm", "zamba"),
)
"""One or two of each layout: separate, fused, woven, grouped, latent, gated and shared projections, norms of queries
and keys, sinks, biases from outside, and attention in a model's own code."""


@cache
def tiny(model_type: str) -> Any:
    """A tiny model, built once. Leave it as it was."""
    return tiny_model(model_type).model


def place_in(model: Any, number: int = 0) -> Place:
    """One of the attention layers of a model."""
    layers = layout_of(model).layers
    return Place(model, layers, layers[number])


def read(model: Any) -> list[Tensor]:
    """The outputs of a model on a padded batch, and with a cache if it runs with one."""
    with running(model):
        return outputs_of(runs_of(model))


def assert_same(found: list[Tensor], expected: list[Tensor]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)
