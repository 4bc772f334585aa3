"""Reference: which noun phrase a pronoun stands for.

A pronoun of a second sentence refers to the first noun phrase of the first sentence, in the order subject, object,
recipient, place, that it agrees with (people are he and she, animals and things it), passing over the subject of its
own clause. So the reference, and with it the Italian gender, follows from the English text.
"""

from __future__ import annotations

from attnworks.text.grammar.nominals import Couple, Entity, Nominal, Pronoun
from attnworks.text.grammar.plans import Clause

UNREFERABLE = ("every", "how many", "few")


class NothingFitsError(Exception):
    """No clause of the wanted split, or no antecedent, was found for what was drawn before."""


def referable(clause: Clause) -> list[Entity]:
    """What a later pronoun can refer to, in the order of preference."""
    place = clause.place.nominal if clause.place is not None else None
    mentioned = (clause.subject, clause.object, clause.recipient, place)
    return [entity for entity in mentioned if entity is not None and is_referable(entity)]


def is_referable(entity: Entity) -> bool:
    """True of definite or counted things and people; not of pronouns, quantities and geography."""
    if isinstance(entity, Pronoun):
        return False
    return isinstance(entity, Couple) or entity.determiner not in UNREFERABLE


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
    """True where two noun phrases may be the same person."""
    if isinstance(one, Pronoun) or isinstance(other, Pronoun):
        pronouns = isinstance(one, Pronoun) and isinstance(other, Pronoun)
        return pronouns and (one.person, one.plural, one.gender) == (other.person, other.plural, other.gender)
    ours, theirs = names_of(one), names_of(other)
    return bool(ours & theirs)


def confusable(one: Entity, other: Entity) -> bool:
    """True where a pronoun would be taken for the other noun phrase."""
    if isinstance(one, Pronoun) == isinstance(other, Pronoun) or one.person != other.person:
        return False
    either = any(isinstance(entity, Nominal) and entity.noun.epicene for entity in (one, other))
    return one.plural == other.plural and (either or pronoun_class(one) == pronoun_class(other))


def names_of(entity: Nominal | Couple) -> set[str]:
    """The lemmas that an entity names."""
    return {entity.first.lemma, entity.second.lemma} if isinstance(entity, Couple) else {entity.noun.lemma}
