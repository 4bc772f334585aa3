"""The tensors of a module, and the devices they can be on."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnworks.core.errors import UsageError, in_short


def parameters_of(model: nn.Module) -> dict[str, nn.Parameter]:
    """Every parameter once, under its first name: tied ones are stored a single time."""
    return dict(model.named_parameters(remove_duplicate=True))


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """All that a folder stores: parameters, and buffers that belong to the state."""
    state = model.state_dict(keep_vars=True)
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in state}
    return {**parameters_of(model), **buffers}


def check_device(device: str) -> None:
    """Refuse a device that this machine, or this torch, does not have."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            asked=f"device {device!r}", expected="one that torch can use", got=in_short(error), remedy="use cpu"
        ) from None
