"""Products of two tensors in the code of a model: their factors and the layout of each, for any function of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

MATMUL = {torch.matmul, torch.bmm, Tensor.matmul, Tensor.__matmul__, Tensor.bmm}
BADDBMM = {torch.baddbmm, Tensor.baddbmm}


class Placed(NamedTuple):
    """A tensor, and where its axes are if those of heads and sentences are to come first; None: they do."""

    tensor: Tensor
    order: tuple[int, ...] | None = None

    def read(self, tensor: Tensor | None = None) -> Float[Tensor, "*a i k"]:
        """A view of the tensor, or another of its shape, with the axes in this order."""
        tensor = self.tensor if tensor is None else tensor
        return tensor if self.order is None else tensor.permute(self.order)

    def write(self, ordered: Float[Tensor, "*a i k"]) -> Tensor:
        """The opposite of `read`."""
        return ordered if self.order is None else ordered.permute([*map(self.order.index, range(ordered.ndim))])

    def turned(self) -> Placed:
        """The same tensor, transposed when it is read."""
        order = self.order or (*range(self.tensor.ndim),)
        return Placed(self.tensor, (*order[:-2], order[-1], order[-2]))


class Product(NamedTuple):
    """`left` times `right`, [*a i k] times [*a k j].

    out      where the axes [*a i j] are in the result
    scale    the result is this times the product, plus `added`
    added    what is added to it, if the function adds
    """

    left: Placed
    right: Placed
    out: tuple[int, ...] | None = None
    scale: float = 1.0
    added: Tensor | None = None

    def turned(self) -> Product:
        """The same result as a product of the transposed factors, which change places."""
        out = self.out or (*range(self.left.tensor.ndim),)
        return self._replace(left=self.right.turned(), right=self.left.turned(), out=(*out[:-2], out[-1], out[-2]))


def product_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product | None:
    """The product that a function of torch computes; None if it computes none, or a factor is a parameter."""
    found = None
    if func in MATMUL:
        found = _matmul(args, kwargs)
    elif func is Tensor.__rmatmul__:
        found = Product(Placed(args[1]), Placed(args[0]))
    elif func in BADDBMM:
        found = _baddbmm(args, kwargs)
    elif func is torch.einsum:
        found = _einsum(args)
    if found is None or not all(_is_activation(factor.tensor) for factor in (found.left, found.right)):
        return None
    return found


def _is_activation(factor: Any) -> bool:
    """Whether a factor may have been computed by the model: no parameter, and at least one matrix for each sentence."""
    return isinstance(factor, Tensor) and not isinstance(factor, nn.Parameter) and factor.ndim >= 3


def _matmul(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product | None:
    given = _arguments(args, kwargs, ("input", "other", "mat2", "tensor2"))
    return Product(Placed(given[0]), Placed(given[1])) if len(given) == 2 else None


def _baddbmm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Product | None:
    given = _arguments(args, kwargs, ("input", "batch1", "batch2"))
    if len(given) != 3 or kwargs.get("beta", 1) != 1:
        return None
    return Product(Placed(given[1]), Placed(given[2]), scale=float(kwargs.get("alpha", 1)), added=given[0])


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any], names: Sequence[str]) -> list[Any]:
    return [*args, *(kwargs[name] for name in names if name in kwargs)]


def _einsum(args: tuple[Any, ...]) -> Product | None:
    """A product of two factors whose axes are named by letters, in any order.

    Letters of both factors and the result are those of heads and sentences. One letter is summed over, and each
    factor has one more in the result: that of its rows or columns.
    """
    factors = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    names, _, out = str(args[0]).replace(" ", "").partition("->")
    first, _, second = names.partition(",")
    if len(factors) != 2 or "." in names or not out or any(len({*part}) < len(part) for part in (first, second, out)):
        return None
    shared = [letter for letter in out if letter in first and letter in second]
    (summed, rows, columns) = (
        [letter for letter in first if letter in second and letter not in out],
        [letter for letter in first if letter in out and letter not in second],
        [letter for letter in second if letter in out and letter not in first],
    )
    if [len(letters) for letters in (summed, rows, columns)] != [1, 1, 1]:
        return None
    if not len(shared) + 2 == len(first) == len(second) == len(out):
        return None
    left = Placed(factors[0], tuple(first.index(letter) for letter in [*shared, *rows, *summed]))
    right = Placed(factors[1], tuple(second.index(letter) for letter in [*shared, *summed, *columns]))
    return Product(left, right, tuple(out.index(letter) for letter in [*shared, *rows, *columns]))
