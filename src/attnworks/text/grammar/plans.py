"""Plans of clauses and sentences: what is to be said, before it is put into the words of either language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from attnworks.text.grammar.entries import Adjective, Noun, Verb
from attnworks.text.grammar.lexicon import COPULA
from attnworks.text.grammar.nominals import Entity, Nominal
from attnworks.text.grammar.predicates import Tense

Frame = Literal["verbal", "adjective", "state", "noun", "place", "existential", "liking"]
Mood = Literal["statement", "whether", "who", "what", "which", "where", "when", "why"]
Gap = Literal["", "subject", "object"]


@dataclass(slots=True, eq=False)
class Location:
    """A place or a direction, with its English and its Italian preposition."""

    nominal: Nominal
    english: str
    italian: str


@dataclass(slots=True, eq=False)
class Clause:
    """A subject and what is said of it; the frame tells which of the other fields count."""

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
    """What a comparison measures the subject against."""
    state: Noun | None = None
    predicate: Nominal | None = None
    place: Location | None = None
    manner: str = ""
    time: str = ""
    subject_relative: Clause | None = None
    object_relative: tuple[Clause, Gap] | None = None
    reported: Clause | None = None


@dataclass(slots=True, eq=False)
class Sentence:
    """A clause, perhaps linked with a second one."""

    clause: Clause
    linker: str = ""
    second: Clause | None = None
    second_first: bool = False
    """True where the linked clause opens the sentence, followed by a comma."""
