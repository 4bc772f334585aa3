"""What a lexicon entry holds, and how entries are read from the tables of the lexicon.

Zipf-like choice: the rank of an entry decides how often it is drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from attnworks.text.grammar import english, italian
from attnworks.text.grammar.italian import Gender

T = TypeVar("T")

RESOLUTION = 4096

EXPONENT = 1.35


class Choice(Generic[T]):
    """Draws entries in proportion to their weights, from a table precomputed for speed."""

    def __init__(self, entries: Sequence[T], weights: Sequence[float]) -> None:
        self.entries = tuple(entries)
        self.table: list[T] = []
        total, reached = sum(weights), 0.0
        for entry, weight in zip(self.entries, weights, strict=True):
            reached += weight
            self.table += [entry] * max(1, round(RESOLUTION * reached / total) - len(self.table))
        self.size = len(self.table)

    def pick(self, unit: float) -> T:
        """The entry that a number in [0, 1) falls upon."""
        return self.table[int(unit * self.size)]


def zipf_weights(count: int) -> list[float]:
    """Weights that fall with a power of the rank, flattened at the very top."""
    return [(rank + 2) ** -EXPONENT for rank in range(count)]


def ranked(entries: Sequence[T]) -> Choice[T]:
    """A Zipf distribution over entries in the order of their frequency."""
    return Choice(entries, zipf_weights(len(entries)))


def united(groups: Sequence[Sequence[T]]) -> Choice[T]:
    """A Zipf distribution over several ranked groups, each with its own first, second, ... entry."""
    entries = [entry for group in groups for entry in group]
    return Choice(entries, [weight for group in groups for weight in zipf_weights(len(group))])


def weighted(weights: dict[T, float]) -> Choice[T]:
    """A choice with given weights."""
    return Choice(tuple(weights), tuple(weights.values()))


@dataclass(frozen=True, slots=True, eq=False)
class Noun:
    """A noun or a name with its forms in both languages."""

    kind: str
    english: tuple[str, str]
    """Singular and plural."""
    italian: dict[Gender, tuple[str, str]]
    """Singular and plural for each gender the noun can have."""
    countable: bool = True
    english_place: str = ""
    italian_place: str = ""
    bare_place: bool = False
    """True where the Italian place goes without article: `in cucina`."""

    @property
    def lemma(self) -> str:
        """The English singular, by which the noun is known."""
        return self.english[0]

    @property
    def gender(self) -> Gender:
        """The only gender, or the masculine of a noun with two."""
        return next(iter(self.italian))

    @property
    def epicene(self) -> bool:
        """True where the English noun does not tell the gender."""
        return len(self.italian) == 2


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective; `prenominal` tells its place in Italian."""

    english: str
    italian: str
    prenominal: bool


@dataclass(frozen=True, slots=True, eq=False)
class Verb:
    """A verb with its forms; `objects` names what it selects, `stative` and `momentary` limit its tenses."""

    lemma: str
    forms: english.VerbForms
    conjugation: italian.Conjugation
    objects: str = ""
    stative: bool = False
    momentary: bool = False
    addressing: bool = False


def split_entries(table: str) -> Iterator[list[str]]:
    """The fields of each entry of a table."""
    for entry in table.split(","):
        yield entry.split()


def read_gender(word: str) -> tuple[str, Gender]:
    """`sedia` is feminine by its ending, `chiave.f` by its mark."""
    stem, _, mark = word.partition(".")
    return stem, "f" if mark == "f" or (not mark and stem.endswith("a")) else "m"


def read_noun(kind: str, source: str, target: str, *place: str) -> Noun:
    """A noun from its fields; a star marks a mass noun, a final hyphen a place without article."""
    lemma, mass, _ = source.partition("*")
    forms: dict[Gender, tuple[str, str]] = {}
    for word in target.split("/"):
        singular, gender = read_gender(word)
        forms[gender] = (singular, italian.italian_plural(singular, gender))
    english_place, italian_place = place if place else ("", "")
    return Noun(
        kind,
        (lemma, english.english_plural(lemma)),
        forms,
        not mass and kind not in ("dish", "drink"),
        english_place,
        italian_place.rstrip("-"),
        italian_place.endswith("-"),
    )


def read_proper(kind: str, source: str, target: str, gender: Gender, article: bool = False) -> Noun:
    """A name of a person, a city or a country."""
    return Noun(kind, (source, source), {gender: (target, target)}, False, "in", "in" if article else "a", article)


def read_adjective(source: str, target: str) -> Adjective:
    """An adjective from its fields; a caret marks those that precede the Italian noun."""
    return Adjective(source, target.removeprefix("^"), target.startswith("^"))


def read_verb(frame: str, source: str, target: str, *marks: str) -> Verb:
    """A verb from its fields: the lemmas, what it selects, and the marks of its aspect."""
    objects = next((mark for mark in marks if len(mark) > 1), "")
    lemma = source.replace("_", " ")
    return Verb(
        lemma,
        english.verb_forms(lemma),
        italian.conjugate(target),
        objects,
        "s" in marks,
        "n" in marks,
        frame == "addressing",
    )
