"""Random texts: simple and complex sentences, and second sentences whose pronouns refer to the first."""

from __future__ import annotations

from attnworks.text.grammar.clauses import WHAT_GROUPS, ClauseDrawer, selects
from attnworks.text.grammar.entities import ONLY_ONE, NothingFitsError, confusable, referable, resolve, same_reference
from attnworks.text.grammar.entries import Choice, Verb, ranked, weighted
from attnworks.text.grammar.lexicon import LIKING, VERB_CHOICE, VERBS_BY_FRAME
from attnworks.text.grammar.nominals import Entity, Nominal, Pronoun, owner_word, pronoun_for
from attnworks.text.grammar.plans import Clause, Mood, SentencePlan

SECOND_SENTENCE_SHARE = 0.42
MAX_VERB_ATTEMPTS = 100

QUESTIONS: Choice[Mood] = weighted({"what": 30, "who": 25, "which": 12, "where": 18, "when": 8, "why": 7})
QUESTIONED_FRAMES: dict[Mood, tuple[str, ...]] = {
    "what": ("transitive",),
    "who": ("transitive", "addressing", "giving"),
    "which": ("transitive",),
    "where": ("activity", "motion", "place"),
    "when": ("motion", "reflexive", "activity"),
    "why": ("adjective", "state"),
}
CONTRASTS = weighted({"but": 60, "and": 20, "while": 20})
PERSON_FOLLOW_UPS = weighted({"subject": 54, "object": 20, "recipient": 10, "owner": 16})
THING_FOLLOW_UPS = weighted({"subject": 56, "object": 34, "liking": 10})
PLAIN_FRAMES = ("transitive", "adjective", "activity", "motion", "state", "reflexive", "noun")
BELONGINGS = weighted({"kin": 50, "clothes": 18, "ware": 17, "vehicle": 15})

OBJECT_VERBS = {
    kind: ranked([verb for verb in VERBS_BY_FRAME["transitive"] if selects(verb, kind) and verb.lemma != "have"])
    for kind in ("name", "person", "kin", "animal", "food", "dish", "text", "show", "sound", "vehicle", "ware",
                 "furniture", "clothes", "opening", "place", "city", "country", "drink")
}  # fmt: skip
RELATIVE_VERBS = {
    kind: ranked([verb for verb in choice.entries if not verb.stative]) for kind, choice in OBJECT_VERBS.items()
}


class TextDrawer(ClauseDrawer):
    """Draws whole texts of one split from one stream of random numbers."""

    def text(self) -> tuple[SentencePlan, ...]:
        """One or two sentences of the split."""
        while True:
            try:
                if self.chance(SECOND_SENTENCE_SHARE):
                    return self.linked_pair()
                return (SENTENCES.pick(self.unit())(self),)
            except NothingFitsError:
                continue

    def simple(self) -> SentencePlan:
        """A statement."""
        return SentencePlan(self.clause())

    def about_stranger(self) -> SentencePlan:
        """A statement about he, she or they."""
        return SentencePlan(self.clause(self.stranger()))

    def existence(self) -> SentencePlan:
        """`There is a cat in the garden`, or the question whether there is."""
        return SentencePlan(self.existential())

    def whether(self) -> SentencePlan:
        """A question with the answer yes or no."""
        clause = self.clause()
        return SentencePlan(self.asked(clause) if clause.subject.person != 1 else clause)

    def asked(self, clause: Clause) -> Clause:
        """Turn a statement into a question with the answer yes or no."""
        clause.mood, clause.negative, clause.adverb = "whether", False, ""
        return clause

    def question(self) -> SentencePlan:
        """A question with a question word."""
        mood = QUESTIONS.pick(self.unit())
        while True:
            clause = self.clause(self.person(), QUESTIONED_FRAMES[mood])
            if clause.subject.person != 1 and self.questionable(clause, mood):
                clause.mood, clause.negative, clause.adverb, clause.modal = mood, False, "", ""
                if mood == "who":
                    clause.subject = Pronoun(3)
                if self.fits(clause):
                    return SentencePlan(clause)

    def questionable(self, clause: Clause, mood: Mood) -> bool:
        """Remove from a clause what the question word stands for; False where the clause allows no such question."""
        verbal = clause.frame == "verbal"
        if mood in ("what", "which"):
            thing = clause.object
            if not (verbal and isinstance(thing, Nominal) and clause.verb.objects in WHAT_GROUPS):
                return False
            if clause.recipient is not None or clause.verb.addressing:
                return False
            if mood == "what":
                clause.object = None
            else:
                thing.determiner, thing.plural, thing.possessor, thing.owner = "how many", True, None, None
            return mood == "what" or thing.noun.countable
        if mood == "where":
            if clause.frame == "place":
                clause.time = ""
                return True
            askable = verbal and clause.object is None and clause.place is not None and clause.place.english != "from"
            clause.place = None
            return askable and clause.verb.lemma != "arrive"
        if mood == "when":
            clause.time = ""
            past = clause.tense in ("past", "future")
            return verbal and clause.object is None and past and not clause.verb.stative and not clause.manner
        if mood == "why":
            return clause.frame in ("adjective", "state") and clause.standard is None
        owned = isinstance(clause.object, Nominal) and clause.object.owner is not None
        return verbal and not owned and clause.object is not None

    def because(self) -> SentencePlan:
        """A clause and its reason, about the same subject or another one."""
        main = self.clause(self.person())
        if self.chance(0.7):
            self.settle_gender(main, main.subject)
            reason = self.condition(self.again(main.subject))
            reason.tense, reason.time = "past" if main.tense in ("past", "perfect") else "present", ""
            if reason.tense == "past":
                reason.adverb = ""
        else:
            reason = self.clause(self.other_person(main.subject))
        return SentencePlan(main, "because", reason)

    def when(self) -> SentencePlan:
        """A clause and its circumstance, in the same tense."""
        main = self.clause(self.person(), ("transitive", "activity", "motion", "reflexive", "addressing"))
        if main.verb.stative:
            raise NothingFitsError
        main.time, main.modal = "", ""
        main.tense = "past" if main.tense in ("past", "perfect") and not ambiguous_past(main) else "present"
        if main.adverb and main.tense == "past":
            main.adverb = ""
        first = self.chance(0.4)
        circumstance = self.condition(self.again(main.subject))
        circumstance.tense, circumstance.time = main.tense, ""
        if main.tense == "past":
            circumstance.adverb = ""
        if first and not isinstance(main.subject, Pronoun):
            circumstance.subject, main.subject = main.subject, circumstance.subject
        return SentencePlan(main, "when", circumstance, first)

    def contrast(self) -> SentencePlan:
        """Two clauses about different subjects, whose pronouns Italian keeps."""
        first = self.clause(self.contrasted(None), PLAIN_FRAMES)
        second = self.clause(self.contrasted(first.subject), PLAIN_FRAMES)
        first.time = second.time = ""
        if allows(second, first.tense):
            second.tense = first.tense
        linker = CONTRASTS.pick(self.unit()) if second.tense == first.tense else "but"
        return SentencePlan(first, linker, second)

    def contrasted(self, other: Entity | None) -> Entity:
        """A subject that differs from the other one; pronouns are stressed."""
        while True:
            subject = self.stranger() if self.chance(0.4) else self.person()
            if isinstance(subject, Pronoun):
                subject.stressed = True
            if other is None or not (same_reference(subject, other) or confusable(subject, other)):
                return subject

    def report(self) -> SentencePlan:
        """`Luca knows that Maria is happy`."""
        for _ in range(MAX_VERB_ATTEMPTS):
            verb = VERB_CHOICE["report"].pick(self.unit())
            main = Clause("verbal", self.person(), verb, tense="past" if self.chance(0.4) else "present")
            subject = self.again(main.subject) if self.chance(0.35) else self.other_person(main.subject)
            main.reported = self.clause(subject)
            if self.fits(main):
                if main.tense == "past" and main.reported.tense in ("present", "progressive", "perfect"):
                    main.tense = "present"
                return SentencePlan(main)
        raise NothingFitsError

    def subject_relative(self) -> SentencePlan:
        """`The boy that is eating an apple is tired`."""
        subject = Nominal(self.noun("person"), "the", self.chance(0.3))
        main = self.clause(subject)
        inner = self.clause(subject, ("transitive", "activity", "motion", "addressing"))
        inner.time = ""
        main.subject_relative = inner if main.frame != "liking" else None
        return SentencePlan(main)

    def object_relative(self) -> SentencePlan:
        """`Luca is reading the book that Maria bought`."""
        main = self.clause(self.person(), ("transitive",))
        thing = main.object
        if not isinstance(thing, Nominal) or thing.noun.kind in ("name", "kin", "city", "country"):
            return SentencePlan(main)
        thing.determiner, thing.possessor, thing.owner = "the", None, None
        main.place, main.time = None, ""
        inner = self.with_verb(RELATIVE_VERBS[thing.noun.kind], self.other_person(main.subject), thing)
        if inner.verb is main.verb:
            raise NothingFitsError
        inner.tense = "perfect" if ambiguous_past(inner) else "past"
        main.object_relative = (inner, "object")
        return SentencePlan(main)

    def with_verb(self, choice: Choice[Verb], subject: Entity, patient: Entity) -> Clause:
        """A clause of the split about a given subject and object, with a verb of the choice."""
        for _ in range(MAX_VERB_ATTEMPTS):
            verb = choice.pick(self.unit())
            clause = Clause("verbal", subject, verb, object=patient)
            if self.fits(clause):
                return clause
        raise NothingFitsError

    def again(self, subject: Entity) -> Entity:
        """The pronoun for a subject, or the same pronoun."""
        return Pronoun(subject.person, subject.plural) if subject.person < 3 else pronoun_for(subject)

    def other_person(self, *taken: Entity) -> Entity:
        """A person who is none of the given people."""
        while True:
            person = self.person()
            if not any(same_reference(person, other) for other in taken):
                return person

    def linked_pair(self) -> tuple[SentencePlan, ...]:
        """Two sentences, the second of which refers to the first."""
        first = self.existential() if self.chance(0.08) else self.clause()
        if first.mood != "statement":
            raise NothingFitsError
        antecedents = referable(first)
        if not antecedents:
            raise NothingFitsError
        chosen = antecedents[int(self.unit() * len(antecedents))]
        chosen = resolve(pronoun_for(chosen), antecedents)
        self.settle_gender(first, chosen)
        second = self.follow_up(first, chosen, antecedents)
        if second.adjective is not None and second.adjective is first.adjective:
            raise NothingFitsError
        if self.chance(0.08) and second.subject.person != 1:
            self.asked(second)
        return SentencePlan(first), SentencePlan(second)

    def settle_gender(self, clause: Clause, entity: Entity) -> None:
        """Make half of the nouns without English gender feminine, if only a later pronoun shows it."""
        if not (isinstance(entity, Nominal) and entity.noun.epicene) or entity.plural or self.chance(0.5):
            return
        others = [other for other in referable(clause) if other is not entity and other.animate]
        if others or (isinstance(clause.object, Nominal) and clause.object.owner is not None):
            return
        entity.feminine = True
        if clause.predicate is not None:
            clause.predicate.feminine = True

    def follow_up(self, first: Clause, chosen: Entity, antecedents: list[Entity]) -> Clause:
        """A clause with a pronoun for the chosen entity."""
        way = (PERSON_FOLLOW_UPS if chosen.animate else THING_FOLLOW_UPS).pick(self.unit())
        if way == "subject":
            return self.clause(pronoun_for(chosen))
        if way == "owner" and not isinstance(chosen, Pronoun):
            return self.clause(self.belonging(chosen))
        subject = self.actor(first, chosen)
        target = resolve(pronoun_for(chosen), antecedents, subject)
        if target is not chosen:
            raise NothingFitsError
        if way == "liking":
            return self.liking_back(subject, chosen)
        if way == "recipient":
            return self.addressing_back(subject, chosen)
        kind = chosen.noun.kind if isinstance(chosen, Nominal) else "name"
        clause = self.with_verb(OBJECT_VERBS[kind], subject, pronoun_for(chosen))
        self.finish(clause)
        return clause

    def belonging(self, owner: Entity) -> Nominal:
        """A relative or a thing of a person: `his sister`, `her car`."""
        noun = self.noun(BELONGINGS.pick(self.unit()))
        plural = noun.lemma not in ONLY_ONE and self.chance(0.2)
        nominal = Nominal(noun, owner_word(owner), plural, owner=owner)
        self.modify(nominal, 0.1)
        return nominal

    def actor(self, first: Clause, chosen: Entity) -> Entity:
        """The subject of the second sentence: the first subject again, or a new person."""
        subject = first.subject
        if subject is not chosen and subject.animate and first.frame != "existential" and self.chance(0.55):
            return self.again(subject)
        return self.other_person(*referable(first), subject)

    def liking_back(self, subject: Entity, liked: Entity) -> Clause:
        """`Luca likes it`."""
        clause = Clause("liking", subject, LIKING, object=pronoun_for(liked))
        if not self.fits(clause):
            raise NothingFitsError
        clause.negative = self.chance(0.25)
        return clause

    def addressing_back(self, subject: Entity, receiver: Entity) -> Clause:
        """`Luca phoned her`, `Maria gave him a book`."""
        if self.chance(0.5):
            clause = self.with_verb(VERB_CHOICE["addressing"], subject, pronoun_for(receiver))
        else:
            verb = VERB_CHOICE["giving"].pick(self.unit())
            clause = Clause("verbal", subject, verb, object=Nominal(self.noun(verb.objects)))
            clause.recipient = pronoun_for(receiver)
            if not self.fits(clause):
                raise NothingFitsError
        self.finish(clause)
        return clause


SENTENCES = weighted({
    TextDrawer.simple: 46, TextDrawer.whether: 7, TextDrawer.question: 9, TextDrawer.existence: 6,
    TextDrawer.because: 8, TextDrawer.when: 6, TextDrawer.contrast: 7, TextDrawer.report: 6,
    TextDrawer.subject_relative: 4, TextDrawer.object_relative: 5, TextDrawer.about_stranger: 4,
})  # fmt: skip


def allows(clause: Clause, tense: str) -> bool:
    """True if a clause can be put into this tense."""
    if clause.modal or clause.adverb:
        return False
    if clause.verb.stative:
        return tense in ("present", "past", "future")
    if clause.verb.momentary and tense == "progressive":
        return False
    return not (tense == "past" and ambiguous_past(clause))


def ambiguous_past(clause: Clause) -> bool:
    """True for a verb whose English past is spelled like its present."""
    return clause.verb.forms.past == clause.verb.forms.base
