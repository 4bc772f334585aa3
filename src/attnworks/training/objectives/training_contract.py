"""What an objective gives back, so that batches and processes can be added up exactly."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

from jaxtyping import Float
from torch import Tensor, nn

from attnworks.core.registry import Registry
from attnworks.text.batches import Batch


class Loss(NamedTuple):
    """A sum and what it is a sum over; the mean of several batches is the sum of sums over the sum of terms."""

    total: Float[Tensor, ""]
    terms: int


@runtime_checkable
class Objective(Protocol):
    def __call__(self, model: nn.Module, batch: Batch) -> Loss: ...


OBJECTIVES: Registry[type[Objective]] = Registry("objective")
