"""Heads of equal or unequal widths, side by side in one matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Widths(nn.Module):
    """How the columns of a projection are cut into heads. Narrower heads are padded with zeros, which no score sees.

    widths    one for all heads, or one for each of them
    widest    of all heads of the layer, including those that have no columns here
    shape     of a parameter with one number for every column: (h, k) where all widths are the same, else (w,)
    """

    places: Int[Tensor, " w"] | None

    def __init__(self, heads: int, widths: int | Sequence[int], widest: int) -> None:
        super().__init__()
        self.heads, self.widest = heads, widest
        self.unequal = None if isinstance(widths, int) or {*widths} <= {widest} else tuple(widths)
        self.shape = (heads, widest) if self.unequal is None else (sum(self.unequal),)
        self.register_buffer("places", None if self.unequal is None else self._places(self.unequal), persistent=False)

    def _places(self, widths: Sequence[int]) -> Int[Tensor, " w"]:
        """Where each column is in a row of heads that are all of the largest width."""
        return torch.cat([head * self.widest + torch.arange(width) for head, width in enumerate(widths)])

    def cut(self, joined: Float[Tensor, "*a w"]) -> Float[Tensor, "*a h k"]:
        """Columns of all heads -> one row of columns for each head."""
        if self.places is not None:
            wide = joined.new_zeros(*joined.shape[:-1], self.heads * self.widest)
            joined = wide.index_copy(-1, self.places, joined)
        return joined.unflatten(-1, (self.heads, self.widest))

    def join(self, heads: Float[Tensor, "*a h k"]) -> Float[Tensor, "*a w"]:
        """The way back."""
        joined = heads.flatten(-2)
        return joined if self.places is None else joined.index_select(-1, self.places)

    def split(self, W: Tensor, axis: int = -1) -> list[Tensor]:
        """A parameter, cut along the axis of its columns: [e k] of each head, or [v e] for axis 0, or biases [k]."""
        return list(W if self.unequal is None else W.split(self.unequal, axis))

    def fill(self, W: Tensor, parts: Sequence[Tensor], axis: int = -1) -> None:
        """The way back, in place."""
        if parts:
            W.copy_(torch.stack(list(parts)) if self.unequal is None else torch.cat(list(parts), axis))

    def of_heads(self, W: Tensor) -> Float[Tensor, "h e k"]:
        """A weight [h e k], or [e w] where widths differ, as [h e k]."""
        return W if W.dim() == 3 else self.cut(W).movedim(-2, 0)
