"""Text -> rows of tokens, by the tokenizers of Hugging Face models and by the vocabularies of attnworks.

Tokens are those that a model reads in the running text. They find their words by the letters they stand for, whether or
not the tokenizer cuts where the words end: a token belongs to the word that most of its letters come from, and one that
stands for blanks alone to the word that follows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from attnworks.core.errors import UsageError
from attnworks.text.passages import Side, without_blanks
from attnworks.text.tokens import NONE, TokenRow
from attnworks.text.vocabulary import BOS, EOS, PAD, Vocabulary
from attnworks.text.words import words

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FEWEST = 2
"""A row with fewer tokens of text leaves attention no choice."""

Span = tuple[int, int]
Spell = Callable[[int], str]


class Pieces(NamedTuple):
    """The tokens of a text, the word of each, and the first token of every word that has one."""

    ids: Sequence[int]
    special: Sequence[bool]
    word: Sequence[int]
    first: Mapping[int, int]


class SideReader(ABC):
    """Reads one side of a passage.

    specials    tokens that are added to every text
    longest     the positions of the model, None if it takes any length
    max_tokens  where longer texts are cut, special tokens at their end kept; without it they are refused
    """

    pad_id: int
    knows_words: bool = True

    def __init__(self, specials: int, longest: int | None = None, max_tokens: int | None = None) -> None:
        self.longest, self.max_tokens = longest, max_tokens
        if max_tokens is None:
            return
        fewest = specials + FEWEST
        if max_tokens < fewest or (longest is not None and max_tokens > longest):
            raise UsageError(
                asked=f"--max-tokens {max_tokens}",
                expected=f"at least {fewest} (with {specials} special)"
                + (f" and at most the {longest:,} positions of the model" if longest is not None else ""),
                got=str(max_tokens),
                remedy="choose a number between" if longest is not None else f"choose {fewest} or more",
            )

    def read(self, side: Side) -> TokenRow:
        """The tokens of a text, with heads where the side has them and words are known."""
        pieces = self._pieces(side)
        begins, ends = self._kept(side, pieces.special)
        kept = [*range(begins), *range(len(pieces.ids) - ends, len(pieces.ids))]
        head = None
        if side.heads is not None and self.knows_words:
            first = {word: token for word, token in pieces.first.items() if token < begins}
            head = tuple(_head(token, pieces.word[token], side.heads, first) for token in kept)
        return TokenRow(
            tuple(pieces.ids[token] for token in kept),
            tuple(bool(pieces.special[token]) for token in kept),
            tuple(pieces.word[token] for token in kept),
            head,
        )

    @abstractmethod
    def _pieces(self, side: Side) -> Pieces: ...

    def _kept(self, side: Side, special: Sequence[bool]) -> tuple[int, int]:
        """How many tokens are kept of the beginning, and of the end."""
        count = len(special)
        if self.max_tokens is None:
            if self.longest is not None and count > self.longest:
                raise UsageError(
                    asked=side.name,
                    expected=f"at most {self.longest:,} tokens, the positions of the model",
                    got=f"{count:,}",
                    remedy=f"pass --max-tokens {self.longest} to cut",
                )
            return count, 0
        if count <= self.max_tokens:
            return count, 0
        closing = next((place for place, here in enumerate(reversed(special)) if not here), 0)
        return self.max_tokens - closing, closing


class HuggingFaceReader(SideReader):
    """Reads with the tokenizer of a Hugging Face model.

    A side without words has those of the tokenizer, or what stands between blanks if that knows none. A tokenizer
    without a padding token pads with 0, which is masked. A tokenizer that cannot tell where in the text its tokens
    stand (a slow one) leaves words and heads unknown: `knows_words` is False.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, longest: int | None = None, max_tokens: int | None = None
    ) -> None:
        super().__init__(tokenizer.num_special_tokens_to_add(), longest, max_tokens)
        self.tokenizer = tokenizer
        self.pad_id = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else 0
        self.knows_words = bool(tokenizer.is_fast)

    def _pieces(self, side: Side) -> Pieces:
        try:
            read = self.tokenizer(
                side.text, return_special_tokens_mask=True, return_offsets_mapping=self.knows_words, verbose=False
            )
        except Exception as error:  # the tokenizers library raises bare Exception
            raise UsageError(
                asked=f"read {side.name}",
                expected="a tokenizer that can read any text",
                got=f"one that fails ({error})",
                remedy="give the tokenizer a token for unknown words, or text that it knows",
            ) from error
        ids, special = read["input_ids"], [bool(added) for added in read["special_tokens_mask"]]
        if not self.knows_words:
            return Pieces(ids, special, [NONE] * len(ids), {})
        between_blanks = side.text.split()
        own = {word for word, added in zip(read.word_ids(), special, strict=True) if not added}
        if side.words is None and (len(own) > 1 or len(between_blanks) < 2):
            return Pieces(ids, special, [NONE if word is None else word for word in read.word_ids()], {})
        return Pieces(ids, special, *align(side.text, read["offset_mapping"], special, side.words or between_blanks))


class VocabularyReader(SideReader):
    """Reads with a vocabulary of attnworks, as in training: sources end in <eos>, targets begin with <bos>.

    The vocabulary is looked up for the words of the text by the rule of `attnworks.text.words`; the words of the side,
    where it has others, say only what belongs together.
    """

    pad_id = PAD

    def __init__(
        self,
        vocabulary: Vocabulary,
        side: Literal["source", "target"] = "source",
        longest: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        super().__init__(1, longest, max_tokens)
        self.vocabulary = vocabulary
        self.side = side

    def _pieces(self, side: Side) -> Pieces:
        written = _written(side)
        text = " ".join(written)
        read = self.vocabulary.tokenizer.encode(text, add_special_tokens=False)
        before, after = ([BOS], []) if self.side == "target" else ([], [EOS])
        nowhere = (0, 0)
        special = [True] * len(before) + [False] * len(read.ids) + [True] * len(after)
        spans = [nowhere] * len(before) + read.offsets + [nowhere] * len(after)
        return Pieces([*before, *read.ids, *after], special, *align(text, spans, special, side.words or written))


def align(
    text: str, spans: Sequence[Span], special: Sequence[bool], words: Sequence[str]
) -> tuple[list[int], dict[int, int]]:
    """The word of each token, and the first token of each word.

    Tokens stand at spans of the text, which the words spell with as many letters (blanks aside). A word that shares all
    its tokens with others has the first of them.
    """
    letters = list(accumulate((not letter.isspace() for letter in text), initial=0))
    owner = [place for place, word in enumerate(words) for _ in without_blanks(word)]
    word_of: list[int] = []
    first: dict[int, int] = {}
    shared: dict[int, int] = {}
    for token, ((begin, end), added) in enumerate(zip(spans, special, strict=True)):
        if added or not owner:
            word_of.append(NONE)
            continue
        covered = owner[letters[begin] : letters[end]] or owner[letters[end] :][:1] or owner[-1:]
        word = Counter(covered).most_common(1)[0][0]
        word_of.append(word)
        first.setdefault(word, token)
        for other in covered:
            shared.setdefault(other, token)
    return word_of, shared | first


def usable(*sides: Sequence[TokenRow]) -> tuple[list[int], list[int]]:
    """Which rows have two tokens of text or more on every side, and which have not and are to be dropped."""
    lengths = [min(len(row.text_ids) for row in rows) for rows in zip(*sides, strict=True)]
    kept = [row for row, length in enumerate(lengths) if length >= FEWEST]
    if not kept:
        raise UsageError(
            asked="the text",
            expected=f"a line with {FEWEST} tokens or more",
            got=f"none in {len(lengths):,} line{'' if len(lengths) == 1 else 's'}",
            remedy="give longer lines",
        )
    return kept, [row for row, length in enumerate(lengths) if length < FEWEST]


def _head(token: int, word: int, heads: Sequence[int], first: Mapping[int, int]) -> int:
    head = NONE if word == NONE else first.get(heads[word], NONE)
    return NONE if head == token else head


def _written(side: Side) -> tuple[str, ...]:
    """The words to look up. Those of the side stand in where the rule would change the number of letters."""
    if side.words is None:
        return words(side.text)
    if side.text == " ".join(side.words):
        return side.words
    ruled = words(side.text)
    return ruled if len("".join(ruled)) == len(without_blanks(side.text)) else side.words


class DecoderReader(HuggingFaceReader):
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
            decoder_row(self.start, [row.ids[place] for place in kept]),
            special=(True, *(row.special[place] for place in kept)),
            word=(-1, *(row.word[place] for place in kept)),
            head=head,
        )


def decoder_row(start: int, ids: Sequence[int], special: Collection[int] = ()) -> TokenRow:
    """What a decoder reads: its start token, then tokens that are words of their own unless they are `special`."""
    added = [token in special for token in ids]
    words = [-1 if here else place for place, here in enumerate(added)]
    return TokenRow((start, *ids), (True, *added), (-1, *words))


def ended(ids: Sequence[int], endings: Collection[int]) -> Sequence[int]:
    """What was written before the end, or the padding after it."""
    length = next((len(ids) - place for place, token in enumerate(reversed(ids)) if token not in endings), 0)
    return ids[:length]


class Readers(NamedTuple):
    """What reads the source (or only side) and the target of a text, and what spells their tokens."""

    source: SideReader
    target: SideReader | None
    spell: tuple[Spell, Spell]


def readers_of(kind: str, given: Any, max_tokens: int | None = None) -> Readers:
    """The readers of a model of this kind, of a Vocabulary, a tokenizer, a SideReader, or a pair of them."""
    source, target = given if isinstance(given, tuple) else (given, given)
    reader, spell = _reader(source, "target" if kind == "decoder" else "source", max_tokens)
    if kind != "encoder-decoder":
        return Readers(reader, None, (spell, spell))
    other, spell_target = _reader(target, "target", max_tokens)
    return Readers(reader, other, (spell, spell_target))


def _reader(given: Any, side: Literal["source", "target"], max_tokens: int | None) -> tuple[SideReader, Spell]:
    if isinstance(given, Vocabulary):
        return VocabularyReader(given, side, max_tokens=max_tokens), given.token
    if hasattr(given, "num_special_tokens_to_add"):
        return HuggingFaceReader(given, max_tokens=max_tokens), given.convert_ids_to_tokens
    if isinstance(given, SideReader):
        return given, str
    raise UsageError(
        asked=f"what reads the {side}",
        expected="a Vocabulary, a tokenizer of Hugging Face or a SideReader",
        got=type(given).__name__,
        remedy="pass one beside the model, or a pair of them for an encoder-decoder",
    )
