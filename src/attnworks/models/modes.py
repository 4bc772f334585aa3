"""A model held still while it is looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


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
