"""Noun phrases in both languages: names, nouns with determiners and adjectives, pronouns and couples of names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from attnworks.text.grammar import english, italian
from attnworks.text.grammar.entries import Adjective, Noun
from attnworks.text.grammar.italian import Gender
from attnworks.text.grammar.lexicon import NUMBERS, OWNERS, QUANTITIES
from attnworks.text.grammar.phrase import Phrase, phrase

PHRASES_CACHED = 1 << 17
PROPER_KINDS = ("name", "city", "country")

ENGLISH_SUBJECTS = {(1, False): "I", (2, False): "you", (1, True): "we", (2, True): "you", (3, True): "they"}
ENGLISH_OBJECTS = {(1, False): "me", (2, False): "you", (1, True): "us", (2, True): "you", (3, True): "them"}
ITALIAN_SUBJECTS = {(1, False): "io", (2, False): "tu", (1, True): "noi", (2, True): "voi", (3, True): "loro"}
OWNER_WORDS = {(1, False): "my", (2, False): "your", (1, True): "our", (2, True): "your", (3, True): "their"}
ARTICLES = {"the": "definite", "a": "indefinite", "another": "indefinite", "some": "partitive", "all the": "all"}
"""English determiner -> the kind of the Italian article."""


class Features(NamedTuple):
    """What decides the form of a pronoun or a verb."""

    person: int
    plural: bool
    gender: Gender
    animate: bool


@dataclass(slots=True, eq=False)
class Nominal:
    """A noun phrase in the third person."""

    noun: Noun
    determiner: str = ""
    plural: bool = False
    feminine: bool = False
    """True for the feminine of a noun whose English side has no gender."""
    before: Adjective | None = None
    after: Adjective | None = None
    possessor: Noun | None = None
    owner: Entity | None = None
    """What a possessive determiner refers to."""

    person = 3

    @property
    def gender(self) -> Gender:
        """The grammatical gender in Italian, in the number of the phrase."""
        chosen: Gender = "f" if self.feminine else self.noun.gender
        return italian.gender_in_number(self.noun.italian[chosen][0], chosen, self.plural)

    @property
    def animate(self) -> bool:
        """True for people, who are `he` and `she` in English."""
        return self.noun.kind in ("name", "person", "kin")


@dataclass(slots=True, eq=False)
class Couple:
    """Two names joined by `and`."""

    first: Noun
    second: Noun

    person = 3
    plural = True
    animate = True

    @property
    def gender(self) -> Gender:
        """Feminine only where both are."""
        return "f" if self.first.gender == self.second.gender == "f" else "m"


@dataclass(slots=True, eq=False)
class Pronoun:
    """A pronoun; in the third person it may refer to an antecedent."""

    person: int
    plural: bool = False
    gender: Gender = "m"
    animate: bool = True
    antecedent: Entity | None = None
    stressed: bool = False
    """True where the Italian subject is kept for contrast."""


Entity = Nominal | Couple | Pronoun


def features(entity: Entity) -> Features:
    """What a pronoun, a verb or a predicate agrees with."""
    return Features(entity.person, entity.plural, entity.gender, entity.animate)


def pronoun_for(entity: Entity) -> Pronoun:
    """The pronoun that refers back to an entity."""
    antecedent = entity.antecedent if isinstance(entity, Pronoun) and entity.antecedent else entity
    return Pronoun(entity.person, entity.plural, entity.gender, entity.animate, antecedent)


def english_subject(pronoun: Features) -> str:
    """`I`, `he`, `it`, `they`, ..."""
    named = ENGLISH_SUBJECTS.get((pronoun.person, pronoun.plural))
    return named or ("it" if not pronoun.animate else "she" if pronoun.gender == "f" else "he")


def english_object(pronoun: Features) -> str:
    """`me`, `him`, `it`, `them`, ..."""
    named = ENGLISH_OBJECTS.get((pronoun.person, pronoun.plural))
    return named or ("it" if not pronoun.animate else "her" if pronoun.gender == "f" else "him")


def owner_word(entity: Entity) -> str:
    """The possessive determiner: `my`, `his`, `her`, `their`, ..."""
    named = OWNER_WORDS.get((entity.person, entity.plural))
    return named or ("its" if not entity.animate else "her" if entity.gender == "f" else "his")


def realise(entity: Entity, prepositions: tuple[str, str] = ("", "")) -> Phrase:
    """The phrase of an entity as a subject, or after an English and an Italian preposition."""
    if isinstance(entity, Nominal):
        noun, modifiers = entity.noun, (entity.before, entity.after, entity.possessor)
        return noun_phrase(noun, entity.determiner, entity.plural, entity.feminine, *modifiers, *prepositions)
    if isinstance(entity, Couple):
        return couple_phrase(entity.first, entity.second, *prepositions)
    return pronoun_phrase(features(entity), entity.stressed)


@lru_cache(PHRASES_CACHED)
def pronoun_phrase(pronoun: Features, stressed: bool) -> Phrase:
    """A subject pronoun; Italian drops it unless it is stressed."""
    word = english_subject(pronoun)
    if not stressed:
        return phrase((word,), (), (), 0, -1, (("subject", 0, -1),))
    kept = ITALIAN_SUBJECTS.get((pronoun.person, pronoun.plural)) or ("lei" if pronoun.gender == "f" else "lui")
    return phrase((word,), (kept,), ((0, 0),), 0, 0, (("subject", 0, 0),))


@lru_cache(PHRASES_CACHED)
def couple_phrase(first: Noun, second: Noun, english_preposition: str, italian_preposition: str) -> Phrase:
    """`Luca and Maria`; the second name depends on the first."""
    one, two = first.italian[first.gender][0], second.italian[second.gender][0]
    left = english_preposition.split()
    right = italian.before(italian_preposition, one).split() if italian_preposition else []
    i, j = len(left), len(right)  # the positions of the first name
    prepositions = product(range(i), range(j))
    return Phrase(
        (*left, first.lemma, "and", second.lemma),
        (*right, one, italian.conjunction(two), two),
        (*[i] * i, -1, i + 2, i),
        (*[j] * j, -1, j + 2, j),
        (*prepositions, (i, j), (i + 1, j + 1), (i + 2, j + 2)),
        i,
        j,
        mentions=((i, j), (i + 2, j + 2)),
    )


@lru_cache(PHRASES_CACHED)
def noun_phrase(
    noun: Noun,
    determiner: str,
    plural: bool,
    feminine: bool,
    before: Adjective | None,
    after: Adjective | None,
    possessor: Noun | None,
    english_preposition: str,
    italian_preposition: str,
) -> Phrase:
    """A noun with all its dependents in both languages."""
    chosen: Gender = "f" if feminine else noun.gender
    gender = italian.gender_in_number(noun.italian[chosen][0], chosen, plural)
    left = _english_words(noun, determiner, plural, before, after, possessor, english_preposition)
    adjectives = [("after", italian.agree(after.italian, gender, plural))] if after else []
    if before and not before.prenominal:
        adjectives.insert(0, ("before", italian.agree(before.italian, gender, plural)))
    head = noun.italian[chosen][plural]
    words = [("noun", head), *adjectives]
    if before and before.prenominal:
        words.insert(0, ("before", italian.agree_before_noun(before.italian, gender, plural, head)))
    modified = before is not None or after is not None
    bare_place = noun.bare_place and not modified and determiner == "the" and not plural and italian_preposition == "in"
    bare = bare_place or (noun.kind == "country" and italian_preposition == "in")
    rest = words if bare_place else _with_quantifier(words, determiner, gender, plural)
    article = "" if bare else _article(noun, determiner, plural, modified, possessor is not None)
    right = [*_opening(article, italian_preposition, gender, plural, rest), *rest]
    if possessor:
        name = possessor.italian[possessor.gender][0]
        right += [("'s", italian.before("di", name)), ("possessor", name)]
    return _aligned(left, right)


def _english_words(
    noun: Noun,
    determiner: str,
    plural: bool,
    before: Adjective | None,
    after: Adjective | None,
    possessor: Noun | None,
    preposition: str,
) -> list[tuple[str, str]]:
    """The tagged English words, in order."""
    words = [("noun", noun.english[plural])]
    if after:
        words.insert(0, ("after", after.english))
    if before:
        words.insert(0, ("before", before.english))
    if possessor:
        words = [("possessor", possessor.lemma), ("'s", "'s"), *words]
    elif determiner == "a":
        words.insert(0, ("determiner", english.english_indefinite(words[0][1])))
    else:
        words = [("all" if word == "all" else "determiner", word) for word in determiner.split()] + words
    return [("preposition", word) for word in preposition.split()] + words


def _with_quantifier(
    words: list[tuple[str, str]], determiner: str, gender: Gender, plural: bool
) -> list[tuple[str, str]]:
    """The Italian words after a possessive, number, demonstrative or quantity."""
    following = words[0][1]
    if determiner in OWNERS:
        word = italian.agree(OWNERS[determiner], gender, plural)
    elif determiner in NUMBERS:
        word = NUMBERS[determiner]
    elif determiner in QUANTITIES:
        word = italian.agree(QUANTITIES[determiner], gender, plural)
    elif determiner in ("this", "these"):
        word = italian.agree_before_noun("questo", gender, plural, following)
    elif determiner in ("that", "those"):
        word = italian.agree_before_noun("quello", gender, plural, following)
    elif determiner == "every":
        word = "ogni"
    elif determiner == "another":
        word = italian.agree("altro", gender, plural)
    else:
        return words
    return [("determiner", word), *words]


def _article(noun: Noun, determiner: str, plural: bool, modified: bool, possessed: bool) -> str:
    """The kind of the Italian article: definite, indefinite, partitive, all or none."""
    if possessed or noun.kind == "country":
        return "definite"
    if noun.kind in PROPER_KINDS:
        return ""
    if determiner in OWNERS:
        close = noun.kind == "kin" and not plural and not modified and determiner != "their"
        return "" if close else "definite"
    if determiner == "":
        return "" if noun.countable or plural else "definite"
    return ARTICLES.get(determiner, "")


def _opening(
    article: str, preposition: str, gender: Gender, plural: bool, rest: list[tuple[str, str]]
) -> list[tuple[str, str]]:
    """The tagged Italian words before the rest of the phrase: preposition and article, contracted or apart."""
    following = rest[0][1]
    if article == "all":
        every = italian.agree("tutto", gender, plural)
        inner = ("determiner", italian.definite(gender, plural, following))
        return [*_tagged(italian.before(preposition, every) if preposition else ""), ("all", every), inner]
    if article == "indefinite":
        word = italian.italian_indefinite(gender, following)
        return [*_tagged(italian.before(preposition, word) if preposition else ""), ("determiner", word)]
    if article == "partitive":
        word = italian.contract("di", italian.definite(gender, plural, following))
        return [*_tagged(preposition), ("determiner", word)]
    if article == "definite":
        word = italian.definite(gender, plural, following)
        if not preposition:
            return [("determiner", word)]
        *first, last = italian.contract(preposition, word).split()
        return [*_tagged(" ".join(first)), ("determiner" if last == word else "contracted", last)]
    return _tagged(italian.before(preposition, following) if preposition else "")


def _tagged(preposition: str) -> list[tuple[str, str]]:
    return [("preposition", word) for word in preposition.split()]


def _aligned(left: list[tuple[str, str]], right: list[tuple[str, str]]) -> Phrase:
    """The phrase of words aligned by their tags. `'s` and `di` depend on the possessor, all others on the noun."""
    links = tuple(
        (i, j)
        for i, (tag, _) in enumerate(left)
        for j, (other, _) in enumerate(right)
        if tag == other or (other == "contracted" and tag in ("preposition", "determiner"))
    )
    source_root, target_root = ([tag for tag, _ in side].index("noun") for side in (left, right))
    owner = next((i for i, (tag, word) in enumerate(left) if tag == "determiner" and word in OWNERS), None)
    owned = [j for j, (tag, _) in enumerate(right) if tag == "determiner"]
    return Phrase(
        tuple(word for _, word in left),
        tuple(word for _, word in right),
        _governors(left, source_root),
        _governors(right, target_root),
        links,
        source_root,
        target_root,
        () if owner is None else (("owner", owner, owned[-1]),),
    )


def _governors(words: list[tuple[str, str]], root: int) -> tuple[int, ...]:
    tags = [tag for tag, _ in words]
    possessor = tags.index("possessor") if "possessor" in tags else root
    return tuple(-1 if place == root else possessor if tag == "'s" else root for place, tag in enumerate(tags))
