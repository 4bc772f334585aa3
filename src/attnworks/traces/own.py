"""attnworks's own models, with their vocabularies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from attnworks.attention.heads import HeadWeights
from attnworks.core.errors import UsageError
from attnworks.core.sealed import best_of
from attnworks.models import Observation, Recurrent, Transformer
from attnworks.models.anatomy import BlockAnatomy, own_anatomy
from attnworks.models.decoding import greedy
from attnworks.models.decoding.translate import longest_target
from attnworks.text.tokenizers import VocabularyReader, decoder_row
from attnworks.text.tokens import TextBatch, TokenRow, collate_tokens
from attnworks.text.vocabulary import BOS, EOS, PAD, Vocabulary
from attnworks.traces.layer import LayerTrace, Slot
from attnworks.traces.subject import Examinee, Spectator, stacks_of, watching_streams, weight_readers
from attnworks.training.objectives.contract import Abilities, Outputs
from attnworks.training.trained import open_run


class OwnSubject:
    """A Transformer or a recurrent encoder-decoder of attnworks."""

    def __init__(self, model: Transformer | Recurrent, name: str = "model") -> None:
        self.name, self.model = name, model
        self.blocks: Sequence[BlockAnatomy] | None = own_anatomy(model)
        self.abilities = Abilities(_kind(model), vocabulary=True, end_id=EOS)
        self._readers = weight_readers(self.blocks)

    def again(self, model: nn.Module) -> OwnSubject:
        """The same subject with another model."""
        assert isinstance(model, Transformer | Recurrent)
        return OwnSubject(model, self.name)

    def run(self, batch: TextBatch, spectator: Spectator | None = None, *, scores: bool = False) -> Outputs:
        source, target = batch.source, batch.target
        given: Any = (source.ids, None, source.real, None)
        if self.abilities.kind == "decoder":
            given = (None, source.ids, None, source.real)
        elif target is not None:
            given = (source.ids, target.ids, source.real, target.real)
        if spectator is None:
            hidden = self.model.hidden(*given)
        elif isinstance(self.model, Recurrent) and self.model.attention is None:
            raise UsageError(
                asked=f"attention of {self.name}",
                expected="a model that attends",
                got="a recurrent network without attention",
                remedy="examine one that was built with a mechanism",
            )
        else:
            with watching_streams(stacks_of(self.blocks), batch, spectator):
                hidden = self.model.hidden(*given, observe=self._showing(batch, spectator))
        return Outputs(hidden, self.model.scores(hidden) if scores else None)

    def _showing(self, batch: TextBatch, spectator: Spectator):
        def show(seen: Observation) -> Tensor | None:
            return spectator.attention(own_trace(seen, batch, self._readers.get(Slot.parse(seen.slot))))

        return show


def own_trace(seen: Observation, batch: TextBatch, read_weights: Callable[[], HeadWeights] | None) -> LayerTrace:
    slot = Slot.parse(seen.slot)
    queries, keys = batch.sides(slot.kind)
    return LayerTrace(
        slot, seen.Q, seen.K, seen.V, seen.Y, seen.mask, seen.scale, queries, keys,
        X=seen.X, Z=seen.Z, read_weights=read_weights, bilinear=seen.scale is not None, weigh=lambda: seen.P,
        scoring=seen.scoring,
    )  # fmt: skip


def _kind(model: nn.Module) -> str:
    if isinstance(model, Recurrent):
        return "encoder-decoder"
    assert isinstance(model, Transformer)
    sides = [name for name, stack in (("encoder", model.encoder), ("decoder", model.decoder)) if len(stack)]
    return "-".join(sides)


def examinee_at(path: str, *, max_tokens: int | None, device: str, dtype: str) -> Examinee | None:
    """A training run; None for another path."""
    folder = Path(path)
    if not folder.is_dir() or best_of(folder) is None:
        return None
    trained = open_run(folder, device=device, dtype=dtype)
    return own_examinee(trained.model, (trained.source, trained.target), str(folder), max_tokens)


def examinee_with(model: Any, tokenizer: Any, name: str | None, max_tokens: int | None) -> Examinee | None:
    """A Transformer or a recurrent encoder-decoder; None for another model."""
    if not isinstance(model, Transformer | Recurrent):
        return None
    return own_examinee(model, tokenizer, name or type(model).__name__, max_tokens)


def own_examinee(
    model: Transformer | Recurrent,
    vocabularies: Vocabulary | tuple[Vocabulary, Vocabulary],
    name: str,
    max_tokens: int | None = None,
) -> Examinee:
    """A model of attnworks with one vocabulary, or one for each side."""
    if isinstance(vocabularies, Vocabulary):
        vocabularies = vocabularies, vocabularies
    if not isinstance(vocabularies, tuple):
        raise UsageError(
            asked=f"an examination of {name}",
            expected="the vocabulary of the model, or those of source and target",
            got=type(vocabularies).__name__,
            remedy="pass the Vocabulary, or the pair of them, that the model was trained with",
        )
    subject, longest = OwnSubject(model, name), model.config.longest
    source, target = vocabularies
    if subject.abilities.kind != "encoder-decoder":
        side = "target" if subject.abilities.kind == "decoder" else "source"
        own = target if side == "target" else source
        return Examinee(subject, VocabularyReader(own, side, longest, max_tokens), spell=(own.token, own.token))

    def write(model: Transformer | Recurrent, sources: Sequence[TokenRow]) -> list[TokenRow]:
        read = collate_tokens(sources, PAD).to(next(model.parameters()).device)
        cut = longest_target(read.ids.shape[1])
        cut = cut if longest is None else min(cut, longest - 1)
        written = greedy(model, read.ids, read.real, bos=BOS, eos=EOS, longest=cut)
        return [decoder_row(BOS, [token for token in found.tokens if token != EOS]) for found in written]

    return Examinee(
        subject,
        VocabularyReader(source, "source", longest, max_tokens),
        VocabularyReader(target, "target", longest, max_tokens),
        write,
        (source.token, target.token),
    )
