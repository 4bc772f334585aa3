"""The attention calls of a model under its `eager` implementation: their weights, and heads set to zero.

This knows nothing of how attnworks observes and changes models, so that it can check that. It replaces the function
`eager_attention_forward` of a modeling file; outside of it, it follows what `softmax` returns to the product.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

EAGER = "eager_attention_forward"
SOFTMAX = {"softmax"}
PRODUCTS = {"matmul", "bmm", "__matmul__"}
STILL_WEIGHTS = {
    *(
        "dropout",
        "to",
        "type",
        "type_as",
        "float",
        "double",
        "contiguous",
        "clone",
        "view",
        "reshape",
        "mul",
        "__mul__",
    ),
}
"""Functions after softmax whose result still holds the attention weights."""


@dataclass
class AttentionCalls:
    """The calls of one forward pass, in their order.

    zero       number of the call -> heads whose outputs are set to zero
    weights    of each call: [b, h, i, j]
    """

    zero: Mapping[int, Collection[int]] = field(default_factory=dict)
    weights: list[Tensor] = field(default_factory=list)

    def add(self, weights: Tensor, outputs: Tensor, head_axis: int) -> Tensor:
        """Keep the weights of a call; return its outputs without the heads that are to be zero."""
        heads = self.zero.get(len(self.weights), ())
        self.weights.append(weights.detach())
        if not heads:
            return outputs
        gate = outputs.new_ones(outputs.shape[head_axis])
        gate[list(heads)] = 0
        return outputs * gate.view([-1 if axis == head_axis else 1 for axis in range(outputs.ndim)])


@contextmanager
def attention_calls(
    model: nn.Module, batch: int, zero: Mapping[int, Collection[int]] | None = None
) -> Iterator[AttentionCalls]:
    """Within this context a forward pass of the model on `batch` sentences, which must be `eager`, is recorded."""
    calls = AttentionCalls(zero or {})
    with ExitStack() as stack:
        products = stack.enter_context(_SoftmaxProducts(calls, batch))
        for file in {sys.modules[type(module).__module__] for module in model.modules()}:
            if (original := vars(file).get(EAGER)) is not None:
                stack.enter_context(patch.object(file, EAGER, _recorded(original, calls, products)))
        yield calls


def _recorded(original: Any, calls: AttentionCalls, products: _SoftmaxProducts) -> Any:
    def attend(module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        with products.paused():
            outputs, weights = original(module, Q, K, V, *args, **kwargs)  # [b i h v], [b h i j]
            return calls.add(_scaled(weights, outputs, V), outputs, 2), weights

    return attend


def _scaled(weights: Tensor, outputs: Tensor, V: Tensor) -> Tensor:
    """The weights with one factor for each query, where the outputs have it: a sink applied after softmax (Granite)."""
    Y = outputs.transpose(1, 2)
    if weights.shape[-1] != V.shape[2] or Y.shape[-1] != V.shape[-1]:
        return weights
    PV = weights @ V.repeat_interleave(weights.shape[1] // V.shape[1], 1)
    factor = ((Y * PV).sum(-1, keepdim=True) / (PV * PV).sum(-1, keepdim=True)).nan_to_num(1.0)
    return weights * factor if torch.allclose(factor * PV, Y, rtol=1e-5) else weights


class _SoftmaxProducts(TorchFunctionMode):
    """Finds the product of attention weights and values in a model's own code."""

    def __init__(self, calls: AttentionCalls, batch: int) -> None:
        super().__init__()
        self.calls, self.batch = calls, batch
        self.held: dict[int, Tensor] = {}
        """id of a tensor -> the tensor itself: it is kept, so that no other gets its id."""
        self.is_paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within this context nothing is followed."""
        self.is_paused = True
        try:
            yield
        finally:
            self.is_paused = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = func(*args, **(kwargs or {})), getattr(func, "__name__", "")
        if self.is_paused or not isinstance(result, Tensor) or not args:
            return result
        holds = id(args[0]) in self.held
        if name in PRODUCTS and holds:
            return self._product(args[0], result)
        if name == "einsum" and len(args) == 3 and id(args[1]) in self.held:
            letters, out = args[0].partition(",")[0], args[0].partition("->")[2]
            mixes_keys = len(letters) == 4 and {*letters} - {*out} == {letters[3]}  # b h i j, and no j in the result
            return self.calls.add(args[1], result, out.index(letters[1])) if mixes_keys else result
        unchanged = name in STILL_WEIGHTS and holds and result.shape[-1] == args[0].shape[-1]
        if unchanged or (name in SOFTMAX and result.ndim >= 3):
            self.held[id(result)] = result
        return result

    def _product(self, weights: Tensor, outputs: Tensor) -> Tensor:
        """Weights and outputs of shapes [b h i j] and [b h i v], or with b and h joined."""
        if weights.ndim == 4:
            return self.calls.add(weights, outputs, 1)
        split = (self.batch, -1)
        return self.calls.add(weights.unflatten(0, split), outputs.unflatten(0, split), 1).flatten(0, 1)
