"""Subjects that are attnworks's own models, with their vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attnworks.attention.heads import HeadWeights
from attnworks.core.errors import FolderError, UsageError
from attnworks.core.folders import best_checkpoint, read_sealed, seal, sha256
from attnworks.core.places import Kind, Slot
from attnworks.models import Observation, Recurrent, Transformer
from attnworks.models.anatomy import BlockAnatomy, own_anatomy
from attnworks.models.decoding import greedy
from attnworks.models.decoding.translate import max_target_tokens
from attnworks.models.folder import half_precision_remark, load_model, write_model
from attnworks.text.tokenizers import VocabularyReader, decoder_row
from attnworks.text.tokens import Batch, TokenRow, collate
from attnworks.text.vocabulary import BOS, EOS, PAD, Vocabulary
from attnworks.traces.layer import LayerTrace
from attnworks.traces.streams import hook_streams, stacks_of
from attnworks.traces.subject import (
    VOCABULARIES_FILE,
    LayerHook,
    Subject,
    is_run,
)
from attnworks.training.objectives.contract import Abilities, Outputs
from attnworks.training.run_folder import (
    SOURCE_FILE,
    TARGET_FILE,
    check_vocabularies,
    load_vocabularies,
    read_recipe,
)


class OwnSubject(Subject):
    """A Transformer or a recurrent encoder-decoder of attnworks.

    vocabularies    of the source and of the target, or one for both; without them the subject runs on batches alone
    """

    model: Transformer | Recurrent  # pyright: ignore[reportIncompatibleVariableOverride]
    vocabularies: tuple[Vocabulary, Vocabulary]  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(
        self,
        model: Transformer | Recurrent,
        name: str = "model",
        vocabularies: Vocabulary | tuple[Vocabulary, Vocabulary] | None = None,
        *,
        max_length: int | None = None,
    ) -> None:
        self.name = name
        self._set_model(model)
        if vocabularies is not None:
            self._set_tokenizer(vocabularies, max_length)

    @classmethod
    def open(
        cls,
        path: str,
        *,
        device: str = "cpu",
        dtype: str = "float32",
        max_length: int | None = None,
        tokenizer: Any = None,
    ) -> OwnSubject:
        """The best checkpoint of a training run (the last one, if it was never validated), or a saved model.

        A model that was saved without vocabularies runs on batches, and reads text once it is given a tokenizer. A
        tokenizer takes the place of the vocabularies in the folder.
        """
        folder = Path(path)
        if not is_run(folder):
            vocabularies = _vocabularies(folder) if tokenizer is None else tokenizer
            return cls._in(load_model(folder), folder.name, vocabularies, device, dtype, max_length)
        read_recipe(folder)
        checkpoint = best_checkpoint(folder)
        if checkpoint is None:
            remedy = f"train it first: attnworks train --resume {folder}"
            raise FolderError(f"open the run {folder}", "a checkpoint", "none yet", remedy)
        vocabularies = load_vocabularies(folder) if tokenizer is None else tokenizer
        return cls._in(load_model(checkpoint), str(folder), vocabularies, device, dtype, max_length)

    @classmethod
    def _in(
        cls, model: nn.Module, name: str, vocabularies: Any, device: str, dtype: str, max_length: int | None
    ) -> OwnSubject:
        """The model on this device and in this type, in evaluation mode."""
        if not isinstance(model, Transformer | Recurrent):
            got, remedy = "a network on vectors", "open it with attnworks.models.folder.load_model"
            raise UsageError("open a model", "a model that reads tokens", got, remedy)
        stored, opened = next(model.parameters()).dtype, getattr(torch, dtype)
        subject = cls(model.to(device=device, dtype=opened).eval(), name, vocabularies, max_length=max_length)
        subject.remarks = half_precision_remark(stored, opened)
        return subject

    def _write(self, folder: Path) -> None:
        write_model(self.model, folder)
        if self.source is not None:
            hashes = {}
            for vocabulary, name in zip(self.vocabularies, (SOURCE_FILE, TARGET_FILE), strict=True):
                vocabulary.save(folder / name)
                hashes[name] = sha256((folder / name).read_bytes())
            (folder / VOCABULARIES_FILE).write_bytes(seal(hashes))

    def _set_model(self, model: nn.Module) -> None:
        assert isinstance(model, Transformer | Recurrent)
        self.model = model  # pyright: ignore[reportIncompatibleVariableOverride]
        self.blocks = own_anatomy(model)
        self.abilities = Abilities(_kind(model), vocabulary=True, end_id=EOS)
        self._weight_readers = _weight_readers(self.blocks)

    def _set_tokenizer(self, tokenizer: Any, max_length: int | None) -> None:
        both = (tokenizer, tokenizer) if isinstance(tokenizer, Vocabulary) else tokenizer
        if not isinstance(both, tuple):
            expected = "the vocabulary of the model, or those of source and target"
            got = "none" if tokenizer is None else type(tokenizer).__name__
            remedy = "pass tokenizer=..., the Vocabulary, or the pair of them, that the model was trained with"
            raise UsageError(f"text for {self.name}", expected, got, remedy)
        self.vocabularies = both  # pyright: ignore[reportIncompatibleVariableOverride]
        side = "target" if self.abilities.kind == "decoder" else "source"
        self.source = VocabularyReader(both[side == "target"], side, self.max_length, max_length)
        if self.abilities.kind == "encoder-decoder":
            self.target = VocabularyReader(both[1], "target", self.max_length, max_length)

    def _head_counts(self) -> dict[Slot, int]:
        if isinstance(self.model, Recurrent):
            return {} if self.model.attention is None else {Slot("cross", 0): 1}
        return super()._head_counts()

    @property
    def _attention_kinds(self) -> set[Kind]:
        return {"cross"} if isinstance(self.model, Recurrent) else super()._attention_kinds

    @property
    def max_length(self) -> int | None:
        return self.model.config.max_positions

    def write_targets(self, sources: Sequence[TokenRow]) -> list[TokenRow]:
        """Greedily."""
        read = collate(sources, PAD).to(self.device)
        cut = max_target_tokens(read.ids.shape[1])
        cut = cut if self.max_length is None else min(cut, self.max_length - 1)
        written = greedy(self.model, read.ids, read.real, bos=BOS, eos=EOS, max_new_tokens=cut)
        return [decoder_row(BOS, [token for token in found.tokens if token != EOS]) for found in written]

    def _run(self, batch: Batch, hook: LayerHook | None, *, logits: bool) -> Outputs:
        source, target = batch.source, batch.target
        given: Any = (source.ids, None, source.real, None)
        if self.abilities.kind == "decoder":
            given = (None, source.ids, None, source.real)
        elif target is not None:
            given = (source.ids, target.ids, source.real, target.real)
        if hook is None:
            hidden = self.model.hidden(*given)
        elif isinstance(self.model, Recurrent) and self.model.attention is None:
            expected, remedy = "a model that attends", "examine one with a mechanism"
            raise UsageError(f"attention of {self.name}", expected, "one without", remedy)
        else:
            with hook_streams(stacks_of(self.blocks), batch, hook):
                hidden = self.model.hidden(*given, observe=partial(self._observe, batch, hook))
        return Outputs(hidden, self.model.logits(hidden) if logits else None)

    def _observe(self, batch: Batch, hook: LayerHook, seen: Observation) -> Tensor | None:
        return hook.attention(
            LayerTrace(
                seen.slot, seen.Q, seen.K, seen.V, seen.Y, seen.mask, seen.scale, *batch.sides(seen.slot.kind),
                X=seen.X, Z=seen.Z, read_weights=self._weight_readers.get(seen.slot), weigh=lambda: seen.P,
                bilinear=seen.scale is not None, scoring=seen.scoring,
            )
        )  # fmt: skip


def _vocabularies(folder: Path) -> tuple[Vocabulary, Vocabulary] | None:
    """The vocabularies that were saved beside a model, if there are any."""
    if not (folder / VOCABULARIES_FILE).is_file():
        return None
    return check_vocabularies(folder, read_sealed(folder / VOCABULARIES_FILE))


def _kind(model: Transformer | Recurrent) -> str:
    if isinstance(model, Recurrent):
        return "encoder-decoder"
    sides = [name for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)) if len(stack)]
    return "-".join(sides)


def _weight_readers(blocks: Sequence[BlockAnatomy] | None) -> dict[Slot, Callable[[], HeadWeights]]:
    """Attention layer -> function that reads its weights as they are when it is called."""
    return {
        block.slot(part): part.weights for block in blocks or () for part in block.parts if part.weights is not None
    }
