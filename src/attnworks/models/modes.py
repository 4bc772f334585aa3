"""A model in evaluation mode, or in float64, for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from attnworks.core.tensors import tensors_of


@contextmanager
def evaluating(model: object) -> Iterator[None]:
    """No gradients and no dropout inside; outside, every part is in the mode it was in before, whatever happened."""
    with held_still(model), torch.inference_mode():
        yield


@contextmanager
def held_still(model: object) -> Iterator[None]:
    """No dropout inside, but gradients if they are wanted."""
    training = [part for part in model.modules() if part.training] if isinstance(model, nn.Module) else []
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


class InFloat64:
    """The model in float64 for a while, where differences between tokens may become tiny; then each part as it was."""

    def __init__(self, model: nn.Module, wanted: bool) -> None:
        self.before: list[tuple[Tensor, torch.dtype]] = []
        if wanted:
            everything = (*model.parameters(), *model.buffers())
            self.before = [(tensor, tensor.dtype) for tensor in everything if tensor.is_floating_point()]

    def __enter__(self) -> None:
        for tensor, _ in self.before:
            tensor.data = tensor.data.double()

    def __exit__(self, *_: object) -> None:
        for tensor, dtype in self.before:
            tensor.data = tensor.data.to(dtype)


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """All that a folder stores, in this type; what a model computes by itself, as rotary frequencies, stays."""
    for tensor in tensors_of(model).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
