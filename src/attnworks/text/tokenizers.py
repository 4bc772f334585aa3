"""Text -> rows of tokens, by the tokenizers of Hugging Face models and by the vocabularies of attnworks.

A token belongs to the word that most of its letters come from, whether or not the tokenizer cuts where words end; a
token of blanks alone belongs to the word that follows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from attnworks.core.display import counted
from attnworks.core.errors import UsageError
from attnworks.text.passages import Passage, Text, without_blanks
from attnworks.text.sentence_pairs import LINE_END, PairPieces, pair_of_pieces, pair_row
from attnworks.text.tokens import NO_SIDE, NO_WORD, RowPair, TokenRow
from attnworks.text.vocabulary import BOS, EOS, PAD, SPECIALS, Vocabulary
from attnworks.text.words import plain, without_joiners, words

if TYPE_CHECKING:
    from transformers import BatchEncoding, PreTrainedTokenizerBase

MIN_TEXT_TOKENS = 2
"""A row with fewer tokens of text leaves attention only one token to attend to."""

Span = tuple[int, int]
Side = Literal["source", "target"]


class Pieces(NamedTuple):
    """The tokens of a text, the word of each token, and the first token of every word that has one."""

    ids: Sequence[int]
    special: Sequence[bool]
    word: Sequence[int]
    first: Mapping[int, int]


class TextReader(ABC):
    """Reads one side of a passage into a row of tokens.

    specials    tokens that are added to every text
    max_length  number of positions of the model, None if it takes any length
    max_tokens  longer texts are cut to it, and keep the special tokens at their end; None cuts no text
    joins_pairs whether source and target of a passage are read as one sequence
    """

    pad_id: int
    knows_words: bool = True
    joins_pairs: bool = False

    def __init__(self, specials: int, max_length: int | None = None, max_tokens: int | None = None) -> None:
        self.specials, self.max_length = specials, max_length
        self.cut_to(max_tokens)

    def cut_to(self, max_tokens: int | None) -> None:
        """Cut texts that are longer than this, from now on; None cuts no text."""
        self.max_tokens = max_tokens
        if max_tokens is None:
            return
        specials, max_length = self.specials, self.max_length
        fewest = specials + MIN_TEXT_TOKENS
        if max_tokens < fewest or (max_length is not None and max_tokens > max_length):
            expected, remedy = f"at least {fewest} (with {specials} special)", f"choose {fewest} or more"
            if max_length is not None:
                expected += f" and at most the {max_length:,} positions of the model"
                remedy = "choose a number between"
            raise UsageError(f"--max-length {max_tokens}", expected, str(max_tokens), remedy)

    def read(self, side: Text) -> TokenRow:
        """The tokens of a text in one row, with governors where the text has them and words are known."""
        pieces = self._pieces(side)
        begins, ends = self._kept(side, pieces.special)
        return self._row(side, pieces, [*range(begins), *range(len(pieces.ids) - ends, len(pieces.ids))])

    def windows(self, side: Text) -> list[TokenRow]:
        """The tokens of a text in one row, or in several of about equal length if the model has too few positions.

        The rows tile the text without overlap. Each has the special tokens of the text at its ends. A governor in
        another row is unknown. A text is cut, not split, if `max_tokens` is given.
        """
        pieces = self._pieces(side)
        opening, closing = _closing(pieces.special[::-1]), _closing(pieces.special)
        tokens = len(pieces.ids) - opening - closing
        limit = tokens if self.max_length is None else self.max_length - opening - closing
        if self.max_tokens is not None or tokens <= limit or limit < MIN_TEXT_TOKENS:
            return [self.read(side)]
        count = math.ceil(tokens / limit)
        cuts = [opening + tokens * number // count for number in range(count + 1)]
        before, after = range(opening), range(len(pieces.ids) - closing, len(pieces.ids))
        return [self._row(side, pieces, [*before, *range(*span), *after]) for span in pairwise(cuts)]

    def _row(self, side: Text, pieces: Pieces, kept: Sequence[int]) -> TokenRow:
        """These tokens of a text."""
        governor = None
        if side.governors is not None and self.knows_words:
            places = {token: place for place, token in enumerate(kept)}
            first = {word: places[token] for word, token in pieces.first.items() if token in places}
            words = [pieces.word[token] for token in kept]
            governor = tuple(_governor(place, word, side.governors, first) for place, word in enumerate(words))
        return TokenRow(
            tuple(pieces.ids[token] for token in kept),
            tuple(bool(pieces.special[token]) for token in kept),
            tuple(pieces.word[token] for token in kept),
            governor,
        )

    def joining_pairs(self) -> Self:
        """The same reader, which reads source and target of a passage as one sequence."""
        new = copy(self)
        new.joins_pairs = True
        return new

    def read_passage(self, passage: Passage) -> TokenRow:
        """The source of a passage, or both texts in one sequence; if that is cut, the longer text is."""
        if not self.joins_pairs:
            return self.read(passage.source)
        if passage.target is None:
            asked, remedy = "pairs in one sequence", "separate the two texts by a tab, or leave --join-pairs out"
            raise UsageError(asked, "two texts in every passage", f"one in {passage.source.name}", remedy)
        return pair_row(self._pair(passage.source, passage.target), passage, self.max_tokens, self.max_length)

    def count(self, side: Text) -> int:
        """The number of tokens of a text, special ones included, before it is cut or split."""
        return len(self._pieces(side).ids)

    def token(self, identity: int) -> str:
        """The text of one id."""
        return str(identity)

    @property
    def writes_text(self) -> bool:
        """Whether `text` has the spacing that people write, not blanks between all tokens."""
        return False

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids that are not special."""
        return " ".join(map(self.token, ids))

    @abstractmethod
    def ordinary_ids(self) -> Sequence[int]:
        """The ids of all tokens that a text may have, in order; no special tokens."""

    @abstractmethod
    def _pieces(self, side: Text) -> Pieces: ...

    def _pair(self, source: Text, target: Text) -> PairPieces:
        expected, got = "a reader of two texts in one sequence", type(self).__name__
        raise UsageError(f"the pair of {source.name}", expected, got, "define its method _pair")

    def _kept(self, side: Text, special: Sequence[bool]) -> tuple[int, int]:
        """The number of tokens to keep at the beginning, and at the end."""
        count = len(special)
        if self.max_tokens is None and self.max_length is not None and count > self.max_length:
            expected = f"at most {self.max_length:,} tokens, the positions of the model"
            raise UsageError(side.name, expected, f"{count:,}", f"cut it by --max-length {self.max_length}")
        if self.max_tokens is None or count <= self.max_tokens:
            return count, 0
        closing = _closing(special)
        return self.max_tokens - closing, closing


class HuggingFaceReader(TextReader):
    """Reads with the tokenizer of a Hugging Face model.

    A text without words gets those of the tokenizer, or is split at blanks if the tokenizer has none. A tokenizer
    without a padding token pads with 0, which is masked. A slow tokenizer does not report the positions of its tokens
    in the text, so that words and governors stay unknown: `knows_words` is False.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None, max_tokens: int | None = None
    ) -> None:
        super().__init__(tokenizer.num_special_tokens_to_add(), max_length, max_tokens)
        self.tokenizer = tokenizer
        self.pad_id = tokenizer.pad_token_id if isinstance(tokenizer.pad_token_id, int) else 0
        self.knows_words = bool(tokenizer.is_fast)

    def token(self, identity: int) -> str:
        token = self.tokenizer.convert_ids_to_tokens(identity)
        return str(token) if token else f"<{identity}>"

    @property
    def writes_text(self) -> bool:
        return True

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def ordinary_ids(self) -> Sequence[int]:
        special = {*self.tokenizer.all_special_ids, *self.tokenizer.added_tokens_decoder}
        return [identity for identity in range(len(self.tokenizer)) if identity not in special]

    def _encode(self, side: Text, target: Text | None = None) -> BatchEncoding:
        """What the tokenizer makes of a text, or of two."""
        other = None if target is None else target.text
        try:
            return self.tokenizer(
                side.text,
                other,
                return_special_tokens_mask=True,
                return_offsets_mapping=self.knows_words,
                verbose=False,
            )
        except Exception as error:  # the tokenizers library raises bare Exception
            asked, got = f"read {side.name}", f"one that fails ({error})"
            expected, remedy = "a tokenizer that can read any text", "give it a token for unknown words"
            raise UsageError(asked, expected, got, remedy) from error

    def _pieces(self, side: Text) -> Pieces:
        read: Any = self._encode(side)
        ids, special = read["input_ids"], [bool(added) for added in read["special_tokens_mask"]]
        if not self.knows_words:
            return Pieces(ids, special, [NO_WORD] * len(ids), {})
        between_blanks = side.text.split()
        own = {word for word, added in zip(read.word_ids(), special, strict=True) if not added}
        if side.words is None and (len(own) > 1 or len(between_blanks) < 2):
            return Pieces(ids, special, [NO_WORD if word is None else word for word in read.word_ids()], {})
        return Pieces(ids, special, *align(side.text, read["offset_mapping"], special, side.words or between_blanks))

    def _pair(self, source: Text, target: Text) -> PairPieces:
        """By the template of the tokenizer for pairs, if it has a separator; else as two lines of one text.

        A separator is a special token between the texts that no text begins with: [SEP], but not a second <s>.
        """
        read: Any = self._encode(source, target)
        ids, special = read["input_ids"], [bool(added) for added in read["special_tokens_mask"]]
        one, two = self._pieces(source), self._pieces(target)
        places, number = [place for place, added in enumerate(special) if not added], one.special.count(False)
        between = ids[places[number - 1] + 1 : places[number]] if 0 < number < len(places) else []
        begins = one.ids[: next((place for place, added in enumerate(one.special) if not added), 0)]
        if {*between} <= {*begins}:
            return self._lines(source, target)
        return pair_of_pieces(ids, special, one, two, _number_of_words(source, one), read.get("token_type_ids"))

    def _lines(self, source: Text, target: Text) -> PairPieces:
        """Source, line end and target as one text."""
        if not self.knows_words:
            expected, got = "a separator of pairs, or positions of tokens in the text", "a tokenizer without both"
            raise UsageError(f"the pair of {source.name}", expected, got, "choose a fast tokenizer")
        text, end = source.text + LINE_END + target.text, len(source.text)
        read: Any = self._encode(Text(text, line=source.line))
        special, spans = [bool(added) for added in read["special_tokens_mask"]], read["offset_mapping"]
        outside = [
            added or (start <= end < stop and not text[start:stop].strip())
            for added, (start, stop) in zip(special, spans, strict=True)
        ]
        own = source.words or tuple(source.text.split())
        word, first = align(text, spans, outside, (*own, *(target.words or target.text.split())))
        side = [NO_SIDE if found == NO_WORD else int(found >= len(own)) for found in word]
        return PairPieces(read["input_ids"], special, word, first, side, len(own))


class VocabularyReader(TextReader):
    """Reads with a vocabulary of attnworks, as in training: sources end in <eos>, targets begin with <bos>.

    Words are found by the rule of `attnworks.text.words` and looked up in the vocabulary. Where a text has words of its
    own, they only decide which tokens form a word.
    """

    pad_id = PAD

    def __init__(
        self,
        vocabulary: Vocabulary,
        side: Side = "source",
        max_length: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        super().__init__(1, max_length, max_tokens)
        self.vocabulary, self.side = vocabulary, side

    def token(self, identity: int) -> str:
        return self.vocabulary.token(identity)

    @property
    def writes_text(self) -> bool:
        return self.vocabulary.has_joiners

    def text(self, ids: Sequence[int]) -> str:
        return self.vocabulary.text(ids)

    def ordinary_ids(self) -> Sequence[int]:
        return range(len(SPECIALS), len(self.vocabulary))

    def _pieces(self, side: Text) -> Pieces:
        written = _written(side)
        text = " ".join(self._spelled(side, written))
        read = self.vocabulary.tokenizer.encode(text, add_special_tokens=False)
        before, after = ([BOS], []) if self.side == "target" else ([], [EOS])
        special = [True] * len(before) + [False] * len(read.ids) + [True] * len(after)
        spans = [(0, 0)] * len(before) + read.offsets + [(0, 0)] * len(after)
        text, spans = without_joiners(text, spans)
        return Pieces([*before, *read.ids, *after], special, *align(text, spans, special, side.words or written))

    def _spelled(self, side: Text, written: tuple[str, ...]) -> tuple[str, ...]:
        """The words to look up as the vocabulary spells them: sources without joiners, targets as in training."""
        if self.side == "source" or not self.vocabulary.has_joiners:
            return written
        spelled = side.spelled
        return spelled if plain(spelled) == written else written

    def _pair(self, source: Text, target: Text) -> PairPieces:
        """Each text with its <eos>; for a decoder <bos>, source, <eos>, target."""
        one, two = self._pieces(source), self._pieces(target)
        ids, special = [*one.ids], [*one.special]
        if self.side == "target":
            ids, special = [*ids, EOS], [*special, True]
        start = int(self.side == "target")
        ids, special = [*ids, *two.ids[start:]], [*special, *two.special[start:]]
        return pair_of_pieces(ids, special, one, two, _number_of_words(source, one))


def read_pairs(pairs: Iterable[Passage], source: Vocabulary, target: Vocabulary) -> list[RowPair]:
    """Rows of training: ids alone, in far less time than `VocabularyReader.read` needs to find their words."""
    pairs = list(pairs)
    targets = (target_words(pair, target) for pair in pairs)
    sides = source.encode_all(pair.words[0] for pair in pairs), target.encode_all(targets)
    return [(TokenRow((*read, EOS)), TokenRow((BOS, *written))) for read, written in zip(*sides, strict=True)]


def target_words(pair: Passage, vocabulary: Vocabulary) -> tuple[str, ...]:
    """The words of the target as the vocabulary spells them."""
    return pair.target.spelled if vocabulary.has_joiners and pair.target is not None else pair.words[1]


def align(
    text: str, spans: Sequence[Span], special: Sequence[bool], words: Sequence[str]
) -> tuple[list[int], dict[int, int]]:
    """The word of each token, and the first token of each word.

    The words must have the letters of the text, blanks aside. A word that shares all its tokens with others gets the
    first of them.
    """
    letters = list(accumulate((not letter.isspace() for letter in text), initial=0))  # before each character
    owner = [place for place, word in enumerate(words) for _ in without_blanks(word)]
    word_of: list[int] = []
    first: dict[int, int] = {}
    shared: dict[int, int] = {}
    for token, ((begin, end), added) in enumerate(zip(spans, special, strict=True)):
        if added or not owner:
            word_of.append(NO_WORD)
            continue
        covered = owner[letters[begin] : letters[end]] or owner[letters[end] :][:1] or owner[-1:]
        word = Counter(covered).most_common(1)[0][0]
        word_of.append(word)
        first.setdefault(word, token)
        for other in covered:
            shared.setdefault(other, token)
    return word_of, shared | first


def usable(*sides: Sequence[TokenRow]) -> tuple[list[int], list[int]]:
    """The rows with at least two tokens of text on every side, and the others, which are dropped."""
    lengths = [min(len(row.text_ids) for row in rows) for rows in zip(*sides, strict=True)]
    kept = [row for row, length in enumerate(lengths) if length >= MIN_TEXT_TOKENS]
    if not kept:
        expected, got = f"a line with {MIN_TEXT_TOKENS} tokens or more", f"none in {counted(len(lengths), 'line')}"
        raise UsageError("the text", expected, got, "give longer lines")
    return kept, [row for row, length in enumerate(lengths) if length < MIN_TEXT_TOKENS]


def _number_of_words(side: Text, pieces: Pieces) -> int:
    return 1 + max(pieces.word, default=NO_WORD) if side.words is None else len(side.words)


def _governor(place: int, word: int, governors: Sequence[int], first: Mapping[int, int]) -> int:
    governor = NO_WORD if word == NO_WORD else first.get(governors[word], NO_WORD)
    return NO_WORD if governor == place else governor


def _written(side: Text) -> tuple[str, ...]:
    """The words to look up: by the rule, or those of the text where the rule would change the number of letters."""
    if side.words is None:
        return words(side.text)
    if side.text == " ".join(side.words):
        return side.words
    ruled = words(side.text)
    return ruled if len("".join(ruled)) == len(without_blanks(side.text)) else side.words


class DecoderReader(HuggingFaceReader):
    """Targets as a decoder of Hugging Face reads them: its start token, then the text without closing tokens."""

    def __init__(self, tokenizer: Any, start: int, max_length: int | None, max_tokens: int | None) -> None:
        super().__init__(tokenizer, max_length, max_tokens)
        self.start = start

    def read(self, side: Text) -> TokenRow:
        tokenizer: Any = self.tokenizer
        has_modes = hasattr(tokenizer, "_switch_to_target_mode")  # such as the tokenizers of Marian and mBART
        if has_modes:
            tokenizer._switch_to_target_mode()
        try:
            row = super().read(side)
        finally:
            if has_modes:
                tokenizer._switch_to_input_mode()
        kept = len(row) - _closing(row.special)
        governor = None
        if row.governor is not None:
            governor = (NO_WORD, *(at + 1 if NO_WORD < at < kept else NO_WORD for at in row.governor[:kept]))
        return TokenRow(
            (self.start, *row.ids[:kept]), (True, *row.special[:kept]), (NO_WORD, *row.word[:kept]), governor
        )


def _closing(special: Sequence[bool]) -> int:
    """The number of special tokens at the end of a row."""
    return next((place for place, here in enumerate(reversed(special)) if not here), 0)


def decoder_row(start: int, ids: Sequence[int], special: Collection[int] = ()) -> TokenRow:
    """What a decoder reads: its start token, then tokens that are words of their own unless they are `special`."""
    added = [token in special for token in ids]
    words = [NO_WORD if here else place for place, here in enumerate(added)]
    return TokenRow((start, *ids), (True, *added), (NO_WORD, *words))


def ended(ids: Sequence[int], endings: Collection[int]) -> Sequence[int]:
    """The ids without the end tokens, or padding, at their end."""
    length = next((len(ids) - place for place, token in enumerate(reversed(ids)) if token not in endings), 0)
    return ids[:length]


def readers_of(kind: str, given: Any, max_tokens: int | None = None) -> tuple[TextReader, TextReader | None]:
    """The readers of source (or only side) and target for a model of this kind.

    given    a Vocabulary, a tokenizer, a TextReader, or a pair of them
    """
    source, target = given if isinstance(given, tuple) else (given, given)
    reader = _reader(source, "target" if kind == "decoder" else "source", max_tokens)
    return reader, _reader(target, "target", max_tokens) if kind == "encoder-decoder" else None


def _reader(given: Any, side: Side, max_tokens: int | None) -> TextReader:
    if isinstance(given, Vocabulary):
        return VocabularyReader(given, side, max_tokens=max_tokens)
    if hasattr(given, "num_special_tokens_to_add"):
        return HuggingFaceReader(given, max_tokens=max_tokens)
    if isinstance(given, TextReader):
        return given
    expected = "a Vocabulary, a tokenizer of Hugging Face or a TextReader"
    remedy = "pass one beside the model, or a pair of them for an encoder-decoder"
    raise UsageError(f"tokenizer of the {side}", expected, type(given).__name__, remedy)
