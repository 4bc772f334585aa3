"""Axis letters and tolerances, shared by every package (docs/notation.md).

Rows are positions and weights multiply on the right. Shapes in signatures use one letter per axis:

    b batch    l layer    h head    i query position    j key position
    e embedding    k key width    v value width    t target position    w word (token kind)
    s sentence     n positions or rows of any kind

Tensors carry the letters of the papers: X Q K V, S before softmax, P after it (rows sum to one), Y.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import torch


class Tolerance(NamedTuple):
    rtol: float
    atol: float


_TOLERANCES = {
    "float64": Tolerance(1e-10, 1e-12),
    "float32": Tolerance(1e-4, 1e-5),
    "bfloat16": Tolerance(3e-2, 3e-2),
    "float16": Tolerance(5e-3, 5e-3),
}

DTYPES = tuple(_TOLERANCES)


def tolerance(dtype: torch.dtype) -> Tolerance:
    """The largest difference allowed between two computations of an O(1) quantity in `dtype`."""
    return _TOLERANCES[str(dtype).removeprefix("torch.")]
