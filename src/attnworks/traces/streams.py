"""Report the residual stream before and after every block to a hook while a model runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from attnworks.core.places import Kind
from attnworks.models.anatomy import BlockAnatomy
from attnworks.text.tokens import Batch
from attnworks.traces.layer import LayerHook, StreamTrace, first, stream_read

Stacks = Mapping[Kind, Sequence[nn.Module]]
"""The modules of each stack of blocks, in order."""


@contextmanager
def hook_streams(stacks: Stacks, batch: Batch, hook: LayerHook) -> Iterator[None]:
    """Report the stream of every block to the hook. A module may serve several layers, so that runs are counted."""
    with ExitStack() as hooks:
        for kind, modules in stacks.items():
            reporter = _StreamReporter(kind, batch, hook)
            for module in dict.fromkeys(modules):
                hooks.enter_context(module.register_forward_pre_hook(reporter.entered, with_kwargs=True))
                hooks.enter_context(module.register_forward_hook(reporter.left))
        yield


class _StreamReporter:
    """Counts the blocks of one stack as they run."""

    def __init__(self, kind: Kind, batch: Batch, hook: LayerHook) -> None:
        self.kind: Kind = kind
        self.depth, self.hook = 0, hook
        self.tokens, _ = batch.sides(kind)

    def entered(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.depth == 0:
            self.report(stream_read(args, kwargs))

    def left(self, _: nn.Module, __: Any, output: Any) -> None:
        self.report(first(output))

    def report(self, X: Tensor) -> None:
        self.hook.stream(StreamTrace(self.kind, self.depth, X, self.tokens))
        self.depth += 1


def stacks_of(blocks: Sequence[BlockAnatomy] | None) -> Stacks:
    stacks: dict[Kind, list[nn.Module]] = {}
    for block in blocks or ():
        stacks.setdefault(block.kind, []).append(block.module)
    return stacks
