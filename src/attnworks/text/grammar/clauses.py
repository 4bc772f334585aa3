"""Random clauses: first a lemma combination of the requested split, then tense, negation, place and time."""

from __future__ import annotations

from random import Random

from attnworks.text.grammar.entities import EntityDrawer, NothingFitsError
from attnworks.text.grammar.entries import Choice, Verb, ranked, weighted
from attnworks.text.grammar.lexicon import (
    COMMON_VERBS,
    COPULA,
    LIKING,
    MANNERS,
    OBJECT_GROUPS,
    PASSING,
    STATE_CHOICE,
    UNGRADED,
    VERB_CHOICE,
    VERBS_BY_FRAME,
)
from attnworks.text.grammar.nominals import Couple, Entity, Nominal, Pronoun
from attnworks.text.grammar.plans import Clause, combination, entity_lemma, named_lemmas, split_of
from attnworks.text.grammar.predicates import Tense

MAX_CLAUSE_ATTEMPTS = 300

PERSON_FRAMES = weighted({
    "transitive": 38, "adjective": 12, "activity": 10, "motion": 8, "liking": 8, "reflexive": 6, "giving": 6,
    "addressing": 5, "place": 5, "noun": 5, "state": 5, "comparison": 3,
})  # fmt: skip
ANIMAL_FRAMES = weighted({"adjective": 30, "activity": 25, "transitive": 25, "spot": 15, "comparison": 5})
THING_FRAMES = weighted({"adjective": 55, "spot": 35, "comparison": 10})
SITE_FRAMES = weighted({"adjective": 80, "comparison": 20})
FRAMES_OF_KINDS = {
    "person": PERSON_FRAMES, "kin": PERSON_FRAMES, "name": PERSON_FRAMES, "animal": ANIMAL_FRAMES,
    "place": SITE_FRAMES, "city": SITE_FRAMES, "country": SITE_FRAMES,
}  # fmt: skip

ANIMAL_VERBS = {
    frame: ranked([verb for verb in VERBS_BY_FRAME[frame] if verb.lemma in lemmas])
    for frame, lemmas in {
        "transitive": ("eat", "see", "look for", "follow", "find"),
        "activity": ("sleep", "run", "play", "swim", "walk"),
    }.items()
}
NO_PROFESSIONS = frozenset(("boy", "girl", "woman", "man", "child", "lady", "king", "queen"))
WHAT_GROUPS = frozenset(("meal", "text", "anything", "drink", "thing", "belonging", "ware", "clothes"))

TENSES: Choice[Tense] = weighted({"present": 28, "progressive": 24, "past": 28, "perfect": 9, "future": 11})
STATIVE_TENSES: Choice[Tense] = weighted({"present": 68, "past": 24, "future": 8})
MOMENTARY_TENSES: Choice[Tense] = weighted({"present": 32, "past": 44, "perfect": 12, "future": 12})
LIKING_TENSES: Choice[Tense] = weighted({"present": 74, "past": 20, "future": 6})
MODAL_CHOICE = weighted({"can": 36, "must": 34, "want": 30})
DEGREE_CHOICE = weighted({"very": 60, "really": 15, "too": 14, "so": 11})
PRESENT_ADVERBS = weighted({"always": 34, "often": 26, "never": 26, "sometimes": 9, "rarely": 5})
PERFECT_ADVERBS = weighted({"already": 45, "just": 30, "never": 15, "finally": 10})
COPULAR_ADVERBS = weighted({"always": 40, "still": 26, "often": 18, "never": 16})
MANNER_CHOICE = ranked(tuple(MANNERS))
TIME_CHOICE = {
    "present": ranked(("every day", "every morning", "every week", "every year")),
    "progressive": ranked(("now", "today")),
    "past": ranked(("yesterday", "last night", "last week", "two days ago", "on Sunday", "last year")),
    "perfect": ranked(("today",)),
    "future": ranked(("tomorrow", "tonight", "soon", "on Sunday", "next week", "next year")),
}
TIME_SHARE = {"present": 0.14, "progressive": 0.2, "past": 0.34, "perfect": 0.08, "future": 0.45}
COPULAR_FRAMES = ("adjective", "state", "noun", "place")


class ClauseDrawer(EntityDrawer):
    """Draws clauses whose lemma combinations belong to one split."""

    def __init__(self, random: Random, split: str) -> None:
        super().__init__(random)
        self.split = split

    def fits(self, clause: Clause) -> bool:
        """True if the lemma combination of a clause belongs to the split."""
        return split_of(combination(clause)) == self.split

    def clause(self, subject: Entity | None = None, frames: tuple[str, ...] = ()) -> Clause:
        """A clause of the split, about the given subject or a random one."""
        for _ in range(MAX_CLAUSE_ATTEMPTS):
            about = subject if subject is not None else self.subject()
            frame = self.frame(about)
            if frames and frame not in frames:
                continue
            clause = self.core(frame, about)
            if clause is not None and self.fits(clause):
                self.finish(clause)
                return clause
        raise NothingFitsError

    def condition(self, subject: Entity) -> Clause:
        """A passing state of a person, as a reason or a circumstance."""
        while True:
            clause = self.clause(subject, ("adjective", "state"))
            if clause.adjective is None or clause.adjective.english in PASSING:
                return clause

    def existential(self) -> Clause:
        """`There is a cat in the garden`."""
        for _ in range(MAX_CLAUSE_ATTEMPTS):
            group = "person" if self.chance(0.3) else "animal" if self.chance(0.4) else "ware"
            place = self.spot() if group == "ware" else self.location()
            clause = Clause("existential", Nominal(self.noun(group)), place=place)
            if place.nominal.noun.kind not in ("city", "country") and self.fits(clause):
                self.detail_existential(clause)
                return clause
        raise NothingFitsError

    def detail_existential(self, clause: Clause) -> None:
        """Number, determiner and tense of an existential clause."""
        thing = clause.subject
        assert isinstance(thing, Nominal)
        self.detailed(thing, Pronoun(1), "be")
        if thing.determiner == "this":
            thing.determiner = "a"
        clause.tense = STATIVE_TENSES.pick(self.unit())
        clause.mood = "whether" if self.chance(0.12) else "statement"

    def frame(self, subject: Entity) -> str:
        """A frame that suits the subject."""
        if isinstance(subject, Pronoun) and subject.antecedent is not None:
            subject = subject.antecedent
        if isinstance(subject, Nominal):
            return FRAMES_OF_KINDS.get(subject.noun.kind, THING_FRAMES).pick(self.unit())
        return PERSON_FRAMES.pick(self.unit())

    def core(self, frame: str, subject: Entity) -> Clause | None:
        """The lemmas of a clause, not yet inflected."""
        if frame in ("transitive", "addressing", "giving"):
            return self.object_core(frame, subject)
        if frame in ("adjective", "comparison"):
            return self.adjective_core(subject, frame == "comparison")
        if frame == "liking":
            return Clause("liking", subject, LIKING, object=Nominal(self.noun("pleasant")))
        if frame == "state":
            return Clause("state", subject, state=STATE_CHOICE.pick(self.unit()))
        if frame == "noun":
            return self.profession_core(subject)
        if frame == "place":
            return Clause("place", subject, place=self.location())
        if frame == "spot":
            place = self.location() if self.chance(0.25) or is_vehicle(subject) else self.spot()
            bad = place.nominal.noun.kind in ("city", "country") or place.nominal.noun.lemma == entity_lemma(subject)
            return None if bad else Clause("place", subject, place=place)
        return self.intransitive_core(frame, subject)

    def verb(self, frame: str, subject: Entity) -> Verb:
        """A verb of a frame that suits the subject."""
        return (VERB_CHOICE if subject.animate else ANIMAL_VERBS)[frame].pick(self.unit())

    def object_core(self, frame: str, subject: Entity) -> Clause | None:
        """A verb with its object, and with a recipient if it is a verb of giving."""
        verb = self.verb(frame, subject)
        if subject.person < 3 and verb not in COMMON_VERBS:
            return None
        patient: Entity = Nominal(self.noun(verb.objects))
        if patient.animate and self.chance(0.12):
            patient = self.speaker()
            if patient.person == subject.person:
                return None
        if entity_lemma(patient) in named_lemmas(subject):
            return None
        clause = Clause("verbal", subject, verb, object=patient)
        if frame == "giving":
            if not isinstance(patient, Nominal):
                return None
            clause.recipient = self.recipient(subject)
            return clause if clause.recipient is not None else None
        return clause

    def recipient(self, subject: Entity) -> Entity | None:
        """A person other than the subject who receives something; None if the drawn person does not fit."""
        receiver = self.person()
        taken = isinstance(receiver, Couple) or receiver.person == subject.person < 3
        names = named_lemmas(subject)
        related = isinstance(receiver, Nominal) and receiver.possessor is not None and receiver.possessor.lemma in names
        if taken or related or entity_lemma(receiver) in names:
            return None
        return receiver

    def adjective_core(self, subject: Entity, compared: bool) -> Clause | None:
        """A subject with an adjective, or compared with something of the same kind."""
        named = subject.antecedent if isinstance(subject, Pronoun) and subject.antecedent else subject
        noun = named.noun if isinstance(named, Nominal) else self.noun("name")
        adjective = self.adjective(noun)
        clause = Clause("adjective", subject, adjective=adjective)
        if isinstance(named, Nominal) and adjective in (named.before, named.after):
            return None
        if compared:
            other = self.noun("name" if noun.kind in ("person", "kin") else noun.kind)
            unlike = other.lemma in named_lemmas(subject) or noun.kind == "dish"
            if unlike or adjective.english in UNGRADED:
                return None
            clause.standard = self.standard(Nominal(other))
        return clause

    def standard(self, nominal: Nominal) -> Nominal:
        """What a subject is compared with: a name, or one definite thing."""
        if nominal.noun.kind not in ("name", "city", "country"):
            nominal.determiner = "this" if self.chance(0.3) else "that" if self.chance(0.3) else "the"
        return nominal

    def profession_core(self, subject: Entity) -> Clause | None:
        """A person and a profession; the predicate noun takes the gender of the subject."""
        noun = self.noun("person")
        if not noun.epicene or subject.plural or noun.lemma in NO_PROFESSIONS or noun.lemma == entity_lemma(subject):
            return None
        return Clause("noun", subject, predicate=Nominal(noun, "a", feminine=subject.gender == "f"))

    def intransitive_core(self, frame: str, subject: Entity) -> Clause | None:
        """A verb with a place or a manner, or alone."""
        verb = self.verb(frame, subject)
        if subject.person < 3 and verb not in COMMON_VERBS:
            return None
        clause = Clause("verbal", subject, verb)
        if frame == "motion":
            if verb.lemma == "come" and self.chance(0.6):
                clause.place = self.origin()
            else:
                clause.place = self.location(direction=verb.lemma in ("go", "return", "come"))
        elif verb.lemma == "live" or (frame == "activity" and self.chance(0.6)):
            clause.place = self.location()
            animal_abroad = not subject.animate and clause.place.nominal.noun.kind != "place"
            return None if animal_abroad else clause
        elif frame == "activity" and self.chance(0.6):
            clause.manner = MANNER_CHOICE.pick(self.unit())
        return clause

    def finish(self, clause: Clause) -> None:
        """Choose determiners, tense, negation, place and time of a clause whose lemmas are known."""
        self.tense(clause)
        for entity in (clause.object, clause.predicate):
            if isinstance(entity, Nominal) and clause.frame != "noun":
                self.detailed(entity, clause.subject, clause.verb.lemma)
        if clause.predicate is not None:
            self.modify(clause.predicate, 0.35)
        denied = clause.negative or clause.adverb == "never"
        if denied and isinstance(clause.object, Nominal) and clause.object.determiner == "some":
            clause.object.determiner = "the"
        if clause.frame in ("adjective", "state") and clause.standard is None and self.chance(0.34):
            self.degree(clause)
        copular = clause.frame in COPULAR_FRAMES
        placeless = clause.frame == "verbal" and clause.place is None and clause.object is not None
        movable = not clause.verb.stative and clause.verb.objects not in ("destination", "opening")
        if placeless and self.chance(0.12) and movable:
            clause.place = self.location()
        share = TIME_SHARE[clause.tense] * (0.4 if copular or clause.verb.stative else 1)
        timeless = clause.adverb or clause.modal or clause.frame == "liking" or (copular and clause.tense == "present")
        timeless = timeless or (clause.frame == "adjective" and not clause.subject.animate)
        if not timeless and self.chance(share):
            clause.time = TIME_CHOICE[clause.tense].pick(self.unit())

    def degree(self, clause: Clause) -> None:
        """Add `very`, `too`, ..., if the adjective or the state allows it."""
        if clause.state is not None and clause.state.lemma != "right":
            clause.degree = "very"
        elif clause.adjective is not None and clause.adjective.english not in UNGRADED:
            clause.degree = DEGREE_CHOICE.pick(self.unit())

    def tense(self, clause: Clause) -> None:
        """Choose tense, modal, negation and adverb of frequency."""
        verb = clause.verb
        if clause.frame == "verbal" and not verb.stative and verb in COMMON_VERBS and self.chance(0.14):
            clause.modal = MODAL_CHOICE.pick(self.unit())
        else:
            ungraded = clause.adjective is not None and clause.adjective.english in UNGRADED
            clause.tense = "present" if ungraded else self.drawn_tense(clause.frame, verb)
        clause.negative = self.chance(0.12)
        if clause.negative or clause.modal:
            return
        if clause.frame in COPULAR_FRAMES:
            lasting = clause.frame == "noun" or not clause.subject.animate
            lasting = lasting or (clause.adjective is not None and clause.adjective.english not in PASSING)
            lasting = lasting or clause.standard is not None
            if clause.tense == "present" and not lasting and self.chance(0.12):
                clause.adverb = COPULAR_ADVERBS.pick(self.unit())
        elif clause.frame == "verbal" and clause.tense == "present" and not verb.stative and self.chance(0.34):
            clause.adverb = PRESENT_ADVERBS.pick(self.unit())
        elif clause.frame == "verbal" and clause.tense == "perfect" and self.chance(0.5):
            clause.adverb = PERFECT_ADVERBS.pick(self.unit())

    def drawn_tense(self, frame: str, verb: Verb) -> Tense:
        """A tense that the verb allows. The perfect replaces an English past that is spelled like the present."""
        if frame == "liking":
            return LIKING_TENSES.pick(self.unit())
        tense = (STATIVE_TENSES if verb.stative else MOMENTARY_TENSES if verb.momentary else TENSES).pick(self.unit())
        if tense == "future" and verb not in COMMON_VERBS and verb is not COPULA:
            return "present"
        return "perfect" if tense == "past" and verb.forms.past == verb.forms.base else tense


def is_vehicle(entity: Entity) -> bool:
    """True for vehicles, which do not stand on or under furniture."""
    named = entity.antecedent if isinstance(entity, Pronoun) else entity
    return isinstance(named, Nominal) and named.noun.kind == "vehicle"


def selects(verb: Verb, kind: str) -> bool:
    """True if a verb takes objects of this kind."""
    return kind in OBJECT_GROUPS.get(verb.objects, (verb.objects,))
