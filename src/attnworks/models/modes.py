"""Context managers that run a model without dropout or gradients, with frozen weights or in float64; and `cast`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from attnworks.core.tensors import tensors_of

EXPERTS = "_experts_implementation_internal"
"""The entry of a config of transformers that says how experts are computed."""


@contextmanager
def inference_mode(model: object) -> Iterator[None]:
    """`eval_mode`, and torch.inference_mode()."""
    with eval_mode(model), torch.inference_mode():
        yield


@contextmanager
def eval_mode(model: object) -> Iterator[None]:
    """Inside, no part of the model is in training mode; afterwards each is in the mode that it was in before."""
    training = [part for part in model.modules() if part.training] if isinstance(model, nn.Module) else []
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


@contextmanager
def frozen_weights(model: nn.Module) -> Iterator[None]:
    """Inside, weights have no gradients, and nothing is kept for them; other tensors, such as gates, still may."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


@contextmanager
def in_float64(model: nn.Module, wanted: bool = True) -> Iterator[None]:
    """Inside, the model computes in float64 if `wanted`; afterwards every tensor has its own type again.

    Differences between tokens can be so small that float32 loses them. Gradients of the model can be taken afterwards,
    also where this is used under `torch.inference_mode`.
    """
    everything = (*model.parameters(), *model.buffers()) if wanted else ()
    before = [(tensor, tensor.dtype) for tensor in everything if tensor.is_floating_point()]
    try:
        with torch.inference_mode(False):
            for tensor, _ in before:
                tensor.data = tensor.data.double()
        with plain_experts(model):
            yield
    finally:
        with torch.inference_mode(False):
            for tensor, dtype in before:
                tensor.data = tensor.data.to(dtype)


@contextmanager
def plain_experts(model: nn.Module) -> Iterator[None]:
    """Inside, a model of transformers in float64 runs its experts one by one."""
    before = use_plain_experts(model)
    try:
        yield
    finally:
        for config, implementation in before:
            setattr(config, EXPERTS, implementation)


def use_plain_experts(model: nn.Module) -> list[tuple[Any, str]]:
    """Let a model of transformers in float64 run its experts one by one: torch has no grouped product of such numbers.

    The configs that were changed are returned, with the implementation that each named before. The method of
    transformers for that passes over the config of the text in models of several kinds of input.
    """
    if not any(parameter.dtype == torch.float64 for parameter in model.parameters()):
        return []
    changed: list[tuple[Any, str]] = []
    for config in (getattr(module, "config", None) for module in model.modules()):
        if (implementation := getattr(config, EXPERTS, None)) not in (None, "eager"):
            setattr(config, EXPERTS, "eager")
            changed.append((config, implementation))
    return changed


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert what a folder stores to this type; what a model computes by itself, such as rotary frequencies, stays."""
    for tensor in tensors_of(model).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
