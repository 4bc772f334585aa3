"""Random noun phrases with number, determiner and adjectives, and the noun phrases that pronouns refer to.

A pronoun of a second sentence refers to a noun phrase of the first sentence: to the first one that it agrees with, in
the order subject, object, recipient, place, and without the subject of its own clause. People are he and she, animals
and things are it. So the English text alone decides the reference, and with it the Italian gender.
"""

from __future__ import annotations

from random import Random

from attnworks.text.grammar.entries import Adjective, Choice, Noun, weighted
from attnworks.text.grammar.italian import Gender
from attnworks.text.grammar.lexicon import ADJECTIVE_CHOICE, CLASSIFYING, NOUN_CHOICE, NUMBERS
from attnworks.text.grammar.nominals import PROPER_KINDS, Couple, Entity, Nominal, Pronoun, owner_word
from attnworks.text.grammar.plans import Clause, Location, named_lemmas

UNREFERABLE = ("every", "how many", "few")

OWN, POSSESSOR, NUMBER = "own", "possessor", "number"
PLURAL_SHARE = 0.24
PLURAL_SUBJECT_SHARE = 0.15
ONLY_ONE = frozenset(("mother", "father", "wife", "husband"))
CLOSE_PEOPLE = frozenset(
    ("friend", "teacher", "student", "doctor", "neighbor", "colleague", "lawyer", "psychologist", "cook")
)
POSSESSIVE_DETERMINERS = (POSSESSOR, "my", "our", "your", OWN)
# Determiners of the singular and of the plural.
SUBJECT_DETERMINERS = (
    weighted({"the": 50, "my": 16, "this": 6, "that": 5, "a": 5, "our": 5, "your": 5, POSSESSOR: 8}),
    weighted({
        "the": 50, "my": 14, NUMBER: 12, "these": 6, "those": 5, "many": 4, "our": 4, "all the": 5, "some": 3,
        "several": 1,
    }),
)  # fmt: skip
KIN_DETERMINERS = (
    weighted({"my": 48, "your": 14, "our": 12, POSSESSOR: 26}),
    weighted({"my": 60, "your": 15, "our": 25}),
)
OBJECT_DETERMINERS = (
    weighted({"a": 34, "the": 34, OWN: 10, "my": 5, "this": 6, "that": 4, "another": 3, POSSESSOR: 4}),
    weighted({
        "the": 34, NUMBER: 20, "": 10, "some": 12, OWN: 6, "many": 5, "these": 5, "those": 3, "all the": 3, "few": 2,
    }),
)  # fmt: skip
LIKED_DETERMINERS = (
    weighted({"the": 52, "this": 14, "that": 10, "my": 8, "your": 4, POSSESSOR: 12}),
    weighted({"the": 60, "these": 18, "those": 12, "my": 10}),
)
HAD_DETERMINERS = (
    weighted({"a": 80, "another": 10, "this": 10}),
    weighted({NUMBER: 50, "many": 25, "some": 15, "few": 10}),
)
LIKED_MASS_DETERMINERS = weighted({"": 60, "the": 25, "this": 15})
MASS_DETERMINERS = weighted({"": 38, "the": 36, "some": 22, "my": 4})
PLACE_DETERMINERS = weighted({"the": 86, "a": 6, "this": 4, "our": 4})
SUBJECT_KINDS = weighted({"person": 74, "thing": 14, "animal": 8, "site": 4})
PERSONS = weighted({"name": 46, "person": 22, "kin": 14, "couple": 5, "speaker": 11})
SITES = weighted({"city": 40, "country": 25, "place": 35})
THINGS = weighted({"ware": 28, "furniture": 22, "clothes": 18, "text": 14, "food": 12, "vehicle": 12, "dish": 5})
SPEAKERS = weighted({(1, False): 60, (1, True): 20, (2, False): 20})
STRANGERS: Choice[tuple[bool, Gender]] = weighted({(False, "m"): 40, (False, "f"): 40, (True, "m"): 20})
SURFACES = frozenset(("chair", "table", "bed", "sofa", "desk", "shelf", "carpet", "armchair"))
AROUND = weighted({
    ("under", "sotto"): 30, ("near", "vicino a"): 25, ("behind", "dietro"): 20, ("next to", "accanto a"): 15,
    ("in front of", "davanti a"): 10,
})  # fmt: skip


class NothingFitsError(Exception):
    """No clause of the split, or no antecedent, fits what was drawn before."""


def referable(clause: Clause) -> list[Entity]:
    """What a later pronoun can refer to, in the order of preference."""
    place = clause.place.nominal if clause.place is not None else None
    mentioned = (clause.subject, clause.object, clause.recipient, place)
    return [
        entity
        for entity in mentioned
        if isinstance(entity, Couple) or (isinstance(entity, Nominal) and entity.determiner not in UNREFERABLE)
    ]


def pronoun_class(entity: Entity) -> tuple[bool, bool, str]:
    """What the English pronoun shows: number, then people or not, then the gender of people."""
    if entity.plural:
        return True, False, ""
    return False, entity.animate, entity.gender if entity.animate else ""


def resolve(pronoun: Pronoun, antecedents: list[Entity], subject: Entity | None = None) -> Entity:
    """The first antecedent that a pronoun agrees with, other than the subject of its clause."""
    own = subject.antecedent if isinstance(subject, Pronoun) else subject
    wanted = pronoun_class(pronoun)
    for entity in antecedents:
        if entity is not own and pronoun_class(entity) == wanted:
            return entity
    raise NothingFitsError


def same_reference(one: Entity, other: Entity) -> bool:
    """True if two noun phrases may be the same person."""
    if isinstance(one, Pronoun) or isinstance(other, Pronoun):
        pronouns = isinstance(one, Pronoun) and isinstance(other, Pronoun)
        return pronouns and (one.person, one.plural, one.gender) == (other.person, other.plural, other.gender)
    return not set(named_lemmas(one)).isdisjoint(named_lemmas(other))


def confusable(one: Entity, other: Entity) -> bool:
    """True if a reader could take a pronoun for the other noun phrase."""
    if isinstance(one, Pronoun) == isinstance(other, Pronoun) or one.person != other.person:
        return False
    either = any(isinstance(entity, Nominal) and entity.noun.epicene for entity in (one, other))
    return one.plural == other.plural and (either or pronoun_class(one) == pronoun_class(other))


NUMBER_CHOICE = weighted({number: 1 / (rank + 1.5) for rank, number in enumerate(NUMBERS)})


class EntityDrawer:
    """Draws entities from one stream of random numbers."""

    def __init__(self, random: Random) -> None:
        self.unit = random.random

    def chance(self, probability: float) -> bool:
        """True with the given probability."""
        return self.unit() < probability

    def noun(self, group: str) -> Noun:
        """A noun of a kind or of a group of kinds."""
        return NOUN_CHOICE[group].pick(self.unit())

    def subject(self) -> Entity:
        """The subject of a text: a person, an animal, a thing or a place."""
        kind = SUBJECT_KINDS.pick(self.unit())
        if kind == "person":
            return self.person()
        if kind == "animal":
            return self.described(Nominal(self.noun("animal")), 0.2)
        group = (THINGS if kind == "thing" else SITES).pick(self.unit())
        return self.described(Nominal(self.noun(group)), 0.2)

    def person(self) -> Entity:
        """A person, a couple, or the speaker and hearer."""
        kind = PERSONS.pick(self.unit())
        if kind == "speaker":
            return self.speaker()
        if kind != "couple":
            return self.described(Nominal(self.noun(kind)), 0.12)
        first = self.noun("name")
        second = self.noun("name")
        return Couple(first, second) if first is not second else Nominal(first)

    def speaker(self) -> Pronoun:
        """I, we or you."""
        return Pronoun(*SPEAKERS.pick(self.unit()))

    def stranger(self) -> Pronoun:
        """He, she or they, without an antecedent."""
        return Pronoun(3, *STRANGERS.pick(self.unit()))

    def described(self, nominal: Nominal, adjectives: float) -> Nominal:
        """Choose the number, determiner and adjectives of a subject."""
        noun = nominal.noun
        if noun.kind in PROPER_KINDS:
            return nominal
        nominal.plural = noun.countable and noun.lemma not in ONLY_ONE and self.chance(PLURAL_SUBJECT_SHARE)
        if noun.countable:
            choices = KIN_DETERMINERS if noun.kind == "kin" else SUBJECT_DETERMINERS
            self.determine(nominal, choices[nominal.plural], None)
        else:
            nominal.determiner = "the"
        self.modify(nominal, adjectives)
        return nominal

    def detailed(self, nominal: Nominal, subject: Entity, verb: str = "") -> None:
        """Choose the number, determiner and adjectives of an object."""
        noun = nominal.noun
        if noun.kind in PROPER_KINDS:
            return
        nominal.plural = noun.countable and noun.lemma not in ONLY_ONE and self.chance(PLURAL_SHARE)
        if noun.kind == "kin":
            self.determine(nominal, KIN_DETERMINERS[nominal.plural], subject)
            if self.chance(0.5):
                self.own(nominal, subject)
        elif not noun.countable:
            self.determine(nominal, LIKED_MASS_DETERMINERS if verb == "like" else MASS_DETERMINERS, subject)
        else:
            liked, had = verb in ("like", "love"), verb in ("have", "be")
            choices = LIKED_DETERMINERS if liked else HAD_DETERMINERS if had else OBJECT_DETERMINERS
            self.determine(nominal, choices[nominal.plural], subject)
        self.modify(nominal, 0.24)

    def determine(self, nominal: Nominal, choice: Choice[str], subject: Entity | None) -> None:
        """Choose a determiner, with its number, possessor or owner."""
        determiner = choice.pick(self.unit())
        if nominal.noun.kind == "person" and nominal.noun.lemma not in CLOSE_PEOPLE:
            determiner = "the" if determiner in POSSESSIVE_DETERMINERS else determiner
        if determiner == NUMBER:
            determiner = NUMBER_CHOICE.pick(self.unit())
        elif determiner == OWN:
            self.own(nominal, subject)
            return
        elif determiner == POSSESSOR:
            nominal.possessor = self.possessor(subject)
            determiner = "" if nominal.possessor is not None else "the"
        nominal.determiner = determiner

    def possessor(self, subject: Entity | None) -> Noun | None:
        """A name other than the subject."""
        name = self.noun("name")
        return None if subject is not None and name.lemma in named_lemmas(subject) else name

    def own(self, nominal: Nominal, subject: Entity | None) -> None:
        """Make the subject the owner: `Maria ... her book`."""
        if subject is None or not subject.animate:
            nominal.determiner, nominal.possessor = "the", None
            return
        nominal.determiner, nominal.possessor, nominal.owner = owner_word(subject), None, subject

    def modify(self, nominal: Nominal, probability: float) -> None:
        """Add one adjective, or a prenominal one followed by a classifying one."""
        if not self.chance(probability):
            return
        nominal.before = self.adjective(nominal.noun)
        if nominal.before.prenominal and self.chance(0.2):
            second = self.adjective(nominal.noun)
            nominal.after = second if second.english in CLASSIFYING else None

    def adjective(self, noun: Noun) -> Adjective:
        """An adjective that suits a noun."""
        return ADJECTIVE_CHOICE[noun.kind].pick(self.unit())

    def location(self, direction: bool = False) -> Location:
        """A city, a country or another place, where something happens or where a person goes."""
        noun = self.noun(SITES.pick(self.unit()))
        nominal = Nominal(noun)
        if noun.kind == "place":
            nominal.determiner = PLACE_DETERMINERS.pick(self.unit())
            self.modify(nominal, 0.12)
        return Location(nominal, "to" if direction else noun.english_place, noun.italian_place)

    def origin(self) -> Location:
        """A city or a country that a person comes from."""
        return Location(Nominal(self.noun("city" if self.chance(0.5) else "country")), "from", "da")

    def spot(self) -> Location:
        """A spot on, under or near a piece of furniture."""
        nominal = Nominal(self.noun("furniture"), "the")
        self.modify(nominal, 0.15)
        if nominal.noun.lemma in SURFACES and self.chance(0.5):
            return Location(nominal, "on", "su")
        return Location(nominal, *AROUND.pick(self.unit()))
