"""Several numbers as one side."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from attnworks.theory.sides import Number


def together(*parts: Number) -> Float[Tensor, " n"]:
    """All entries in a row, in float64, for a statement of several parts that have to hold at once.

    Holds when: the parts are of about one size; what counts as rounding is measured by the largest.
    """
    return torch.cat([torch.as_tensor(part, dtype=torch.float64).flatten() for part in parts])
