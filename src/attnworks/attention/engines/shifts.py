"""Sums of shifted rows, the product of a matrix with constant diagonals and V, in time proportional to its diagonals.

Written as one operator with its gradient: composed of torch's own it takes two to four times as long forward, and twice
in all. A depth-wise convolution is about as fast over a narrow band, but pays for the gaps between diagonals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def shifted_sum(
    V: Float[Tensor, "b h j v"], weights: Float[Tensor, "h o"], offsets: Sequence[int], queries: int
) -> Float[Tensor, "b h i v"]:
    """Y_p = sum_o w_o V_{p + o} at the last positions p, as many as queries; rows beyond the ends are zero."""
    Y = _ShiftedSum.apply(V, weights, tuple(offsets), queries)
    assert isinstance(Y, Tensor)
    return Y


class _ShiftedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, V: Tensor, weights: Tensor, offsets: tuple[int, ...], queries: int):
        ctx.save_for_backward(V, weights)
        ctx.offsets = offsets
        Y = V.new_zeros(*V.shape[:2], queries, V.shape[-1])
        for column, to, source in _moves(offsets, queries, V.shape[2]):
            Y[:, :, to].addcmul_(weights[:, column, None, None], V[:, :, source])
        return Y

    @staticmethod
    @once_differentiable
    def backward(ctx, dY: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        V, weights = ctx.saved_tensors
        dV, dw = V.new_zeros(V.shape), torch.zeros_like(weights)
        for column, to, source in _moves(ctx.offsets, dY.shape[2], V.shape[2]):
            dV[:, :, source].addcmul_(weights[:, column, None, None], dY[:, :, to])
            dw[:, column] = (V[:, :, source] * dY[:, :, to]).sum((0, 2, 3))
        return dV, dw, None, None


def reach(offset: int, queries: int, keys: int) -> range:
    """The queries, last positions of the keys, that have a key at this offset."""
    return range(max(0, queries - keys - offset), min(queries, queries - offset))


def _moves(offsets: tuple[int, ...], queries: int, keys: int) -> Iterator[tuple[int, slice, slice]]:
    """(column, rows of Y, rows of V) for each offset that reaches any row."""
    for column, offset in enumerate(offsets):
        if rows := reach(offset, queries, keys):
            shift = keys - queries + offset
            yield column, slice(rows.start, rows.stop), slice(rows.start + shift, rows.stop + shift)
