"""Linear maps to and from heads of unequal widths, for attention layers that cut all heads by one width."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.models.widths import Widths


class HeadsOut(nn.Module):
    """X -> X W^T + b, and behind the columns of each head zeros up to the common width: [*a e] -> [*a (h k)].

    The weight [w e] and the bias [w] hold the true columns alone, in the layout of torch's Linear.
    """

    def __init__(self, d_e: int, widths: Sequence[int], widest: int, *, bias: bool) -> None:
        super().__init__()
        self.of_each, self.widths = tuple(widths), Widths(len(widths), widths, widest)
        self.weight = nn.Parameter(torch.empty(sum(widths), d_e))
        self.bias = nn.Parameter(torch.empty(sum(widths))) if bias else None

    def forward(self, X: Float[Tensor, "*a e"]) -> Float[Tensor, "*a c"]:
        return self.widths.cut(F.linear(X, self.weight, self.bias)).flatten(-2)

    def by_head(self) -> tuple[Float[Tensor, "h e k"], Float[Tensor, "h k"] | None]:
        """W and b of X W + b, padded with zeros."""
        return self.widths.of_heads(self.weight.T), None if self.bias is None else self.widths.cut(self.bias)


class HeadsIn(nn.Module):
    """The way back, [*a (h v)] -> [*a e]: of each head its true columns, times W^T, plus b. The weight is [e w]."""

    def __init__(self, d_e: int, widths: Sequence[int], widest: int, *, bias: bool) -> None:
        super().__init__()
        self.widths = Widths(len(widths), widths, widest)
        self.weight = nn.Parameter(torch.empty(d_e, sum(widths)))
        self.bias = nn.Parameter(torch.empty(d_e)) if bias else None

    def forward(self, Y: Float[Tensor, "*a c"]) -> Float[Tensor, "*a e"]:
        return F.linear(self.widths.join(Y.unflatten(-1, (self.widths.heads, -1))), self.weight, self.bias)

    def by_head(self) -> Float[Tensor, "h v e"]:
        """W of Y W + b, padded with zeros."""
        return self.widths.of_heads(self.weight).mT
