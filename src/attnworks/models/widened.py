"""A model in float64 for a while."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
