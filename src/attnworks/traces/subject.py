"""A model, how it reads text, and how it is run and observed; the same for models of any origin."""

from __future__ import annotations

import copy
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from attnworks.attention.heads import HeadWeights
from attnworks.core.errors import UsageError
from attnworks.core.folders import BEST_POINTER, LAST_POINTER
from attnworks.core.places import Kind, Slot
from attnworks.models import Recurrent, Transformer
from attnworks.models.anatomy import BlockAnatomy
from attnworks.text.passages import Passage
from attnworks.text.tokenizers import TextReader
from attnworks.text.tokens import Batch, TokenRow
from attnworks.traces.layer import LayerTrace, StreamTrace
from attnworks.traces.text import TokenizedText
from attnworks.training.objectives.contract import Abilities, Outputs

SubjectT = TypeVar("SubjectT", bound="Subject")
Side = Literal["source", "target"]
OWN_SUBJECT, HF_SUBJECT = "attnworks.traces.own.OwnSubject", "attnworks.hf.subject.HFSubject"
"""Kinds of subject that open paths and wrap models. The package hf stands above this one, hence text."""

TARGETS_WRITTEN_AT_ONCE = 32


class LayerHook:
    """Is shown one layer at a time while a model runs. This class ignores all; subclasses override what they need."""

    def attention(self, trace: LayerTrace) -> Tensor | None:
        """A tensor that is returned takes the place of Y."""

    def stream(self, stream: StreamTrace) -> None:
        """The residual stream before the first block and after every block."""


class Subject(ABC):
    """A model, how it reads text, and how it is run and observed. Subjects are compared by identity.

    name        what messages and reports call the model
    abilities   what an objective may ask of the model
    source      reads the source, or only, side of a text; None for a subject that runs on batches alone
    target      reads the target of an encoder-decoder
    blocks      the anatomy of the model, or None if it is not known; reduced while the model runs without some parts
    """

    can_reshape: ClassVar[bool] = True
    heal_rate: ClassVar[float] = 3e-4
    """The learning rate of healing, unless another is given."""

    name: str
    model: nn.Module
    abilities: Abilities
    source: TextReader | None = None
    target: TextReader | None = None
    blocks: Sequence[BlockAnatomy] | None = None

    @abstractmethod
    def run(self, batch: Batch, hook: LayerHook | None = None, *, logits: bool = False) -> Outputs:
        """One forward pass, which switches gradients neither on nor off; with `logits`, the output layer runs too."""

    def with_model(self: SubjectT, model: nn.Module) -> SubjectT:
        """The same subject with another model, whose blocks are found anew. Readers are shared."""
        new = copy.copy(self)
        new._set_model(model)
        return new

    def with_tokenizer(self: SubjectT, tokenizer: Any, max_length: int | None = None) -> SubjectT:
        """The same subject, which reads text with this tokenizer or vocabulary."""
        new = copy.copy(self)
        new._set_tokenizer(tokenizer, max_length)
        return new

    @abstractmethod
    def _set_model(self, model: nn.Module) -> None:
        """Set `model` and all that follows from it."""

    @abstractmethod
    def _set_tokenizer(self, tokenizer: Any, max_length: int | None) -> None:
        """Set `source`, `target` and all that follows from them."""

    @property
    def max_length(self) -> int | None:
        """How many positions the model has; None if nothing limits them."""
        return None

    @property
    def vocabulary_sizes(self) -> tuple[int | None, int | None]:
        """How many token ids the model knows on either side, where that is checked."""
        return None, None

    @property
    def example_text(self) -> str | None:
        """A sentence that suits the model; None if one of the embedded corpus does."""
        return None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def has_logits(self) -> bool:
        """Whether the model has an output layer, over a vocabulary or over classes."""
        return self.abilities.vocabulary or self.abilities.classes is not None

    def token(self, id: int, side: Side = "source") -> str:
        """The token with this id, of the source or only side, or of the target."""
        return (self.target if side == "target" and self.target is not None else self._reader).token(id)

    def cut_to(self: SubjectT, max_length: int | None) -> SubjectT:
        """The same subject, which cuts texts with more than `max_length` tokens."""
        new = copy.copy(self)
        new.source, new.target = (copy.copy(reader) for reader in (self.source, self.target))
        for reader in (new.source, new.target):
            if reader is not None:
                reader.max_tokens = max_length
        return new

    def with_targets(self: SubjectT, rows: Sequence[TokenRow]) -> SubjectT:
        """The same subject, which takes these rows for the targets that it would write."""
        new = copy.copy(self)
        vars(new)["write_targets"] = lambda sources: [row for row, _ in zip(rows, sources, strict=True)]
        return new

    def write_targets(self, sources: Sequence[TokenRow]) -> list[TokenRow]:
        """What the model writes for these sources, as its decoder reads it."""
        raise UsageError(
            f"targets of {len(sources)} sources",
            "passages with a target each",
            "sources alone",
            "give pairs of texts",
        )

    def read(self, passages: Sequence[Passage], *, batch_tokens: int) -> TokenizedText:
        """The tokens of every passage, in batches; where a target is needed and missing, the model writes it."""
        reader = self._reader
        sides, pads, written = [[reader.read(passage.source) for passage in passages]], [reader.pad_id], 0
        if self.target is not None:
            targets = [None if passage.target is None else self.target.read(passage.target) for passage in passages]
            missing = [index for index, row in enumerate(targets) if row is None]
            for start in range(0, len(missing), TARGETS_WRITTEN_AT_ONCE):
                chosen = missing[start : start + TARGETS_WRITTEN_AT_ONCE]
                rows = self.write_targets([sides[0][index] for index in chosen])
                for index, row in zip(chosen, rows, strict=True):
                    targets[index] = row
            sides.append([row for row in targets if row is not None])
            pads.append(self.target.pad_id)
            written = len(missing)
        self.check_ids(sides)
        return TokenizedText.of_rows(sides, pads, batch_tokens=batch_tokens, written=written)

    def check_ids(self, sides: Sequence[Sequence[TokenRow]]) -> None:
        """Refuse rows with token ids that the model does not know."""
        for rows, size in zip(sides, self.vocabulary_sizes, strict=False):
            largest = max((token for row in rows for token in row.ids), default=0)
            if size is not None and largest >= size:
                raise UsageError(
                    f"tokens for {self.name}",
                    f"ids below {size:,}",
                    f"{largest:,}",
                    "use the tokenizer of the model",
                )

    @property
    def _reader(self) -> TextReader:
        if self.source is not None:
            return self.source
        raise UsageError(
            f"text for {self.name}",
            "a tokenizer or vocabulary beside the model",
            "none",
            "pass one as tokenizer=",
        )


def open_subject(path: str, *, device: str = "cpu", dtype: str = "float32", max_length: int | None = None) -> Subject:
    """A training run of attnworks, or a model of Hugging Face: a folder, or an id if it is in the local cache.

    The folder of a run has best.json or last.json. Only the module of the kind that opens the path is imported.
    Texts with more than `max_length` tokens are cut; without it, what is too long for the model is refused.
    """
    is_run = any(os.path.lexists(Path(path) / pointer) for pointer in (BEST_POINTER, LAST_POINTER))
    kind = _kind(OWN_SUBJECT if is_run else HF_SUBJECT)
    return kind.open(path, device=device, dtype=dtype, max_length=max_length)


def wrap(model: Any, tokenizer: Any = None, name: str | None = None, max_length: int | None = None) -> Subject:
    """A model that is in memory, with its tokenizer or its vocabularies; a path; or a subject, which stays as it is.

    A subject that cannot read text yet reads it with the tokenizer. Texts with more than `max_length` tokens are cut.
    """
    if isinstance(model, Subject):
        return model.with_tokenizer(tokenizer, max_length) if model.source is None else model
    if isinstance(model, str | Path):
        return open_subject(str(model), max_length=max_length)
    named = type(model).__name__ if name is None else name
    if isinstance(model, Transformer | Recurrent):
        return _kind(OWN_SUBJECT)(model, named).with_tokenizer(tokenizer, max_length)
    if isinstance(model, nn.Module) and hasattr(model, "set_attn_implementation"):
        return _kind(HF_SUBJECT)(model, named).with_tokenizer(tokenizer, max_length)
    raise UsageError(
        "an examination",
        "a path, or a model of attnworks or Hugging Face",
        named,
        "use attnworks.traces.adapted for others",
    )


def _kind(name: str) -> Any:
    module, _, kind = name.rpartition(".")
    return getattr(importlib.import_module(module), kind)


Stacks = Mapping[Kind, Sequence[nn.Module]]
"""The modules of each stack of blocks, in order."""


@contextmanager
def hook_streams(stacks: Stacks, batch: Batch, hook: LayerHook) -> Iterator[None]:
    """Show the stream of every block to the hook. A module that serves several layers is told by its turn."""
    with ExitStack() as hooks:
        for kind, modules in stacks.items():
            depth = _StreamReporter(kind, batch, hook)
            for module in dict.fromkeys(modules):
                for handle in (
                    module.register_forward_pre_hook(depth.entered, with_kwargs=True),
                    module.register_forward_hook(depth.left),
                ):
                    hooks.callback(handle.remove)
        yield


class _StreamReporter:
    """Counts the blocks of one stack as the stream passes them."""

    def __init__(self, kind: Kind, batch: Batch, hook: LayerHook) -> None:
        self.kind: Kind = kind
        self.depth, self.hook = 0, hook
        self.tokens, _ = batch.sides(kind)

    def entered(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        del module
        if self.depth == 0:
            self.show(args[0] if args else kwargs["hidden_states"])

    def left(self, module: nn.Module, args: Any, output: Any) -> None:
        del module, args
        self.show(first(output))

    def show(self, X: Tensor) -> None:
        self.hook.stream(StreamTrace(self.kind, self.depth, X, self.tokens))
        self.depth += 1


def first(output: Any) -> Tensor:
    """What a module gives, or the first of several things."""
    return output[0] if isinstance(output, tuple) else output


def weight_readers(blocks: Sequence[BlockAnatomy] | None) -> dict[Slot, Callable[[], HeadWeights]]:
    """What reads the weights of each attention layer as they are when it is called."""
    return {
        block.slot(part): part.weights for block in blocks or () for part in block.parts if part.weights is not None
    }


def stacks_of(blocks: Sequence[BlockAnatomy] | None) -> Stacks:
    if blocks is None:
        return {}
    kinds: tuple[Kind, ...] = ("encoder", "decoder")
    by_kind: dict[Kind, list[nn.Module]] = {
        kind: [block.module for block in blocks if block.kind == kind] for kind in kinds
    }
    return {kind: modules for kind, modules in by_kind.items() if modules}
