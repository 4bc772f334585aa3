"""Nouns, adjectives and verbs of the lexicon, how they are read from its tables, and how they are drawn at random.

The rank of an entry decides how often it is drawn, as in Zipf's law.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from attnworks.text.grammar import english, italian
from attnworks.text.grammar.italian import Gender

_T = TypeVar("_T")

CHOICE_TABLE_ENTRIES = 4096
ZIPF_EXPONENT = 1.35


class Choice(Generic[_T]):
    """Draws entries in proportion to their weights, from a table precomputed for speed."""

    def __init__(self, entries: Sequence[_T], weights: Sequence[float]) -> None:
        self.entries = tuple(entries)
        self.table: list[_T] = []
        total, reached = sum(weights), 0.0
        for entry, weight in zip(self.entries, weights, strict=True):
            reached += weight
            self.table += [entry] * max(1, round(CHOICE_TABLE_ENTRIES * reached / total) - len(self.table))
        self.size = len(self.table)

    def pick(self, unit: float) -> _T:
        """The entry that belongs to a number in [0, 1)."""
        return self.table[int(unit * self.size)]


def ranked(*groups: Sequence[_T]) -> Choice[_T]:
    """A choice among entries listed by frequency. Weights fall with a power of the rank of an entry in its group."""
    entries = [entry for group in groups for entry in group]
    return Choice(entries, [(rank + 2) ** -ZIPF_EXPONENT for group in groups for rank in range(len(group))])


def weighted(weights: dict[_T, float]) -> Choice[_T]:
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
    """True where Italian uses no article: `in cucina`."""

    @property
    def lemma(self) -> str:
        """The English singular."""
        return self.english[0]

    @property
    def gender(self) -> Gender:
        """The only gender, or the masculine of a noun with two."""
        return next(iter(self.italian))

    @property
    def epicene(self) -> bool:
        """True where the English noun does not show the gender."""
        return len(self.italian) == 2


@dataclass(frozen=True, slots=True, eq=False)
class Adjective:
    """An adjective; `prenominal` is True where it precedes the Italian noun."""

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


def split_entries(table: str) -> list[list[str]]:
    """The fields of each entry of a table."""
    return [entry.split() for entry in table.split(",")]


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
    english_place, italian_place = place or ("", "")
    countable, bare = not mass and kind not in ("dish", "drink"), italian_place.endswith("-")
    both = (lemma, english.english_plural(lemma))
    return Noun(kind, both, forms, countable, english_place, italian_place.rstrip("-"), bare)


def read_proper(kind: str, source: str, target: str, gender: Gender, article: bool = False) -> Noun:
    """A name of a person, a city or a country."""
    return Noun(kind, (source, source), {gender: (target, target)}, False, "in", "in" if article else "a", article)


def read_adjective(source: str, target: str) -> Adjective:
    """An adjective from its fields; a caret marks those that precede the Italian noun."""
    return Adjective(source, target.removeprefix("^"), target.startswith("^"))


def read_verb(frame: str, source: str, target: str, *marks: str) -> Verb:
    """A verb from its fields: the lemmas, what it selects, and the marks of its aspect."""
    objects = next((mark for mark in marks if len(mark) > 1), "")
    lemma, conjugation = source.replace("_", " "), italian.conjugate(target)
    forms = english.verb_forms(lemma)
    return Verb(lemma, forms, conjugation, objects, "s" in marks, "n" in marks, frame == "addressing")
