"""Context managers that run a model without dropout, without gradients or in float64; and `cast`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from attnworks.core.tensors import tensors_of


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
def in_float64(model: nn.Module, wanted: bool = True) -> Iterator[None]:
    """Inside, the model computes in float64 if `wanted`; afterwards every tensor has its own type again.

    Differences between tokens can be so small that float32 loses them.
    """
    everything = (*model.parameters(), *model.buffers()) if wanted else ()
    before = [(tensor, tensor.dtype) for tensor in everything if tensor.is_floating_point()]
    for tensor, _ in before:
        tensor.data = tensor.data.double()
    try:
        yield
    finally:
        for tensor, dtype in before:
            tensor.data = tensor.data.to(dtype)


def cast(model: nn.Module, dtype: torch.dtype) -> None:
    """Convert what a folder stores to this type; what a model computes by itself, such as rotary frequencies, stays."""
    for tensor in tensors_of(model).values():
        if tensor.is_floating_point():
            tensor.data = tensor.data.to(dtype)
