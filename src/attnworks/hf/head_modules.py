"""Modules in attention layers of Hugging Face models that attnworks puts there, and what marks such layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention.heads import HeadGroups, HeadWidths
from attnworks.hf.linear import LinearMap

MECHANISMS_ATTRIBUTE = "attnworks_mechanisms"
"""The attribute of an attention module that holds mechanisms of attnworks."""
EMPTY_ATTRIBUTE = "attnworks_empty"
"""The attribute of an attention module that has lost all heads."""

QUERIES_AND_KEYS = "attnworks_queries_and_keys"
"""The attribute of an attention module with such mechanisms: the paths of its projections, as some of their columns may
not be stored, which evidence then does not find."""


def head_groups_of(module: nn.Module) -> HeadGroups | None:
    """The mechanisms of attnworks in an attention layer of Hugging Face, if it has any."""
    return getattr(module, MECHANISMS_ATTRIBUTE, None)


def remove_hooks(module: nn.Module, wanted: Callable[[Any], bool]) -> None:
    """Remove these hooks, of those that run before or after a module."""
    for hooks in (module._forward_pre_hooks, module._forward_hooks):
        for number in [number for number, hook in hooks.items() if wanted(hook)]:
            del hooks[number]
            module._forward_pre_hooks_with_kwargs.pop(number, None)


def is_empty(attention: nn.Module) -> bool:
    """Whether an attention layer of Hugging Face's has lost all heads."""
    return bool(getattr(attention, EMPTY_ATTRIBUTE, False))


# Linear maps to and from heads of unequal widths, for attention layers that cut all heads by one width.


class HeadsOut(nn.Module):
    """X -> X W^T + b, with the columns of each head padded with zeros to one width: [*a e] -> [*a (h k)].

    The weight [w e] and the bias [w] hold the true columns alone, in the layout of torch's Linear.
    """

    def __init__(self, d_e: int, widths: Sequence[int], widest: int, *, bias: bool) -> None:
        super().__init__()
        self.head_widths, self.widths = tuple(widths), HeadWidths(len(widths), widths, widest)
        self.weight = nn.Parameter(torch.empty(sum(widths), d_e))
        self.bias = nn.Parameter(torch.empty(sum(widths))) if bias else None

    def forward(self, X: Float[Tensor, "*a e"]) -> Float[Tensor, "*a c"]:
        return self.widths.cut(F.linear(X, self.weight, self.bias)).flatten(-2)

    def by_head(self) -> tuple[Float[Tensor, "h e k"], Float[Tensor, "h k"] | None]:
        """W and b of X W + b, padded with zeros."""
        return self.widths.of_heads(self.weight.T), None if self.bias is None else self.widths.cut(self.bias)

    def linear_map(self) -> LinearMap:
        """W [e (h k)] and b [(h k)], padded with zeros."""
        W, b = self.by_head()
        return LinearMap(W.movedim(0, 1).flatten(1), None if b is None else b.flatten())


class HeadsIn(nn.Module):
    """The opposite map [*a (h v)] -> [*a e]: the true columns of each head, times W^T, plus b. The weight is [e w]."""

    def __init__(self, d_e: int, widths: Sequence[int], widest: int, *, bias: bool) -> None:
        super().__init__()
        self.widths = HeadWidths(len(widths), widths, widest)
        self.weight = nn.Parameter(torch.empty(d_e, sum(widths)))
        self.bias = nn.Parameter(torch.empty(d_e)) if bias else None

    def forward(self, Y: Float[Tensor, "*a c"]) -> Float[Tensor, "*a e"]:
        return F.linear(self.widths.join(Y.unflatten(-1, (self.widths.heads, -1))), self.weight, self.bias)

    def by_head(self) -> Float[Tensor, "h v e"]:
        """W of Y W + b, padded with zeros."""
        return self.widths.of_heads(self.weight).mT

    def silence(self, heads: Iterable[int]) -> None:
        """Set the weights of these heads to zero."""
        for head, W in enumerate(self.widths.split(self.weight)):
            if head in {*heads}:
                W.zero_()

    def linear_map(self) -> LinearMap:
        """W [(h v) e], padded with zeros, and b [e]."""
        return LinearMap(self.by_head().flatten(0, 1), self.bias)


# What is left of the linear maps of a layer without heads.


class ZeroColumns(nn.Module):
    """X -> zeros [*a c], in place of a linear map [*a e] -> [*a c] to queries, keys or values.

    weight    a single zero, of the type and on the device that the matrix would have
    """

    weight: Tensor

    def __init__(self, old: LinearMap, columns: int) -> None:
        super().__init__()
        self.sizes, self.bias = (old.weight.shape[0], columns), None
        self.register_buffer("weight", old.weight.detach().new_zeros(()))

    def forward(self, X: Float[Tensor, "*a e"]) -> Float[Tensor, "*a c"]:
        return X.new_zeros(*X.shape[:-1], self.sizes[1])

    def linear_map(self) -> LinearMap:
        return LinearMap(self.weight.expand(self.sizes), None)


class OutputBias(nn.Module):
    """Y -> b, in place of an output projection [*a c] -> [*a e].

    weight    a single zero, of the type and on the device that the matrix would have
    """

    weight: Tensor

    def __init__(self, old: LinearMap, columns: int) -> None:
        super().__init__()
        self.sizes, self.bias = (old.weight.shape[0], columns), old.bias
        self.register_buffer("weight", old.weight.detach().new_zeros(()))

    def forward(self, Y: Float[Tensor, "*a c"]) -> Float[Tensor, "*a e"]:
        shape = *Y.shape[:-1], self.sizes[1]
        return Y.new_zeros(shape) if self.bias is None else self.bias.expand(shape)

    def linear_map(self) -> LinearMap:
        return LinearMap(self.weight.expand(self.sizes), self.bias)
