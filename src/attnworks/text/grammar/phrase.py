"""Bilingual phrases, and the draft that turns them into a pair of texts with gold structure.

A `Phrase` is a small tree in both languages with the alignment between them. A `Draft` collects phrases, each governed
by another one, and puts them into the order of each language. The first word of an English phrase may stand apart from
the others, such as `is` and `eating` in a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import NamedTuple

from attnworks.text.passages import Passage, Text, Truth, Words
from attnworks.text.words import JOINER

Links = tuple[tuple[int, int], ...]


class Phrase(NamedTuple):
    """Words of both sides, their governors inside the phrase (-1 for its root) and their alignment."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    source_governors: tuple[int, ...]
    target_governors: tuple[int, ...]
    alignment: Links
    source_root: int
    target_root: int
    pronouns: tuple[tuple[str, int, int], ...] = ()
    """(slot, source position, target position) of each pronoun, -1 where a side does not show it."""
    mentions: tuple[tuple[int, int], ...] | None = None
    """Positions that a pronoun can refer to; the roots if not given."""


def phrase(
    source: Sequence[str],
    target: Sequence[str],
    alignment: Links,
    source_root: int = 0,
    target_root: int = 0,
    pronouns: tuple[tuple[str, int, int], ...] = (),
) -> Phrase:
    """A flat phrase: every word depends on the root of its side."""
    return Phrase(
        tuple(source),
        tuple(target),
        tuple(-1 if place == source_root else source_root for place in range(len(source))),
        tuple(-1 if place == target_root else target_root for place in range(len(target))),
        alignment,
        source_root,
        target_root,
        pronouns,
    )


def parallel(source: str, target: str) -> Phrase:
    """A fixed expression, all of whose words are aligned with each other; its last words are the roots."""
    left, right = source.split(), target.split()
    links = tuple(product(range(len(left)), range(len(right))))
    return phrase(left, right, links, len(left) - 1, len(right) - 1)


FULL_STOP = parallel(".", ".")
QUESTION_MARK = parallel("?", "?")
COMMA = parallel(",", ",")


Order = list[tuple[int, slice]]
"""The phrases of one side from left to right: the index of each, and which of its words stand here."""
WHOLE, FIRST_WORD, REST = slice(None), slice(1), slice(1, None)


class Draft:
    """An unfinished text: phrases with their governors, and their order on each side."""

    __slots__ = ("governors", "mentions", "phrases", "references", "source_order", "starts", "target_order")

    def __init__(self) -> None:
        self.phrases: list[Phrase] = []
        self.governors: list[int] = []
        self.source_order: Order = []
        self.target_order: Order = []
        self.starts: list[tuple[int, int]] = []
        self.mentions: dict[int, int] = {}
        self.references: list[tuple[int, str, int]] = []

    def start_sentence(self) -> None:
        """The next word on each side begins with a capital letter."""
        self.starts.append((len(self.source_order), len(self.target_order)))

    def add(self, piece: Phrase, governor: int = -1) -> int:
        """Add a phrase, governed by another, and return its index. The order of the phrases is decided later."""
        self.phrases.append(piece)
        self.governors.append(governor)
        return len(self.phrases) - 1

    def govern(self, dependent: int, governor: int) -> None:
        """Set the governor of a phrase that was added before it."""
        self.governors[dependent] = governor

    def lay(self, index: int) -> None:
        """Put a whole phrase next on both sides."""
        self.lay_source(index)
        self.lay_target(index)

    def lay_source(self, index: int, part: slice = WHOLE) -> None:
        """Put a phrase, or a part of it, next in the source."""
        self.source_order.append((index, part))

    def lay_target(self, index: int) -> None:
        """Put a phrase next in the target."""
        self.target_order.append((index, WHOLE))

    def mention(self, entity: object, index: int) -> None:
        """Store which phrase first mentions an entity."""
        self.mentions.setdefault(id(entity), index)

    def refer(self, index: int, slot: str, entity: object) -> None:
        """Store that the pronoun in a slot of a phrase refers to an entity that the text mentions."""
        antecedent = self.mentions.get(id(entity))
        if antecedent is not None and antecedent != index:
            self.references.append((index, slot, antecedent))

    def finish(self) -> Passage:
        """The pair of texts, with gold structure."""
        left = Layout([piece.source for piece in self.phrases], self.source_order, [start for start, _ in self.starts])
        right = Layout([piece.target for piece in self.phrases], self.target_order, [start for _, start in self.starts])
        source_governors = left.governors([(p.source_governors, p.source_root) for p in self.phrases], self.governors)
        target_governors = right.governors([(p.target_governors, p.target_root) for p in self.phrases], self.governors)
        return Passage(
            GrammarText.of_words(tuple(left.words), source_governors),
            GrammarText.of_words(tuple(right.words), target_governors),
            Truth(self.alignment(left, right), *self.coreference(left, right)),
        )

    def alignment(self, left: Layout, right: Layout) -> Links:
        """All links between the two sides, sorted."""
        places = zip(self.phrases, left.places, right.places, strict=True)
        return tuple(sorted((source[i], target[j]) for piece, source, target in places for i, j in piece.alignment))

    def coreference(self, left: Layout, right: Layout) -> tuple[Links, Links]:
        """(pronoun, antecedent) positions in the source and in the target."""
        source: list[tuple[int, int]] = []
        target: list[tuple[int, int]] = []
        for index, wanted, antecedent in self.references:
            named = self.phrases[antecedent]
            for slot, i, j in self.phrases[index].pronouns:
                if slot != wanted:
                    continue
                for name_i, name_j in named.mentions or ((named.source_root, named.target_root),):
                    if i >= 0:
                        source.append((left.places[index][i], left.places[antecedent][name_i]))
                    if j >= 0:
                        target.append((right.places[index][j], right.places[antecedent][name_j]))
        return tuple(sorted(source)), tuple(sorted(target))


class GrammarText(Text):
    """A text of the grammar, whose `text` has blanks between all words.

    As people write it, signs and the English 's follow their word, and an Italian elision has no blank after it.
    """

    __slots__ = ()

    @property
    def spelled(self) -> Words:
        return tuple(
            _SPELLED.get(word) or (f"{word}{JOINER}" if word[-1] == "'" else word) for word in self.words or ()
        )


_SPELLED = {sign: f"{JOINER}{sign}" for sign in (".", ",", "?", "'s")}


class Layout:
    """One side of a draft in its order: the words, and the position of every word of each phrase."""

    __slots__ = ("places", "words")

    def __init__(self, phrases: Sequence[tuple[str, ...]], order: Order, starts: Sequence[int]) -> None:
        self.words: list[str] = []
        self.places: list[Sequence[int]] = [()] * len(phrases)
        capitals: list[int] = []
        for step, (index, part) in enumerate(order):
            begin = len(self.words)
            if step in starts:
                capitals.append(begin)
            self.words += phrases[index][part]
            here = range(begin, len(self.words))
            self.places[index] = [*self.places[index], *here] if part is REST else here
        for place in capitals:
            self.words[place] = self.words[place][0].upper() + self.words[place][1:]

    def governors(self, trees: Sequence[tuple[Sequence[int], int]], above: Sequence[int]) -> tuple[int, ...]:
        """The governor of every word; the root of a phrase depends on the root of the phrase above it.

        trees    for each phrase, the governors of its words inside the phrase and the place of its root
        above    for each phrase, the phrase that governs it, -1 for none
        """
        governors = [-1] * len(self.words)
        for (inner, _), phrase_above, places in zip(trees, above, self.places, strict=True):
            outer = self.places[phrase_above][trees[phrase_above][1]] if phrase_above >= 0 else -1
            for place, governor in zip(places, inner, strict=True):
                governors[place] = places[governor] if governor >= 0 else outer
        return tuple(governors)
