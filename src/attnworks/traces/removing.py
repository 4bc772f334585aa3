"""A network without its skip connections, MLPs or norms, as in the experiments on rank collapse."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from attnworks.errors import UsageError
from attnworks.models.anatomy import BlockAnatomy, Part
from attnworks.registry import unknown_name
from attnworks.traces.subject import Subject, first

REMOVABLE = ("skip", "mlp", "norm")


@contextmanager
def without(subject: Subject, removed: Collection[str]) -> Iterator[None]:
    """Run the subject without these parts of every block, for a while.

    norm    gives back what it is given
    mlp     adds nothing, and its post-norm goes with it
    skip    the branch takes away the stream that the block will add to it; exact up to the rounding of one sum, so that
            such networks are best run in float64, where differences of 1e-7 between tokens still mean something
    Source: Xie 2021, section 2 (S0.15-S0.20); the rank post (S1.16).
    """
    for name in removed:
        if name not in REMOVABLE:
            raise unknown_name("part to run without", name, REMOVABLE)
    if removed and subject.blocks is None:
        raise UsageError(
            asked=f"{subject.name} without {', '.join(removed)}",
            expected="a model whose blocks are known",
            got=type(subject.model).__name__,
            remedy="leave --without out, or examine a model of a known family",
        )
    with ExitStack() as hooks:
        if removed:
            blocks = list({block.module: block for block in subject.blocks or ()}.values())
            for block in blocks:
                _Reduced(block, frozenset(removed)).install(hooks)
        yield


class _Reduced:
    """One block with parts taken out by hooks; it follows the stream through the block to know what skips add."""

    def __init__(self, block: BlockAnatomy, removed: frozenset[str]) -> None:
        self.block, self.removed = block, removed
        self.stream: Tensor | None = None
        self.mlp_off = "mlp" in removed

    def install(self, hooks: ExitStack) -> None:
        handles: list[Any] = [self.block.module.register_forward_pre_hook(self._entered, with_kwargs=True)]
        for part in self.block.parts:
            handles.append(part.branch.register_forward_hook(self._branch(part)))
            if part.norm is not None:
                handles.append(part.norm.register_forward_hook(self._norm(part)))
        for handle in handles:
            hooks.callback(handle.remove)

    def _entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del module
        self.stream = args[0] if args else kwargs["hidden_states"]

    def _branch(self, part: Part):
        def hook(module: nn.Module, args: Any, output: Any) -> Any:
            del module, args
            Y = first(output)
            if part.role == "mlp" and self.mlp_off:
                return _with_first(output, Y.new_zeros(Y.shape))
            if "skip" in self.removed and self.block.skip and self.stream is not None:
                alone, Y = Y, Y - self.stream.reshape(Y.shape)
                self.stream = self.stream.new_zeros(()).expand(self.stream.shape) if self.block.parallel else alone
            elif not self.block.parallel and self.stream is not None:
                self.stream = self.stream + Y.reshape(self.stream.shape) if self.block.skip else Y
            return _with_first(output, Y)

        return hook

    def _norm(self, part: Part):
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            del module
            gone = "norm" in self.removed or (part.role == "mlp" and self.mlp_off and self.block.norm == "post")
            given = args[0]
            if self.block.norm == "post":
                self.stream = given if gone else first(output)
            return given if gone else output

        return hook


def _with_first(output: Any, Y: Tensor) -> Any:
    return (Y, *output[1:]) if isinstance(output, tuple) else Y
