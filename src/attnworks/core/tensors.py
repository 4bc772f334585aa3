"""Memory that is used again and again, because asking the system for a megabyte costs as much as filling it."""

from __future__ import annotations

import torch
from torch import Tensor


class Scratch:
    """Buffers by name. What is got under a name is overwritten when that name is asked for again."""

    def __init__(self) -> None:
        self._flat: dict[str, Tensor] = {}
        self._zeros: tuple[tuple[int, ...], Tensor] | None = None

    def like(self, name: str, X: Tensor) -> Tensor:
        return self.empty(name, tuple(X.shape), X.dtype, X.device)

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        size = torch.Size(shape).numel()
        flat = self._flat.get(name)
        if flat is None or flat.numel() < size or flat.dtype != dtype or flat.device != device:
            flat = self._flat[name] = torch.empty(size, dtype=dtype, device=device)
        return flat[:size].view(shape)

    def zeros(self, shape: tuple[int, ...], X: Tensor) -> Tensor:
        """Zeros of the last shape asked for, where whatever the caller wrote is still there."""
        if self._zeros is None or self._zeros[0] != shape or self._zeros[1].dtype != X.dtype:
            self._zeros = shape, X.new_zeros(shape)
        return self._zeros[1]


class Fresh(Scratch):
    """No memory at all: every buffer is new, and may be kept."""

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        del name
        return torch.empty(shape, dtype=dtype, device=device)

    def zeros(self, shape: tuple[int, ...], X: Tensor) -> Tensor:
        return X.new_zeros(shape)


FRESH = Fresh()
