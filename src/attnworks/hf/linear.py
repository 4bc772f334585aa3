"""Linear maps in models of transformers: their matrix, and keeping some of their inputs or outputs."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor, nn


class LinearMap(NamedTuple):
    """x W + b, with W [inputs outputs] as a view of the parameter."""

    weight: Float[Tensor, "e c"]
    bias: Float[Tensor, " c"] | None


def is_conv1d(module: nn.Module) -> bool:
    """Whether a module is GPT-2's linear map, whose weight is [inputs outputs]."""
    return type(module).__name__ == "Conv1D"


def matrix_of(module: nn.Module) -> LinearMap | None:
    """The matrix and the bias of a linear map; None for any other module.

    A module that keeps them in another form gives them by `linear_map()`.
    """
    own: Any = getattr(module, "linear_map", None)
    if own is not None:
        return own()
    weight: Any = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or isinstance(module, nn.Embedding):
        return None
    bias: Any = getattr(module, "bias", None)
    return LinearMap(weight if is_conv1d(module) else weight.T, bias if isinstance(bias, Tensor) else None)
