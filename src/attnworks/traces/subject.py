"""A model, how it reads text, and how it is run and observed; the same for models of any origin."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from attnworks.attention.heads import HeadWeights
from attnworks.core.errors import UsageError
from attnworks.models.anatomy import BlockAnatomy
from attnworks.text.tokenizers import SideReader
from attnworks.text.tokens import Kind, TextBatch, TokenRow
from attnworks.traces.layer import LayerTrace, Slot, StreamTrace
from attnworks.training.objectives.contract import Abilities, Outputs


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


Write = Callable[[Any, Sequence[TokenRow]], list[TokenRow]]


@dataclass(frozen=True, eq=False)
class Examinee:
    """A subject and its readers.

    source, target   readers of the two sides; a model of one side has no target reader
    write            what a model like this one would write for these sources, as the decoder reads it
    spell            token id -> token, of the source (or only) side and of the target
    words            how many token ids the model knows, on either side
    """

    subject: Subject
    source: SideReader
    target: SideReader | None = None
    write: Write | None = None
    spell: tuple[Callable[[int], str], Callable[[int], str]] = (str, str)
    words: tuple[int | None, int | None] = (None, None)


KINDS = ("attnworks.traces.own", "attnworks.traces.adapted", "attnworks.hf.subject")
"""Modules that know a kind of subject, in the order in which they are asked; the last one opens what no other does.

Each has `examinee_at(path, ...)`, which opens a path, and `examinee_with(model, tokenizer, ...)` for a model in memory;
both return None for what is of another kind. The package hf stands above this one, and so they are named as text.
"""


def open_examinee(path: str, *, max_tokens: int | None = None, device: str = "cpu", dtype: str = "float32") -> Examinee:
    """A training run of attnworks, or a model of Hugging Face: a folder, or an id if it is in the local cache."""
    for kind in KINDS:
        found = importlib.import_module(kind).examinee_at(path, max_tokens=max_tokens, device=device, dtype=dtype)
        if found is not None:
            return found
    raise _of_no_kind(repr(path))


def examinee_of(model: Any, tokenizer: Any, name: str | None = None, max_tokens: int | None = None) -> Examinee:
    """A model that is already in memory: ours with its vocabularies, or a Hugging Face one with its tokenizer."""
    if isinstance(model, Examinee):
        return model
    if isinstance(model, str | Path):
        return open_examinee(str(model), max_tokens=max_tokens)
    for kind in KINDS:
        found = importlib.import_module(kind).examinee_with(model, tokenizer, name, max_tokens)
        if found is not None:
            return found
    raise _of_no_kind(type(model).__name__)


def _of_no_kind(got: str) -> UsageError:
    return UsageError(
        asked="an examination",
        expected="a path, a Transformer or Recurrent of attnworks, or a Hugging Face model",
        got=got,
        remedy="show a module of your own through attnworks.traces.adapted",
    )


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


def weight_readers(blocks: Sequence[BlockAnatomy] | None) -> dict[Slot, Callable[[], HeadWeights]]:
    """What reads the weights of each attention layer as they are when it is called."""
    return {
        Slot("cross" if part.role == "cross" else block.kind, block.layer): part.weights
        for block in blocks or ()
        for part in block.parts
        if part.weights is not None
    }


def stacks_of(blocks: Sequence[BlockAnatomy] | None) -> Stacks:
    if blocks is None:
        return {}
    kinds: tuple[Kind, ...] = ("encoder", "decoder")
    by_kind: dict[Kind, list[nn.Module]] = {
        kind: [block.module for block in blocks if block.kind == kind] for kind in kinds
    }
    return {kind: modules for kind, modules in by_kind.items() if modules}
