"""Tensors: reused memory, sqrt with a finite gradient at zero, the tensors of a module, devices."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.errors import UsageError, short_message


class Scratch:
    """Reused buffers by name. A buffer is overwritten when its name is requested again."""

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
        """Zeros of this shape; a second request for the same shape returns the buffer with what the caller wrote."""
        if self._zeros is None or self._zeros[0] != shape or self._zeros[1].dtype != X.dtype:
            self._zeros = shape, X.new_zeros(shape)
        return self._zeros[1]


class _Fresh(Scratch):
    """New memory for every buffer, which may be kept."""

    def empty(self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
        del name
        return torch.empty(shape, dtype=dtype, device=device)

    def zeros(self, shape: tuple[int, ...], X: Tensor) -> Tensor:
        return X.new_zeros(shape)


FRESH = _Fresh()


def safe_sqrt(x: Float[Tensor, "*a"]) -> Float[Tensor, "*a"]:
    """sqrt(x), with gradient 0 instead of infinity where x = 0."""
    positive = x > 0
    return torch.where(positive, x, 1.0).sqrt() * positive


def widened(X: Float[Tensor, "*a"]) -> Float[Tensor, "*a"]:
    """At least float32, since sums of squares overflow and differences vanish in half precision."""
    return X.float() if X.dtype.itemsize < 4 else X


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters by name; a tied one occurs once, under its first name."""
    return dict(model.named_parameters(remove_duplicate=True))


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The tensors that a model folder stores: parameters and persistent buffers."""
    state = model.state_dict(keep_vars=True)
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in state}
    return {**parameters_of(model), **buffers}


def check_device(device: str, option: str = "device", remedy: str = "use cpu") -> None:
    """An error for a device that torch cannot use here."""
    try:
        torch.device(device)
    except (RuntimeError, TypeError):
        raise UsageError(option, "cpu, cuda, cuda:1 or mps", repr(device), remedy) from None
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError) as error:
        got = short_message(str(error).splitlines()[0])
        raise UsageError(f"{option} {device}", "a device that torch can use", got, remedy) from None
