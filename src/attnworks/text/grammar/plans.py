"""Plans of clauses and sentences, before they become words of either language; and their split by lemma combination.

The combination of a clause is the triple (subject lemma, verb lemma, complement lemma), with pronouns replaced by what
they refer to; the complement is the object, adjective, state, predicate noun, place or manner, or the question word,
or the main lemma of a reported clause. A stable checksum of the triple assigns it to `train` (90 %), `valid` (5 %)
or `test` (5 %). A text belongs to a split only if each of its clauses does, also the subordinate ones. So no
combination of a held-out text occurs in training, with any seed, while all its lemmas do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal
from zlib import crc32

from attnworks.text.grammar.entries import Adjective, Noun, Verb
from attnworks.text.grammar.lexicon import COPULA
from attnworks.text.grammar.nominals import Couple, Entity, Nominal
from attnworks.text.grammar.predicates import Tense

Frame = Literal["verbal", "adjective", "state", "noun", "place", "existential", "liking"]
Mood = Literal["statement", "whether", "who", "what", "which", "where", "when", "why"]
Gap = Literal["", "subject", "object"]

SPLITS = ("train", "valid", "test")
SPLIT_BUCKETS = 20
VALID_BUCKET, TEST_BUCKET = 7, 13
Combination = tuple[str, str, str]


@dataclass(slots=True, eq=False)
class Location:
    """A place or a direction, with its English and its Italian preposition."""

    nominal: Nominal
    english: str
    italian: str


@dataclass(slots=True, eq=False)
class Clause:
    """A subject and its predicate. The frame decides which of the other fields are used."""

    frame: Frame
    subject: Entity
    verb: Verb = COPULA
    mood: Mood = "statement"
    tense: Tense = "present"
    negative: bool = False
    modal: str = ""
    adverb: str = ""
    object: Entity | None = None
    recipient: Entity | None = None
    adjective: Adjective | None = None
    degree: str = ""
    standard: Entity | None = None
    """What the subject is compared with."""
    state: Noun | None = None
    predicate: Nominal | None = None
    place: Location | None = None
    manner: str = ""
    time: str = ""
    subject_relative: Clause | None = None
    object_relative: tuple[Clause, Gap] | None = None
    reported: Clause | None = None


@dataclass(slots=True, eq=False)
class SentencePlan:
    """A clause, which may be linked with a second one."""

    clause: Clause
    linker: str = ""
    second: Clause | None = None
    second_first: bool = False
    """True if the linked clause comes first, followed by a comma."""


def entity_lemma(entity: Entity) -> str:
    """The lemma of a noun phrase, or of what a pronoun refers to; other pronouns by person and number."""
    if isinstance(entity, Nominal):
        return entity.noun.lemma
    if isinstance(entity, Couple):
        return f"{entity.first.lemma}+{entity.second.lemma}"
    if entity.antecedent is not None:
        return entity_lemma(entity.antecedent)
    return f"{entity.person}{'p' if entity.plural else 's'}{entity.gender if entity.person == 3 else ''}"


def named_lemmas(entity: Entity) -> list[str]:
    """The lemmas of an entity: two for a couple, one for anything else."""
    return entity_lemma(entity).split("+")


def complement_lemma(clause: Clause) -> str:
    """The lemma of what completes the verb."""
    if clause.mood in ("what", "where", "when", "why"):
        return clause.mood
    if clause.object is not None:
        return entity_lemma(clause.object)
    if clause.adjective is not None:
        return clause.adjective.english
    if clause.state is not None:
        return clause.state.lemma
    if clause.predicate is not None:
        return clause.predicate.noun.lemma
    if clause.reported is not None:
        return complement_lemma(clause.reported) or clause.reported.verb.lemma
    return clause.place.nominal.noun.lemma if clause.place is not None else clause.manner


def combination(clause: Clause) -> Combination:
    """The lemma combination of a clause."""
    if clause.frame == "existential":
        return "there", entity_lemma(clause.subject), complement_lemma(clause)
    subject = "who" if clause.mood == "who" else entity_lemma(clause.subject)
    return subject, clause.verb.lemma, complement_lemma(clause)


def clauses(sentence: SentencePlan) -> Iterator[Clause]:
    """All clauses of a sentence."""
    waiting = [sentence.clause, sentence.second]
    while waiting:
        clause = waiting.pop()
        if clause is None:
            continue
        yield clause
        waiting += [clause.subject_relative, clause.reported]
        if clause.object_relative is not None:
            waiting.append(clause.object_relative[0])


@lru_cache(1 << 18)
def split_of(triple: Combination) -> str:
    """The split of a lemma combination, the same in every process."""
    bucket = (crc32("|".join(triple).encode()) * 2654435761 >> 16) % SPLIT_BUCKETS
    return "valid" if bucket == VALID_BUCKET else "test" if bucket == TEST_BUCKET else "train"
