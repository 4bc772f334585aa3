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

    Letters of both factors and the result are those of heads and sentences. One letter is summed over, and each factor
    has one more in the result. The factor whose letter comes first there is the left one.
    """
    factors = args[1] if len(args) == 2 and isinstance(args[1], list | tuple) else args[1:]
    names, _, out = str(args[0]).replace(" ", "").partition("->")
    letters = names.split(",")
    if len(factors) != 2 or "." in names or any(len({*part}) < len(part) for part in (*letters, out)):
        return None
    shared = [letter for letter in out if all(letter in part for part in letters)]
    summed = [letter for letter in letters[0] if letter in letters[1] and letter not in out]
    rows, columns = ([letter for letter in out if letter in part and letter not in shared] for part in letters)
    sizes = [len(part) for part in (summed, rows, columns, *letters, out)]
    if sizes != [1, 1, 1, *[len(shared) + 2] * 3]:
        return None
    if out.index(rows[0]) > out.index(columns[0]):
        factors, letters, rows, columns = factors[::-1], letters[::-1], columns, rows
    left = tuple(letters[0].index(letter) for letter in [*shared, *rows, *summed])
    right = tuple(letters[1].index(letter) for letter in [*shared, *summed, *columns])
    places = tuple(out.index(letter) for letter in [*shared, *rows, *columns])
    return Product(Placed(factors[0], left), Placed(factors[1], right), places)
