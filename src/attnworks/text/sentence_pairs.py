"""Two texts in one sequence, as models with one stack read a pair: `[CLS] source [SEP] target [SEP]`.

Every token of a text has a side: 0 in the source, 1 in the target. Special tokens, and a line end between the texts,
have none. Words of the target are counted after those of the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from attnworks.core.errors import UsageError
from attnworks.text.passages import ROOT, Passage, Text
from attnworks.text.tokens import NO_SIDE, NO_WORD, TokenRow

if TYPE_CHECKING:
    from attnworks.text.tokenizers import Pieces

LINE_END = "\n"
"""Between the two texts, where a tokenizer has no separator for pairs."""


class PairPieces(NamedTuple):
    """The tokens of two texts in one sequence.

    first       the first token of every word that has one
    side        0 in the source, 1 in the target, NO_SIDE elsewhere
    target_word the number of the first word of the target
    type_ids    `token_type_ids` of the tokenizer; None where it gives none
    """

    ids: Sequence[int]
    special: Sequence[bool]
    word: Sequence[int]
    first: Mapping[int, int]
    side: Sequence[int]
    target_word: int
    type_ids: Sequence[int] | None = None


def pair_of_pieces(
    ids: Sequence[int],
    special: Sequence[bool],
    source: Pieces,
    target: Pieces,
    target_word: int,
    type_ids: Sequence[int] | None = None,
) -> PairPieces:
    """A pair whose tokens that are not special are those of both texts, read one by one, in their order.

    source, target    the tokens of each text alone
    """
    places = [place for place, added in enumerate(special) if not added]
    word, side, first = [NO_WORD] * len(ids), [NO_SIDE] * len(ids), dict[int, int]()
    begin = 0
    for number, (pieces, before) in enumerate(((source, 0), (target, target_word))):
        own = [token for token, added in enumerate(pieces.special) if not added]
        there = dict(zip(own, places[begin : begin + len(own)], strict=False))
        begin += len(own)
        for token, place in there.items():
            side[place] = number
            word[place] = NO_WORD if pieces.word[token] == NO_WORD else pieces.word[token] + before
        first |= {found + before: there[token] for found, token in pieces.first.items() if token in there}
    if begin != len(places):
        got, remedy = (
            f"{begin} and {len(places)} tokens",
            "choose a tokenizer that reads the texts of a pair one by one",
        )
        raise UsageError("a pair of texts", "the same tokens in the pair as in its texts", got, remedy)
    return PairPieces(ids, special, word, first, side, target_word, type_ids)


def pair_row(pieces: PairPieces, passage: Passage, max_tokens: int | None, max_length: int | None) -> TokenRow:
    """The row of a pair, cut to `max_tokens`; an error if it is longer than `max_length` and may not be cut."""
    source, target = passage.source, passage.target
    assert target is not None
    count = len(pieces.ids)
    if max_tokens is None and max_length is not None and count > max_length:
        expected = f"at most {max_length:,} tokens, the positions of the model"
        raise UsageError(f"the pair of {source.name}", expected, f"{count:,}", f"cut it by --max-length {max_length}")
    kept = range(count) if max_tokens is None or count <= max_tokens else _cut(pieces, passage, max_tokens)
    place = {token: at for at, token in enumerate(kept)}
    word = tuple(pieces.word[token] for token in kept)
    governor = None
    if (source.governors or target.governors) and pieces.first:
        above = _governors(source, 0) | _governors(target, pieces.target_word)
        first = {found: place[token] for found, token in pieces.first.items() if token in place}
        heads = [first.get(above.get(own, ROOT), NO_WORD) for own in word]
        governor = tuple(NO_WORD if head == at else head for at, head in enumerate(heads))
    return TokenRow(
        tuple(pieces.ids[token] for token in kept),
        tuple(bool(pieces.special[token]) for token in kept),
        word,
        governor,
        tuple(pieces.side[token] for token in kept),
        None if pieces.type_ids is None else tuple(pieces.type_ids[token] for token in kept),
        _aligned(word, passage, pieces.target_word),
    )


def texts_kept(source: int, target: int, limit: int) -> tuple[int, int]:
    """How many tokens of each text fit into `limit` if the longer text is cut, as by `longest_first` of tokenizers.

    >>> texts_kept(3, 9, 8), texts_kept(9, 9, 7), texts_kept(9, 5, 7)
    ((3, 5), (3, 4), (4, 3))
    """
    shorter = min(source, target)
    longer = shorter if shorter > limit else max(shorter, limit - shorter)
    if shorter + longer > limit:
        shorter, longer = limit // 2, limit - limit // 2
    return (longer, shorter) if source > target else (shorter, longer)


def _cut(pieces: PairPieces, passage: Passage, max_tokens: int) -> list[int]:
    """The tokens that are kept: the first ones of each text, and all that belong to neither."""
    source, target = pieces.side.count(0), pieces.side.count(1)
    others = len(pieces.ids) - source - target
    if max_tokens < others + 2:
        expected = f"at least {others + 2}: one token of each text, and {others} others"
        got, remedy = str(max_tokens), f"choose {others + 2} or more"
        raise UsageError(f"--max-length {max_tokens} for the pair of {passage.source.name}", expected, got, remedy)
    left = {NO_SIDE: others, **dict(enumerate(texts_kept(source, target, max_tokens - others)))}
    kept: list[int] = []
    for token, side in enumerate(pieces.side):
        left[side] -= 1
        if left[side] >= 0:
            kept.append(token)
    return kept


def _governors(text: Text, before: int) -> dict[int, int]:
    """Word -> its governor, both counted from `before`."""
    return {
        word + before: ROOT if governor == ROOT else governor + before
        for word, governor in enumerate(text.governors or ())
    }


def _aligned(word: Sequence[int], passage: Passage, target_word: int) -> tuple[tuple[int, ...], ...] | None:
    """The tokens of all words that the word of each token is aligned with; None where no alignment is known."""
    target = passage.target
    if passage.truth is None or target is None or passage.source.words is None or target.words is None:
        return None
    tokens: dict[int, list[int]] = {}
    for token, own in enumerate(word):
        tokens.setdefault(own, []).append(token)
    linked: dict[int, set[int]] = {}
    for one, other in passage.truth.alignment:
        linked.setdefault(one, set()).update(tokens.get(other + target_word, ()))
        linked.setdefault(other + target_word, set()).update(tokens.get(one, ()))
    return tuple(tuple(sorted(linked.get(own, ()))) for own in word)
