"""A model together with how it is run and looked into; the same for own models, Hugging Face's and a user's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from attnworks.data.text_batch import Kind, TextBatch
from attnworks.models.anatomy import BlockAnatomy
from attnworks.objectives.text import Abilities, Outputs
from attnworks.traces.layer import LayerTrace, StreamTrace


class Spectator:
    """Is shown one layer at a time while a model runs. This class ignores all; subclasses override what they need."""

    def attention(self, trace: LayerTrace) -> Tensor | None:
        """A tensor that is returned takes the place of Y."""

    def stream(self, stream: StreamTrace) -> None:
        """The residual stream before the first block and after every block."""


@runtime_checkable
class Subject(Protocol):
    """A model under examination.

    blocks    its anatomy, or None where the parts are not known; reduced while it runs without some parts
    run       one forward pass without gradients being switched on or off; with `scores`, the model's own head included
    """

    blocks: Sequence[BlockAnatomy] | None

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> nn.Module: ...

    @property
    def abilities(self) -> Abilities: ...

    def run(self, batch: TextBatch, spectator: Spectator | None = None, *, scores: bool = False) -> Outputs: ...


Stacks = Mapping[Kind, Sequence[nn.Module]]
"""The modules of each stack of blocks, in order."""


@contextmanager
def watching_streams(stacks: Stacks, batch: TextBatch, spectator: Spectator) -> Iterator[None]:
    """Show the stream of every block to the spectator. A module that serves several layers is told by its turn."""
    with ExitStack() as hooks:
        for kind, modules in stacks.items():
            depth = _Depth(kind, batch, spectator)
            for module in dict.fromkeys(modules):
                for handle in (
                    module.register_forward_pre_hook(depth.entered, with_kwargs=True),
                    module.register_forward_hook(depth.left),
                ):
                    hooks.callback(handle.remove)
        yield


class _Depth:
    """Counts the blocks of one stack as the stream passes them."""

    def __init__(self, kind: Kind, batch: TextBatch, spectator: Spectator) -> None:
        self.kind: Kind = kind
        self.depth, self.spectator = 0, spectator
        self.tokens, _ = batch.sides(kind)

    def entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del module
        if self.depth == 0:
            self.show(args[0] if args else kwargs["hidden_states"])

    def left(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        self.show(first(output))

    def show(self, X: Tensor) -> None:
        self.spectator.stream(StreamTrace(self.kind, self.depth, X, self.tokens))
        self.depth += 1


def first(output: Any) -> Tensor:
    """What a module gives, or the first of several things."""
    return output[0] if isinstance(output, tuple) else output
