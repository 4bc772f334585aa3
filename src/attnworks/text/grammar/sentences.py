"""Clauses, sentences and texts in both languages at once, with their gold structure.

Conventions that make the Italian a function of the English text: `you` is `tu`; I, you, we and they without antecedent
are masculine; so are nouns whose English side has no gender, unless a feminine pronoun of the same text refers to them;
a predicate noun agrees with its subject; the simple past is the passato prossimo, or the imperfect of stative verbs;
subject pronouns are dropped except in a contrast of two subjects; clitics stand before the finite verb.
"""

from __future__ import annotations

from attnworks.text.grammar import italian
from attnworks.text.grammar.lexicon import COPULA, MANNERS, TIMES
from attnworks.text.grammar.nominals import Entity, Features, Nominal, Pronoun, features, realise
from attnworks.text.grammar.phrase import COMMA, FIRST_WORD, FULL_STOP, QUESTION_MARK, REST, Draft, parallel
from attnworks.text.grammar.plans import Clause, Gap, SentencePlan
from attnworks.text.grammar.predicates import (
    Inflection,
    adjective_group,
    existential_group,
    liking_group,
    state_group,
    verb_group,
)
from attnworks.text.passages import Passage

QUESTION_WORDS = {"who": "chi", "what": "che cosa", "where": "dove", "when": "quando", "why": "perché"}
LINKERS = {"because": "perché", "when": "quando", "but": "ma", "while": "mentre", "if": "se", "that": "che", "and": "e"}
EXPRESSIONS = {source: parallel(source, target) for source, target in {**TIMES, **MANNERS, **LINKERS}.items()}
ASKING = {source: parallel(source, target) for source, target in QUESTION_WORDS.items()}
ESSERE_WITH_E = ("è", "era", "ero", "eri", "eravamo", "erano")
ASKING_WHERE_ELIDED = parallel("where", "dov'")


def clitic_features(entity: Entity | None) -> Features | None:
    """The features of a pronoun that becomes a clitic."""
    return features(entity) if isinstance(entity, Pronoun) else None


def is_inverted(clause: Clause) -> bool:
    """True for questions in which an English auxiliary stands before the subject."""
    return clause.mood not in ("statement", "who")


def inflection(clause: Clause) -> Inflection:
    """The inflection of the verb of a clause, which agrees with the subject."""
    subject = features(clause.subject)
    return Inflection(clause.tense, subject, clause.negative, clause.modal, clause.adverb, is_inverted(clause))


def render(*sentences: SentencePlan) -> Passage:
    """The English and the Italian text of the sentences, with gold structure."""
    draft = Draft()
    for sentence in sentences:
        render_sentence(draft, sentence)
    return draft.finish()


def render_sentence(draft: Draft, sentence: SentencePlan) -> None:
    """Add one sentence with its final punctuation to the draft."""
    draft.start_sentence()
    if sentence.second is None:
        root = render_clause(draft, sentence.clause)
    elif sentence.second_first:
        dependent = render_linked(draft, sentence.linker, sentence.second)
        comma = draft.add(COMMA)
        draft.lay(comma)
        root = render_clause(draft, sentence.clause)
        draft.govern(comma, dependent)
        draft.govern(dependent, root)
    else:
        root = render_clause(draft, sentence.clause)
        draft.govern(render_linked(draft, sentence.linker, sentence.second), root)
    draft.lay(draft.add(FULL_STOP if sentence.clause.mood == "statement" else QUESTION_MARK, root))


def render_linked(draft: Draft, linker: str, clause: Clause, gap: Gap = "") -> int:
    """Add a clause after its conjunction or relative pronoun; return the index of its root phrase."""
    link = draft.add(EXPRESSIONS[linker])
    draft.lay(link)
    following = len(draft.target_order)
    root = render_clause(draft, clause, gap)
    draft.govern(link, root)
    if linker == "and":
        draft.phrases[link] = parallel("and", italian.conjunction(first_word(draft, following)))
    return root


def first_word(draft: Draft, step: int) -> str:
    """The first target word from a step of the order on."""
    laid = (draft.phrases[index].target for index, _ in draft.target_order[step:])
    return next(words[0] for words in laid if words)


def render_clause(draft: Draft, clause: Clause, gap: Gap = "") -> int:
    """Add a clause to the draft and return the index of its root phrase."""
    return RENDERERS[clause.frame](draft, clause, gap)


def render_verbal(draft: Draft, clause: Clause, gap: Gap) -> int:
    """A verb with objects, recipient and circumstances."""
    direct, recipient = clitic_features(clause.object), clitic_features(clause.recipient)
    if clause.verb.addressing:
        direct, recipient = None, direct
    root = draft.add(verb_group(clause.verb, inflection(clause), direct, recipient))
    lay_nucleus(draft, clause, root, root, gap)
    if clause.object is not None and gap != "object" and clause.mood not in ("what", "which"):
        lay_object(draft, clause, root)
    if isinstance(clause.recipient, Pronoun):
        refer(draft, root, "recipient", clause.recipient)
    elif clause.recipient is not None:
        lay_entity(draft, clause.recipient, root, ("to", "a"))
    lay_circumstances(draft, clause, root)
    if clause.reported is not None:
        draft.govern(render_linked(draft, "that", clause.reported), root)
    return root


def render_liking(draft: Draft, clause: Clause, gap: Gap) -> int:
    """`Luca likes the chairs` as `A Luca piacciono le sedie`."""
    subject, liked = clause.subject, clause.object
    assert liked is not None
    pronominal, liked_pronoun = isinstance(subject, Pronoun), isinstance(liked, Pronoun)
    root = draft.add(liking_group(clause.verb, inflection(clause), pronominal, features(liked), liked_pronoun))
    if isinstance(subject, Pronoun):
        refer(draft, root, "recipient", subject)
        draft.lay(root)
    else:
        experiencer = add_entity(draft, subject, root, ("", "a"))
        lay_around(draft, root, experiencer, is_inverted(clause))
        draft.lay_target(experiencer)
        draft.lay_target(root)
    if isinstance(liked, Pronoun):
        refer(draft, root, "object", liked)
    else:
        lay_entity(draft, liked, root)
    lay_circumstances(draft, clause, root)
    return root


def render_adjective(draft: Draft, clause: Clause, gap: Gap) -> int:
    """A copula with an adjective, or with a comparison."""
    assert clause.adjective is not None
    compared = clause.standard is not None
    root = draft.add(adjective_group(clause.adjective, inflection(clause), clause.degree, compared))
    lay_nucleus(draft, clause, root, root, gap)
    if clause.standard is not None:
        lay_entity(draft, clause.standard, root, ("than", "di"))
    lay_circumstances(draft, clause, root)
    return root


def render_state(draft: Draft, clause: Clause, gap: Gap) -> int:
    """`is hungry` as `ha fame`."""
    assert clause.state is not None
    root = draft.add(state_group(clause.state, inflection(clause), clause.degree))
    lay_nucleus(draft, clause, root, root, gap)
    lay_circumstances(draft, clause, root)
    return root


def render_noun(draft: Draft, clause: Clause, gap: Gap) -> int:
    """A copula with a predicate noun, which is the root."""
    assert clause.predicate is not None
    root = draft.add(realise(clause.predicate))
    lay_nucleus(draft, clause, root, draft.add(verb_group(COPULA, inflection(clause)), root), gap)
    draft.lay(root)
    refer_owner(draft, root, clause.predicate)
    return root


def render_place(draft: Draft, clause: Clause, gap: Gap) -> int:
    """A copula with a place, which is the root. In a question with `where`, the question word is the root."""
    if clause.mood == "where":
        copula = verb_group(COPULA, inflection(clause))
        elided = copula.target[0] in ESSERE_WITH_E
        root = draft.add(ASKING_WHERE_ELIDED if elided else ASKING["where"])
        draft.lay(root)
        verb = draft.add(copula, root)
        subject = add_entity(draft, clause.subject, root)
        lay_around(draft, verb, subject, True)
        draft.lay_target(verb)
        draft.lay_target(subject)
        return root
    assert clause.place is not None
    root = draft.add(realise(clause.place.nominal, (clause.place.english, clause.place.italian)))
    draft.mention(clause.place.nominal, root)
    lay_nucleus(draft, clause, root, draft.add(verb_group(COPULA, inflection(clause)), root), gap)
    draft.lay(root)
    refer_owner(draft, root, clause.place.nominal)
    lay_circumstances(draft, clause, root, with_place=False)
    return root


def render_existential(draft: Draft, clause: Clause, gap: Gap) -> int:
    """`There is a cat` as `C' è un gatto`."""
    root = draft.add(existential_group(inflection(clause)))
    draft.lay(root)
    lay_entity(draft, clause.subject, root)
    lay_circumstances(draft, clause, root)
    return root


def lay_nucleus(draft: Draft, clause: Clause, root: int, verb: int, gap: Gap) -> None:
    """Put subject and verb into the order of the mood; `gap` names the part that a relative pronoun replaces."""
    if gap == "subject":
        draft.lay(verb)
        return
    if clause.mood == "who":
        draft.lay(draft.add(ASKING["who"], root))
        draft.lay(verb)
        return
    lay_fronted(draft, clause, root)
    subject = add_entity(draft, clause.subject, root)
    if clause.subject_relative is None:
        lay_around(draft, verb, subject, is_inverted(clause))
        inverted = clause.mood in ("what", "which", "where", "when")
        for index in (verb, subject) if inverted else (subject, verb):
            draft.lay_target(index)
        return
    draft.lay(subject)
    draft.govern(render_linked(draft, "that", clause.subject_relative, "subject"), subject)
    draft.lay(verb)


def lay_fronted(draft: Draft, clause: Clause, root: int) -> None:
    """Put the question word, or the object of the question, at the beginning of a question."""
    if clause.mood == "which":
        assert clause.object is not None
        lay_entity(draft, clause.object, root)
    elif clause.mood not in ("statement", "whether"):
        elided = clause.mood == "where" and draft.phrases[root].target[0] in ESSERE_WITH_E
        draft.lay(draft.add(ASKING_WHERE_ELIDED if elided else ASKING[clause.mood], root))


def lay_around(draft: Draft, verb: int, subject: int, question: bool) -> None:
    """Put the English subject before the verb, or after the first word of the verb in a question."""
    if question:
        draft.lay_source(verb, FIRST_WORD)
        draft.lay_source(subject)
        draft.lay_source(verb, REST)
    else:
        draft.lay_source(subject)
        draft.lay_source(verb)


def lay_object(draft: Draft, clause: Clause, root: int) -> None:
    """Put the object next: it is a clitic inside the verb group, or a phrase after it."""
    assert clause.object is not None
    if isinstance(clause.object, Pronoun):
        refer(draft, root, "recipient" if clause.verb.addressing else "object", clause.object)
        return
    index = lay_entity(draft, clause.object, root, ("", "a") if clause.verb.addressing else ("", ""))
    if clause.object_relative is not None:
        draft.govern(render_linked(draft, "that", *clause.object_relative), index)


def lay_circumstances(draft: Draft, clause: Clause, root: int, with_place: bool = True) -> None:
    """Put manner, place and time next, in this order on both sides."""
    if clause.manner:
        draft.lay(draft.add(EXPRESSIONS[clause.manner], root))
    if clause.place is not None and with_place:
        lay_entity(draft, clause.place.nominal, root, (clause.place.english, clause.place.italian))
    if clause.time:
        draft.lay(draft.add(EXPRESSIONS[clause.time], root))


def add_entity(draft: Draft, entity: Entity, governor: int, prepositions: tuple[str, str] = ("", "")) -> int:
    """Add the phrase of an entity, and store what it mentions or refers to."""
    index = draft.add(realise(entity, prepositions), governor)
    if isinstance(entity, Pronoun):
        refer(draft, index, "subject", entity)
    else:
        draft.mention(entity, index)
        if isinstance(entity, Nominal):
            refer_owner(draft, index, entity)
    return index


def lay_entity(draft: Draft, entity: Entity, governor: int, prepositions: tuple[str, str] = ("", "")) -> int:
    """Add the phrase of an entity and put it next on both sides."""
    index = add_entity(draft, entity, governor, prepositions)
    draft.lay(index)
    return index


def refer(draft: Draft, index: int, slot: str, pronoun: Pronoun) -> None:
    """Store the antecedent of a pronoun, if it has one."""
    if pronoun.antecedent is not None:
        draft.refer(index, slot, pronoun.antecedent)


def refer_owner(draft: Draft, index: int, nominal: Nominal) -> None:
    """Store the antecedent of a possessive determiner, if it has one."""
    owner = nominal.owner
    if isinstance(owner, Pronoun):
        owner = owner.antecedent
    if owner is not None:
        draft.refer(index, "owner", owner)


RENDERERS = {
    "verbal": render_verbal, "adjective": render_adjective, "state": render_state, "noun": render_noun,
    "place": render_place, "existential": render_existential, "liking": render_liking,
}  # fmt: skip
