"""Modules of ours with weights from the draw of a check."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from attnworks.theory.cases import Draw

M = TypeVar("M", bound=nn.Module)


def filled(draw: Draw, make: Callable[[], M], scale: float = 1.0) -> M:
    """In float64 and without dropout, every parameter normal; torch's own random state is left alone."""
    with torch.random.fork_rng(devices=[]):
        module = make().double().eval().requires_grad_(False)
    for parameter in module.parameters():
        parameter.copy_(draw.normal(*parameter.shape, scale=scale))
    return module
