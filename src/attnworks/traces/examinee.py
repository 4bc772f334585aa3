"""Who is examined: a model, how it reads text, and what it would write where a target is missing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from attnworks.data.tokenizing import HuggingFaceReader, SideReader, VocabularyReader
from attnworks.data.tokens import TokenRow, collate_tokens
from attnworks.data.vocabulary import BOS, EOS, PAD, Vocabulary
from attnworks.decoding import greedy
from attnworks.decoding.translate import longest_target
from attnworks.errors import UsageError
from attnworks.hf.open import longest_input, open_pretrained
from attnworks.hf.subject import ForeignSubject
from attnworks.models import Recurrent, Transformer
from attnworks.storage.pointer import best_of
from attnworks.traces.adapted import AdaptedSubject, readers_of, unwritten
from attnworks.traces.own import OwnSubject
from attnworks.traces.subject import Subject
from attnworks.training.trained import open_run

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
    about: dict[str, Any] = field(default_factory=dict)


def open_examinee(path: str, *, max_tokens: int | None = None, device: str = "cpu", dtype: str = "float32") -> Examinee:
    """A training run of attnworks, or a model of Hugging Face: a folder, or an id if it is in the local cache."""
    folder = Path(path)
    if folder.is_dir() and best_of(folder) is not None:
        trained = open_run(folder, device=device, dtype=dtype)
        return own_examinee(trained.model, (trained.source, trained.target), str(folder), max_tokens)
    pretrained = open_pretrained(path, device=device, dtype=dtype)
    return foreign_examinee(pretrained.model, pretrained.tokenizer, pretrained.name, max_tokens)


def examinee_of(model: Any, tokenizer: Any, name: str | None = None, max_tokens: int | None = None) -> Examinee:
    """A model that is already in memory: ours with its vocabularies, or a Hugging Face one with its tokenizer."""
    if isinstance(model, Examinee):
        return model
    if isinstance(model, AdaptedSubject):
        source, target, spell = readers_of(model.abilities.kind, tokenizer, max_tokens)
        return Examinee(model, source, target, unwritten, spell)
    if isinstance(model, str | Path):
        return open_examinee(str(model), max_tokens=max_tokens)
    if isinstance(model, Transformer | Recurrent):
        return own_examinee(model, tokenizer, name or type(model).__name__, max_tokens)
    if isinstance(model, nn.Module) and hasattr(model, "set_attn_implementation"):
        return foreign_examinee(model, tokenizer, name or type(model).__name__, max_tokens)
    raise UsageError(
        asked="an examination",
        expected="a path, a Transformer or Recurrent of attnworks, or a Hugging Face model",
        got=type(model).__name__,
        remedy="show a module of your own through attnworks.traces.adapted",
    )


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
    subject, longest = OwnSubject(model, name), longest_input(model)
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
        return [_decoder_row(BOS, [token for token in found.tokens if token != EOS]) for found in written]

    return Examinee(
        subject,
        VocabularyReader(source, "source", longest, max_tokens),
        VocabularyReader(target, "target", longest, max_tokens),
        write,
        (source.token, target.token),
    )


def foreign_examinee(model: Any, tokenizer: Any, name: str, max_tokens: int | None = None) -> Examinee:
    if tokenizer is None:
        raise UsageError(
            asked=f"an examination of {name}",
            expected="a tokenizer beside the model",
            got="none",
            remedy="save the tokenizer into the same folder, or pass one in Python",
        )
    if (reads := getattr(model, "main_input_name", "input_ids")) != "input_ids":
        raise UsageError(
            asked=f"an examination of {name}",
            expected="a model that reads text",
            got=f"one that reads {reads}",
            remedy="choose another model, or show it through attnworks.traces.adapted",
        )
    mask_id = tokenizer.mask_token_id if isinstance(tokenizer.mask_token_id, int) else None
    subject, longest = ForeignSubject(model, name, mask_id), longest_input(model)
    reader = HuggingFaceReader(tokenizer, longest, max_tokens)
    words = _known_ids(model)
    if words is not None and reader.pad_id >= words:
        reader.pad_id = 0

    def spell(token: int) -> str:
        return tokenizer.convert_ids_to_tokens(token) or f"<{token}>"

    if subject.abilities.kind != "encoder-decoder":
        return Examinee(subject, reader, spell=(spell, spell), words=(words, words))
    start = _start_token(model, name)
    special = {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}

    def write(model: Any, sources: Sequence[TokenRow]) -> list[TokenRow]:
        if not getattr(model, "can_generate", lambda: False)():
            return [_decoder_row(start, row.text_ids) for row in sources]
        read = collate_tokens(sources, reader.pad_id).to(model.device)
        cut = read.ids.shape[1] + 10
        written = model.generate(
            read.ids,
            attention_mask=read.real.long(),
            max_new_tokens=cut if longest is None else min(cut, longest - 1),
            num_beams=1,
            do_sample=False,
            use_cache=_as_deep(model.config),
        )
        endings = _ids(model.generation_config.eos_token_id) | {reader.pad_id, tokenizer.eos_token_id}
        return [_decoder_row(start, _ended(row[1:], endings), special) for row in written.tolist()]

    target = _DecoderReader(tokenizer, start, longest, max_tokens)
    target.pad_id = reader.pad_id
    return Examinee(subject, reader, target, write, (spell, spell), (words, words))


class _DecoderReader(HuggingFaceReader):
    """Targets as a decoder of Hugging Face reads them: its start token, then the text without closing tokens."""

    def __init__(self, tokenizer: Any, start: int, longest: int | None, max_tokens: int | None) -> None:
        super().__init__(tokenizer, longest, max_tokens)
        self.start = start

    def read(self, side: Any) -> TokenRow:
        tokenizer: Any = self.tokenizer
        switch = getattr(tokenizer, "_switch_to_target_mode", None)
        if switch is None:
            return self._as_read(super().read(side))
        switch()
        try:
            return self._as_read(super().read(side))
        finally:
            tokenizer._switch_to_input_mode()

    def _as_read(self, row: TokenRow) -> TokenRow:
        closing = next((place for place, special in enumerate(reversed(row.special)) if not special), 0)
        kept = range(len(row) - closing)
        moved = {place: new for new, place in enumerate(kept, start=1)}
        head = None
        if row.head is not None:
            head = (-1, *(moved.get(row.head[place], -1) for place in kept))
        return replace(
            _decoder_row(self.start, [row.ids[place] for place in kept]),
            special=(True, *(row.special[place] for place in kept)),
            word=(-1, *(row.word[place] for place in kept)),
            head=head,
        )


def _decoder_row(start: int, ids: Sequence[int], special: Collection[int] = ()) -> TokenRow:
    added = [token in special for token in ids]
    words = [-1 if here else place for place, here in enumerate(added)]
    return TokenRow((start, *ids), (True, *added), (-1, *words))


def _ended(ids: Sequence[int], endings: Collection[int]) -> Sequence[int]:
    """What was written before the end, or the padding after it."""
    length = next((len(ids) - place for place, token in enumerate(reversed(ids)) if token not in endings), 0)
    return ids[:length]


def _known_ids(model: Any) -> int | None:
    try:
        return model.get_input_embeddings().num_embeddings
    except (AttributeError, NotImplementedError):
        return None


def _ids(found: Any) -> set[int]:
    return set(found) if isinstance(found, list | tuple) else {found}


def _as_deep(config: Any) -> bool:
    """Whether T5's decoder has the encoder's layers; transformers makes its cache for as many as the encoder has."""
    layers = getattr(config, "num_decoder_layers", None)
    return layers is None or layers == config.num_hidden_layers


def _start_token(model: Any, name: str) -> int:
    start = getattr(model.config, "decoder_start_token_id", None)
    if not isinstance(start, int):
        start = getattr(getattr(model, "generation_config", None), "decoder_start_token_id", None)
    if isinstance(start, int):
        return start
    raise UsageError(
        asked=f"what the decoder of {name} reads first",
        expected="decoder_start_token_id in config.json",
        got="none",
        remedy="add it to the config",
    )
