"""One forward pass, cut into short graphs.

Every module with a matrix, and every call of attention, hands on a detached copy of its output, a leaf. What autograd
records is then one short graph from leaf to leaf: each tensor depends on the leaves that it is directly made of. Exact
zeros of vector-Jacobian products in these graphs say which column reaches which head, in any layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnworks.attention import Mask
from attnworks.hf.attention_hook import attention_hook
from attnworks.hf.observe import observe_interface
from attnworks.hf.softmax_observer import observe_softmax


@dataclass(frozen=True, eq=False)
class ModuleCall:
    """One call of a module with a matrix.

    input     what it read, with its graph; None if it read no numbers (an embedding)
    output    what it computed, without a graph
    leaf      what it handed on
    time      position among all calls of the pass
    """

    path: str
    module: nn.Module
    input: Tensor | None
    output: Tensor
    leaf: Tensor
    time: int


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """One call of attention, with the graphs of what it read and computed; `leaf` is what it handed on in place of Y.

    options    what the model gave besides: scaling, softcap, s_aux and others
    """

    path: str
    module: nn.Module
    Q: Float[Tensor, "b h i k"]
    K: Float[Tensor, "b g j k"]
    V: Float[Tensor, "b g j v"]
    Y: Float[Tensor, "b h i v"]
    leaf: Float[Tensor, "b h i v"]
    mask: Mask
    options: Mapping[str, Any]
    time: int


@dataclass(eq=False)
class CutPass:
    """All calls of one cut forward pass, and the parameters that are in no module with a matrix."""

    modules: list[ModuleCall] = field(default_factory=list)
    attention: list[AttentionCall] = field(default_factory=list)
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)


def has_matrix(module: nn.Module) -> bool:
    """Whether a module without other parameters inside has a matrix: a linear map, an embedding, a convolution.

    A linear map of attnworks may have a matrix without storing it (`matrix_of`). A norm with a weight and a bias for
    each channel of each head (Chameleon) has none.
    """
    if hasattr(module, "linear_map"):
        return True
    own = list(module.parameters(recurse=False))
    if len(own) == 2 and own[0].shape == own[1].shape:
        return False
    return any(p.dim() >= 2 and p.is_floating_point() for p in own) and len(own) == sum(1 for _ in module.parameters())


@contextmanager
def cut_pass(model: nn.Module, run: Callable[[], object]) -> Iterator[CutPass]:
    """Run the model once, in `run()`, with its graph cut, to look into inside the context.

    Afterwards parameters, gradients and hooks are as they were before.
    """
    cut = CutPass()
    matrices = {module: path for path, module in model.named_modules() if has_matrix(module)}
    inside = {id(parameter) for module in matrices for parameter in module.parameters()}
    named = {path: parameter for path, parameter in model.named_parameters() if parameter.is_floating_point()}
    cut.parameters = {path: parameter for path, parameter in named.items() if id(parameter) not in inside}
    recorder = _Recorder(cut, matrices, {module: path for path, module in model.named_modules()})
    with _requiring_gradients(named.values(), cut.parameters.values()), torch.enable_grad():
        with ExitStack() as stack:
            for module in matrices:
                stack.enter_context(module.register_forward_hook(recorder.module, with_kwargs=True, prepend=True))
            stack.enter_context(observe_interface(model))
            stack.enter_context(observe_softmax(model))
            stack.enter_context(attention_hook(recorder.attention))
            run()
        yield cut


class _Recorder:
    def __init__(self, cut: CutPass, matrices: Mapping[nn.Module, str], paths: Mapping[nn.Module, str]) -> None:
        self.cut, self.matrices, self.paths = cut, matrices, paths
        self.time = 0

    def _now(self) -> int:
        self.time += 1
        return self.time

    def module(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        """A forward hook: records the call and replaces the first tensor of the output."""
        made = first_floats(output)
        if made is None:
            return None
        leaf, read = leaf_of(made), first_floats([*args, *kwargs.values()])
        self.cut.modules.append(ModuleCall(self.matrices[module], module, read, made.detach(), leaf, self._now()))
        return replaced(output, made, leaf.clone())

    def attention(
        self, module: nn.Module, Q: Tensor, K: Tensor, V: Tensor, mask: Mask, Y: Tensor, options: dict[str, Any]
    ) -> Tensor | None:
        if module not in self.paths:
            return None
        leaf = leaf_of(Y)
        call = AttentionCall(self.paths[module], module, Q, K, V, Y, leaf, mask, dict(options), self._now())
        self.cut.attention.append(call)
        return leaf.clone()


@contextmanager
def _requiring_gradients(every: Iterable[nn.Parameter], wanted: Iterable[nn.Parameter]) -> Iterator[None]:
    """Within this context only these parameters require gradients."""
    before = [(parameter, parameter.requires_grad) for parameter in every]
    try:
        for parameter, _ in before:
            parameter.requires_grad_(False)
        for parameter in wanted:
            parameter.requires_grad_(True)
        yield
    finally:
        for parameter, required in before:
            parameter.requires_grad_(required)


def first_floats(value: Any) -> Tensor | None:
    """The first tensor of floating-point numbers in a value, a tuple of values or an output of transformers."""
    if isinstance(value, Tensor):
        return value if value.is_floating_point() and value.dim() else None
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return next((found for found in map(first_floats, value) if found is not None), None)
    return None


def leaf_of(made: Tensor) -> Tensor:
    """A copy of a tensor without its graph, to which gradients can be taken."""
    return made.detach().clone().requires_grad_(True)


def replaced(output: Any, old: Tensor, new: Tensor) -> Any:
    """The output of a module with one tensor replaced; the same object where that is not possible."""
    if output is old:
        return new
    if type(output) in (tuple, list):
        return type(output)(new if item is old else item for item in output)
    return output
