"""Verb groups in both languages: tense, negation, modals, adverbs, clitics and agreement.

Everything depends on the lexical verb, and words are aligned by their function: `ate` with both words of
`ha mangiato`, `will` with the future form, `never` with `non` and `mai`. The auxiliary `do` and the
`to` of infinitives stay unaligned.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Literal, NamedTuple

from attnworks.text.grammar import english, italian
from attnworks.text.grammar.entries import Adjective, Noun, Verb
from attnworks.text.grammar.italian import conjugate
from attnworks.text.grammar.lexicon import COPULA, DEGREES, FREQUENCIES, HAVING
from attnworks.text.grammar.nominals import PHRASES_CACHED, Features, english_object, english_subject
from attnworks.text.grammar.phrase import Phrase, phrase

Tense = Literal["present", "progressive", "past", "perfect", "future"]
Tagged = list[tuple[str, str]]

MODALS = {"can": conjugate("potere"), "must": conjugate("dovere"), "want": conjugate("volere")}
AVERE, ESSERE, STARE = conjugate("avere"), conjugate("essere"), conjugate("stare")

REFLEXIVES = ("mi", "ti", "si", "ci", "vi", "si")
DIRECT = {("m", False): "lo", ("f", False): "la", ("m", True): "li", ("f", True): "le"}

COUNTERPARTS = {
    "verb": ("verb", "reflexive"), "particle": ("verb",), "expletive": ("locative",), "aux": ("aux",),
    "modal": ("modal",), "not": ("non",), "cannot": ("modal", "non"), "adverb": ("adverb",),
    "never": ("adverb", "non"), "object": ("object",), "recipient": ("recipient",), "degree": ("degree",),
    "more": ("degree",), "predicate": ("predicate",),
}  # fmt: skip


class Inflection(NamedTuple):
    """What decides the form of a verb group. In a question, English uses an auxiliary that can precede the subject."""

    tense: Tense
    subject: Features
    negative: bool = False
    modal: str = ""
    adverb: str = ""
    question: bool = False


def person_index(subject: Features) -> int:
    """The index of a person in a conjugation, from `io` to `loro`."""
    return subject.person - 1 + 3 * subject.plural


def be_form(subject: Features, past: bool) -> str:
    """`am`, `is`, `are`, `was`, `were`."""
    if subject.plural or subject.person == 2:
        return "were" if past else "are"
    if past:
        return "was"
    return "am" if subject.person == 1 else "is"


def is_third(subject: Features) -> bool:
    """True for he, she and it."""
    return subject.person == 3 and not subject.plural


def english_verb(verb: Verb, inflection: Inflection) -> Tagged:
    """The English verb group; in a question its first word can stand before the subject."""
    forms = verb.forms
    tense, subject, negative, modal, adverb, question = inflection
    denial: Tagged = [("not", "not")] if negative else []
    frequency: Tagged = [("never" if adverb == "never" else "adverb", adverb)] if adverb else []
    particles: Tagged = [("particle", word) for word in forms.particles]
    if modal == "want":
        wanting: Tagged = [("modal", "wants" if is_third(subject) else "want")]
        if negative or question:
            wanting = [("do", "does" if is_third(subject) else "do"), *denial, ("modal", "want")]
        return [*wanting, ("to", "to"), ("verb", forms.base), *particles]
    if modal:
        opening: Tagged = [("cannot", "cannot")] if negative and modal == "can" else [("modal", modal), *denial]
        return [*opening, ("verb", forms.base), *particles]
    if forms.base == "be" and tense in ("present", "past"):
        return [("verb", be_form(subject, tense == "past")), *denial, *frequency]
    if tense == "progressive":
        return [("aux", be_form(subject, False)), *denial, *frequency, ("verb", forms.gerund), *particles]
    if tense == "perfect":
        auxiliary = "has" if is_third(subject) else "have"
        return [("aux", auxiliary), *denial, *frequency, ("verb", forms.participle), *particles]
    if tense == "future":
        return [("aux", "will"), *denial, *frequency, ("verb", forms.base), *particles]
    if negative or question:
        auxiliary = "did" if tense == "past" else "does" if is_third(subject) else "do"
        return [("do", auxiliary), *denial, *frequency, ("verb", forms.base), *particles]
    finite = forms.past if tense == "past" else forms.third if is_third(subject) else forms.base
    return [*frequency, ("verb", finite), *particles]


def clitic(pronoun: Features, direct: bool) -> str:
    """The unstressed object pronoun, before any elision."""
    if pronoun.person < 3:
        return REFLEXIVES[person_index(pronoun)]
    if direct:
        return DIRECT[pronoun.gender, pronoun.plural]
    return "le" if pronoun.gender == "f" and not pronoun.plural else "gli"


def italian_verb(
    verb: Verb, inflection: Inflection, direct: Features | None = None, recipient: Features | None = None
) -> Tagged:
    """The Italian verb group: `non`, clitics, auxiliary, adverb, verb."""
    finite = italian_finite(verb, inflection, direct)
    opening: Tagged = [("non", "non")] if inflection.negative or inflection.adverb == "never" else []
    if verb.conjugation.reflexive:
        opening.append(("reflexive", REFLEXIVES[person_index(inflection.subject)]))
    if recipient:
        opening.append(("recipient", clitic(recipient, False)))
    if direct:
        word = clitic(direct, True)
        elided = word in ("lo", "la") and italian.begins_with_vowel(finite[0][1])
        opening.append(("object", "l'" if elided else word))
    return opening + finite


def italian_finite(verb: Verb, inflection: Inflection, direct: Features | None) -> Tagged:
    """The verb group from its finite form on."""
    tense, subject, _, modal, adverb, _ = inflection
    forms, person = verb.conjugation, person_index(subject)
    frequency: Tagged = [("adverb", FREQUENCIES[adverb])] if adverb else []
    if modal:
        return [("modal", MODALS[modal].present[person]), ("verb", forms.infinitive)]
    if tense == "progressive":
        return [("aux", STARE.present[person]), *frequency, ("verb", forms.gerund)]
    if tense == "perfect" or (tense == "past" and not verb.stative):
        auxiliary = (ESSERE if forms.with_essere else AVERE).present[person]
        return [("aux", auxiliary), *frequency, ("verb", agreeing_participle(verb, subject, direct))]
    finite = {"present": forms.present, "past": forms.imperfect, "future": forms.future}[tense]
    return [("verb", finite[person]), *frequency]


def agreeing_participle(verb: Verb, subject: Features, direct: Features | None) -> str:
    """The participle, agreeing with the subject of `essere` or with the clitics lo, la, li, le."""
    form = verb.conjugation.participle
    if verb.conjugation.with_essere:
        return italian.agree(form, subject.gender, subject.plural)
    if direct and direct.person == 3:
        return italian.agree(form, direct.gender, direct.plural)
    return form


def aligned(left: Tagged, right: Tagged, source_root: str = "verb", target_root: str = "verb") -> Phrase:
    """The phrase of two tagged sides, whose words are aligned by their functions."""
    source_tags, target_tags = [tag for tag, _ in left], [tag for tag, _ in right]
    links: list[tuple[int, int]] = []
    for i, tag in enumerate(source_tags):
        wanted = COUNTERPARTS.get(tag, ())
        if tag == "aux" and "aux" not in target_tags:
            wanted = ("verb",)
        if tag == "verb" and "aux" not in source_tags:
            wanted = (*wanted, "aux")
        links += [(i, j) for j, other in enumerate(target_tags) if other in wanted]
    pronouns = tuple(
        (slot, source_tags.index(slot), target_tags.index(slot))
        for slot in ("object", "recipient")
        if slot in source_tags and slot in target_tags
    )
    source, target = [word for _, word in left], [word for _, word in right]
    roots = source_tags.index(source_root), target_tags.index(target_root)
    return phrase(source, target, tuple(links), *roots, pronouns)


@lru_cache(PHRASES_CACHED)
def verb_group(
    verb: Verb, inflection: Inflection, direct: Features | None = None, recipient: Features | None = None
) -> Phrase:
    """A verb with its object pronouns. English puts them after it."""
    left = english_verb(verb, inflection)
    right = italian_verb(verb, inflection, direct, recipient)
    if recipient:
        left.append(("recipient", english_object(recipient)))
    if direct:
        left.append(("object", english_object(direct)))
    return aligned(left, right)


@lru_cache(PHRASES_CACHED)
def liking_group(verb: Verb, inflection: Inflection, pronominal: bool, liked: Features, liked_pronoun: bool) -> Phrase:
    """`he likes (it)` as `gli piace`: the English subject is the Italian recipient, the object the subject."""
    experiencer = inflection.subject
    left = english_verb(verb, inflection)
    right = italian_verb(verb, inflection._replace(subject=liked), None, experiencer if pronominal else None)
    if pronominal:
        left.insert(1 if inflection.question else 0, ("recipient", english_subject(experiencer)))
    if not liked_pronoun:
        return aligned(left, right)
    group = aligned([*left, ("object", english_object(liked))], right)
    return group._replace(pronouns=(*group.pronouns, ("object", len(left), -1)))


@lru_cache(PHRASES_CACHED)
def adjective_group(adjective: Adjective, inflection: Inflection, degree: str, comparative: bool) -> Phrase:
    """`is very happy`, `was not taller`; the adjective is the root."""
    left, right = english_verb(COPULA, inflection), italian_verb(COPULA, inflection)
    subject = inflection.subject
    if comparative:
        words = english.comparative(adjective.english)
        left += [("more", "more"), ("predicate", words[1])] if len(words) == 2 else [("predicate", words[0])]
        whole = {"buono": "migliore", "cattivo": "peggiore"}.get(adjective.italian)
        right += [] if whole else [("degree", "più")]
        right.append(("predicate", italian.agree(whole or adjective.italian, subject.gender, subject.plural)))
        group = aligned(left, right, "predicate", "predicate")
        if len(words) == 1 and right[-2][0] == "degree":
            return group._replace(alignment=(*group.alignment, (len(left) - 1, len(right) - 2)))
        return group
    if degree:
        left.append(("degree", degree))
        right.append(("degree", DEGREES[degree]))
    left.append(("predicate", adjective.english))
    right.append(("predicate", italian.agree(adjective.italian, subject.gender, subject.plural)))
    return aligned(left, right, "predicate", "predicate")


@lru_cache(PHRASES_CACHED)
def state_group(state: Noun, inflection: Inflection, degree: str) -> Phrase:
    """`is very hungry` as `ha molta fame`."""
    left, right = english_verb(COPULA, inflection), italian_verb(HAVING, inflection)
    if degree:
        left.append(("degree", degree))
        right.append(("degree", italian.agree(DEGREES[degree], state.gender, False)))
    left.append(("predicate", state.lemma))
    right.append(("predicate", state.italian[state.gender][0]))
    return aligned(left, right, "predicate", "verb")


@lru_cache(PHRASES_CACHED)
def existential_group(inflection: Inflection) -> Phrase:
    """`there is` as `c' è`, `there are` as `ci sono`."""
    left, right = english_verb(COPULA, inflection), italian_verb(COPULA, inflection)
    left.insert(1 if inflection.question else 0, ("expletive", "there"))
    right.insert(-1, ("locative", "c'" if right[-1][1][0] in "eè" else "ci"))
    return aligned(left, right)
