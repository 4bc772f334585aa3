"""Bilingual phrases and the draft in which they become a pair with its truth.

A `Phrase` is a small tree in both languages with the alignment between them. A `Draft` collects phrases, each governed
by another one, and lays them out in the order of each language; a phrase may be laid out in slices, so that `is`
and `eating` can stand apart in a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import add
from typing import NamedTuple

from attnworks.text.passages import Passage, Text, Truth

Links = tuple[tuple[int, int], ...]


class Phrase(NamedTuple):
    """Words of both sides, their heads inside the phrase (-1 for its root) and their alignment."""

    source: tuple[str, ...]
    target: tuple[str, ...]
    source_heads: tuple[int, ...]
    target_heads: tuple[int, ...]
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
    links = tuple((i, j) for i in range(len(left)) for j in range(len(right)))
    return phrase(left, right, links, len(left) - 1, len(right) - 1)


FULL_STOP = parallel(".", ".")
QUESTION_MARK = parallel("?", "?")
COMMA = parallel(",", ",")
WHOLE = None


class Draft:
    """A text in the making: governed phrases and their order on each side."""

    __slots__ = ("governors", "mentions", "phrases", "references", "source_order", "starts", "target_order")

    def __init__(self) -> None:
        self.phrases: list[Phrase] = []
        self.governors: list[int] = []
        self.source_order: list[tuple[int, int, int | None]] = []
        self.target_order: list[tuple[int, int, int | None]] = []
        self.starts: list[tuple[int, int]] = []
        self.mentions: dict[int, int] = {}
        self.references: list[tuple[int, str, int]] = []

    def start_sentence(self) -> None:
        """Whatever is laid out next begins with a capital letter."""
        self.starts.append((len(self.source_order), len(self.target_order)))

    def add(self, piece: Phrase, governor: int = -1) -> int:
        """Takes a phrase in, governed by another; its order comes later."""
        self.phrases.append(piece)
        self.governors.append(governor)
        return len(self.phrases) - 1

    def govern(self, dependent: int, governor: int) -> None:
        """Sets the governor of a phrase taken in before it."""
        self.governors[dependent] = governor

    def lay(self, index: int) -> None:
        """Puts a whole phrase next on both sides."""
        step = (index, 0, WHOLE)
        self.source_order.append(step)
        self.target_order.append(step)

    def lay_source(self, index: int) -> None:
        """Puts a phrase next in the source."""
        self.source_order.append((index, 0, WHOLE))

    def lay_source_first_word(self, index: int) -> None:
        """Puts only the first word of a phrase next in the source."""
        self.source_order.append((index, 0, 1))

    def lay_source_rest(self, index: int) -> None:
        """Puts all but the first word of a phrase next in the source."""
        self.source_order.append((index, 1, WHOLE))

    def lay_target(self, index: int) -> None:
        """Puts a phrase next in the target."""
        self.target_order.append((index, 0, WHOLE))

    def mention(self, entity: object, index: int) -> None:
        """Remembers which phrase first mentions an entity."""
        self.mentions.setdefault(id(entity), index)

    def refer(self, index: int, slot: str, entity: object) -> None:
        """Notes that the pronoun in a slot of a phrase refers to an entity mentioned in the text."""
        antecedent = self.mentions.get(id(entity))
        if antecedent is not None and antecedent != index:
            self.references.append((index, slot, antecedent))

    def finish(self) -> Passage:
        """The pair, with the truth about it."""
        left = Layout(self.phrases, 0, self.source_order, [start for start, _ in self.starts])
        right = Layout(self.phrases, 1, self.target_order, [start for _, start in self.starts])
        sides = (Text.of_words(tuple(side.words), tuple(side.heads(self.governors))) for side in (left, right))
        return Passage(*sides, truth=Truth(self.alignment(left, right), *self.coreference(left, right)))

    def alignment(self, left: Layout, right: Layout) -> Links:
        """All links between the two sides, sorted."""
        if left.broken:
            links = [
                (left.place(index, i), right.bases[index] + j)
                for index, piece in enumerate(self.phrases)
                for i, j in piece.alignment
            ]
        else:
            links = [
                (source + i, target + j)
                for piece, source, target in zip(self.phrases, left.bases, right.bases, strict=True)
                for i, j in piece.alignment
            ]
        links.sort()
        return tuple(links)

    def coreference(self, left: Layout, right: Layout) -> tuple[Links, Links]:
        """(pronoun, antecedent) positions in the source and in the target."""
        if not self.references:
            return (), ()
        source: list[tuple[int, int]] = []
        target: list[tuple[int, int]] = []
        for index, wanted, antecedent in self.references:
            named = self.phrases[antecedent]
            for slot, i, j in self.phrases[index].pronouns:
                if slot != wanted:
                    continue
                for name_i, name_j in named.mentions or ((named.source_root, named.target_root),):
                    if i >= 0:
                        source.append((left.place(index, i), left.place(antecedent, name_i)))
                    if j >= 0:
                        target.append((right.place(index, j), right.place(antecedent, name_j)))
        return tuple(sorted(source)), tuple(sorted(target))


class Layout:
    """One side of a draft in its order: the words, and where each phrase stands.

    A phrase stands from its base on, unless its first word stands apart; then `broken` has the base of the rest.
    """

    __slots__ = ("bases", "broken", "phrases", "side", "words")

    def __init__(
        self, phrases: Sequence[Phrase], side: int, order: Sequence[tuple[int, int, int | None]], starts: Sequence[int]
    ) -> None:
        self.phrases, self.side = phrases, side
        self.broken: dict[int, int] = {}
        self.bases = bases = [0] * len(phrases)
        self.words: list[str] = []
        words = self.words
        capitals: list[int] = []
        for step, (index, start, stop) in enumerate(order):
            if step in starts:
                capitals.append(len(words))
            laid = phrases[index].target if side else phrases[index].source
            if start:
                self.broken[index] = len(words) - 1
                words += laid[1:]
            else:
                bases[index] = len(words)
                words += laid if stop is None else laid[:stop]
        for place in capitals:
            words[place] = words[place][0].upper() + words[place][1:]

    def place(self, index: int, local: int) -> int:
        """Where a word of a phrase stands."""
        base = self.broken.get(index, self.bases[index]) if local else self.bases[index]
        return base + local

    def heads(self, governors: Sequence[int]) -> list[int]:
        """The head of every word; the root of a phrase depends on the root of its governor."""
        heads = [-1] * len(self.words)
        phrases, bases, broken = self.phrases, self.bases, self.broken
        if self.side:
            roots, trees = [piece.target_root for piece in phrases], [piece.target_heads for piece in phrases]
        else:
            roots, trees = [piece.source_root for piece in phrases], [piece.source_heads for piece in phrases]
        tops = [self.place(index, root) for index, root in enumerate(roots)] if broken else list(map(add, bases, roots))
        for index, (tree, governor, base) in enumerate(zip(trees, governors, bases, strict=True)):
            above = tops[governor] if governor >= 0 else -1
            if index in broken:
                for word, head in enumerate(tree):
                    heads[self.place(index, word)] = self.place(index, head) if head >= 0 else above
            elif len(tree) == 1:
                heads[base] = above
            else:
                heads[base : base + len(tree)] = [base + head if head >= 0 else above for head in tree]
        return heads
