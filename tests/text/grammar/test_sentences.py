"""Whole texts, built from plans with fixed lemmas, against hand-written translations."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from attnworks.text.grammar import lexicon
from attnworks.text.grammar.nominals import Couple, Nominal, Pronoun, pronoun_for
from attnworks.text.grammar.plans import Clause, Location, SentencePlan
from attnworks.text.grammar.sentences import render

NOUNS = {noun.lemma: noun for nouns in lexicon.NOUNS_BY_KIND.values() for noun in nouns}
STATES = {noun.lemma: noun for noun in lexicon.STATE_CHOICE.entries}
ADJECTIVES = {entry.english: entry for entries in lexicon.ADJECTIVES_BY_KIND.values() for entry in entries}
VERBS = {frame: {verb.lemma: verb for verb in verbs} for frame, verbs in lexicon.VERBS_BY_FRAME.items()}
DO, GO, FEEL = VERBS["transitive"], VERBS["motion"] | VERBS["activity"], VERBS["reflexive"]

SPEAKER, HEARER = Pronoun(1), Pronoun(2)


def name(lemma: str) -> Nominal:
    return Nominal(NOUNS[lemma])


def the(lemma: str, before: str | None = None, after: str | None = None, determiner: str = "the") -> Nominal:
    plural = lemma not in NOUNS
    noun = next(noun for noun in NOUNS.values() if noun.english[plural] == lemma)
    adjectives = (ADJECTIVES[before] if before else None, ADJECTIVES[after] if after else None)
    return Nominal(noun, determiner, plural, False, *adjectives)


def place(lemma: str, english: str, italian: str, determiner: str = "the") -> Location:
    proper = NOUNS[lemma].kind in ("city", "country")
    return Location(Nominal(NOUNS[lemma], "" if proper else determiner), english, italian)


def spain() -> list[SentencePlan]:
    luca = name("Luca")
    studying = Clause("verbal", luca, GO["study"], tense="progressive", place=place("Spain", "in", "in"))
    happy = Clause("adjective", pronoun_for(luca), adjective=ADJECTIVES["happy"], degree="very")
    return [SentencePlan(studying), SentencePlan(happy)]


def chair() -> list[SentencePlan]:
    seat = the("chair")
    new = Clause("adjective", seat, adjective=ADJECTIVES["new"])
    return [
        SentencePlan(new),
        SentencePlan(Clause("adjective", pronoun_for(seat), adjective=ADJECTIVES["beautiful"], degree="very")),
    ]


def seen() -> list[SentencePlan]:
    luca, maria = name("Luca"), name("Maria")
    met = Clause("verbal", luca, DO["meet"], tense="past", object=maria)
    return [
        SentencePlan(met),
        SentencePlan(Clause("verbal", SPEAKER, DO["see"], tense="past", object=pronoun_for(maria))),
    ]


def phoned() -> list[SentencePlan]:
    marco, anna = name("Marco"), name("Anna")
    spoken = Clause("verbal", marco, VERBS["addressing"]["speak to"], object=anna)
    phoned = Clause(
        "verbal",
        pronoun_for(marco),
        VERBS["addressing"]["phone"],
        tense="past",
        negative=True,
        object=pronoun_for(anna),
    )
    return [SentencePlan(spoken), SentencePlan(phoned)]


def feminine_student() -> list[SentencePlan]:
    student = Nominal(NOUNS["student"], "the", feminine=True)
    tired = Clause("adjective", student, adjective=ADJECTIVES["tired"])
    return [SentencePlan(tired), SentencePlan(Clause("verbal", pronoun_for(student), FEEL["wake up"], tense="past"))]


def owner() -> list[SentencePlan]:
    pietro = name("Pietro")
    mother = Nominal(NOUNS["mother"], "his", owner=pietro)
    return [
        SentencePlan(Clause("verbal", pietro, GO["sleep"], tense="progressive")),
        SentencePlan(Clause("verbal", mother, DO["drink"], object=the("water", determiner=""))),
    ]


def contrast() -> list[SentencePlan]:
    he, she = Pronoun(3, False, "m", stressed=True), Pronoun(3, False, "f", stressed=True)
    eating = Clause("verbal", he, DO["eat"], tense="progressive", object=the("eggs", "fresh", determiner="two"))
    return [SentencePlan(eating, "but", Clause("verbal", she, DO["read"], tense="progressive", object=the("stories")))]


def relative() -> list[SentencePlan]:
    boy = the("boy")
    inner = Clause("verbal", boy, DO["eat"], tense="progressive", object=the("orange", determiner="a"))
    return [SentencePlan(Clause("adjective", boy, adjective=ADJECTIVES["tired"], subject_relative=inner))]


def object_relative() -> list[SentencePlan]:
    book = the("book", "beautiful")
    inner = Clause("verbal", name("Maria"), DO["buy"], tense="past", object=book)
    return [
        SentencePlan(
            Clause("verbal", name("Luca"), DO["read"], object=book, tense="perfect", object_relative=(inner, "object"))
        )
    ]


def because() -> list[SentencePlan]:
    maria = name("Maria")
    hungry = Clause("state", pronoun_for(maria), state=STATES["hungry"], degree="very")
    eats = Clause("verbal", maria, DO["eat"], tense="progressive", object=the("bread", determiner=""))
    return [SentencePlan(eats, "because", hungry)]


def when() -> list[SentencePlan]:
    anna = name("Anna")
    tired = Clause("adjective", anna, adjective=ADJECTIVES["tired"])
    return [SentencePlan(Clause("verbal", pronoun_for(anna), FEEL["rest"]), "when", tired, second_first=True)]


def reported() -> list[SentencePlan]:
    inner = Clause("place", Couple(NOUNS["Luca"], NOUNS["Elena"]), place=place("Athens", "in", "a"))
    return [SentencePlan(Clause("verbal", name("Paolo"), VERBS["report"]["say"], tense="past", reported=inner))]


def simple(*arguments: object, **fields: object) -> Callable[[], list[SentencePlan]]:
    return lambda: [SentencePlan(Clause(*arguments, **fields))]  # type: ignore[arg-type]


TEXTS: list[tuple[Callable[[], list[SentencePlan]], str, str]] = [
    (spain, "Luca is studying in Spain . He is very happy .", "Luca sta studiando in Spagna . È molto felice ."),
    (chair, "The chair is new . It is very beautiful .", "La sedia è nuova . È molto bella ."),
    (seen, "Luca met Maria . I saw her .", "Luca ha incontrato Maria . L' ho vista ."),
    (phoned, "Marco speaks to Anna . He did not phone her .", "Marco parla ad Anna . Non le ha telefonato ."),
    (feminine_student, "The student is tired . She woke up .", "La studentessa è stanca . Si è svegliata ."),
    (owner, "Pietro is sleeping . His mother drinks water .", "Pietro sta dormendo . Sua madre beve l' acqua ."),
    (
        contrast,
        "He is eating two fresh eggs but she is reading the stories .",
        "Lui sta mangiando due uova fresche ma lei sta leggendo le storie .",
    ),
    (
        relative,
        "The boy that is eating an orange is tired .",
        "Il ragazzo che sta mangiando un' arancia è stanco .",
    ),
    (
        object_relative,
        "Luca has read the beautiful book that Maria bought .",
        "Luca ha letto il bel libro che Maria ha comprato .",
    ),
    (
        because,
        "Maria is eating bread because she is very hungry .",
        "Maria sta mangiando il pane perché ha molta fame .",
    ),
    (when, "When Anna is tired , she rests .", "Quando Anna è stanca , si riposa ."),
    (
        reported,
        "Paolo said that Luca and Elena are in Athens .",
        "Paolo ha detto che Luca ed Elena sono ad Atene .",
    ),
    (
        simple("liking", name("Luca"), lexicon.LIKING, object=the("eggs")),
        "Luca likes the eggs .",
        "A Luca piacciono le uova .",
    ),
    (
        simple("liking", SPEAKER, lexicon.LIKING, negative=True, object=name("Rome")),
        "I do not like Rome .",
        "Non mi piace Roma .",
    ),
    (
        simple("liking", the("boy"), lexicon.LIKING, tense="past", object=the("song")),
        "The boy liked the song .",
        "Al ragazzo è piaciuta la canzone .",
    ),
    (
        simple("existential", the("cat", "black", determiner="a"), place=place("table", "on", "su")),
        "There is a black cat on the table .",
        "C' è un gatto nero sul tavolo .",
    ),
    (
        simple(
            "existential", the("backpacks", determiner="three"), tense="past", place=place("mirror", "near", "vicino a")
        ),
        "There were three backpacks near the mirror .",
        "C' erano tre zaini vicino allo specchio .",
    ),
    (
        simple(
            "verbal", HEARER, DO["buy"], mood="whether", tense="past", object=the("watch", "beautiful", determiner="a")
        ),
        "Did you buy a beautiful watch ?",
        "Hai comprato un bell' orologio ?",
    ),
    (
        simple("verbal", name("Sara"), DO["eat"], mood="what", tense="progressive"),
        "What is Sara eating ?",
        "Che cosa sta mangiando Sara ?",
    ),
    (
        simple("verbal", Pronoun(3), DO["write"], mood="who", tense="perfect", object=the("letter", determiner="this")),
        "Who has written this letter ?",
        "Chi ha scritto questa lettera ?",
    ),
    (
        simple("place", name("Laura"), mood="where", place=place("Rome", "in", "a")),
        "Where is Laura ?",
        "Dov' è Laura ?",
    ),
    (
        simple(
            "verbal", name("Maria"), DO["eat"], mood="which", tense="past", object=the("apples", determiner="how many")
        ),
        "How many apples did Maria eat ?",
        "Quante mele ha mangiato Maria ?",
    ),
    (
        simple("verbal", the("girls"), GO["go"], tense="past", place=place("library", "to", "in"), time="yesterday"),
        "The girls went to the library yesterday .",
        "Le ragazze sono andate in biblioteca ieri .",
    ),
    (
        simple("verbal", name("Ugo"), GO["come"], place=place("Ireland", "from", "da")),
        "Ugo comes from Ireland .",
        "Ugo viene dall' Irlanda .",
    ),
    (
        simple("verbal", SPEAKER, DO["drink"], adverb="never", object=the("coffee", "cold", determiner="")),
        "I never drink cold coffee .",
        "Non bevo mai il caffè freddo .",
    ),
    (
        simple("verbal", name("Silvia"), FEEL["get up"], modal="want", negative=True),
        "Silvia does not want to get up .",
        "Silvia non si vuole alzare .",
    ),
    (
        simple("verbal", the("sister", determiner="their"), DO["know"], tense="past", object=Pronoun(1, True)),
        "Their sister knew us .",
        "La loro sorella ci conosceva .",
    ),
    (
        simple(
            "verbal",
            the("sister", determiner="my"),
            DO["wash"],
            tense="future",
            object=the("car", "new", determiner="my"),
        ),
        "My sister will wash my new car .",
        "Mia sorella laverà la mia nuova macchina .",
    ),
    (
        simple("adjective", name("Maria"), adjective=ADJECTIVES["tall"], standard=the("king")),
        "Maria is taller than the king .",
        "Maria è più alta del re .",
    ),
    (
        simple("adjective", the("wine"), adjective=ADJECTIVES["good"], standard=the("water")),
        "The wine is better than the water .",
        "Il vino è migliore dell' acqua .",
    ),
    (
        simple("noun", name("Maria"), predicate=Nominal(NOUNS["friend"], "a", feminine=True, before=ADJECTIVES["old"])),
        "Maria is an old friend .",
        "Maria è una vecchia amica .",
    ),
    (
        simple(
            "verbal",
            name("Carlo"),
            VERBS["giving"]["offer"],
            tense="perfect",
            adverb="already",
            object=the("wine", "Italian", determiner="some"),
            recipient=the("psychologists"),
        ),
        "Carlo has already offered some Italian wine to the psychologists .",
        "Carlo ha già offerto del vino italiano agli psicologi .",
    ),
    (
        simple(
            "verbal",
            name("Davide"),
            VERBS["giving"]["lend"],
            object=the("keys", determiner="all the"),
            recipient=SPEAKER,
        ),
        "Davide lends me all the keys .",
        "Davide mi presta tutte le chiavi .",
    ),
    (
        simple(
            "adjective", Nominal(NOUNS["brother"], possessor=NOUNS["Luca"]), adjective=ADJECTIVES["nice"], negative=True
        ),
        "Luca 's brother is not nice .",
        "Il fratello di Luca non è simpatico .",
    ),
]


@pytest.mark.parametrize(("text", "source", "target"), TEXTS, ids=[source for _, source, _ in TEXTS])
def test_texts_are_translated(text: Callable[[], list[SentencePlan]], source: str, target: str) -> None:
    pair = render(*text())
    assert (" ".join(pair.words[0]), " ".join(pair.words[1])) == (source, target)


def test_truth_of_a_text() -> None:
    pair = render(*seen())
    truth = pair.truth
    assert truth is not None
    # Luca met Maria . I saw her .  |  Luca ha incontrato Maria . L' ho vista .
    assert truth.alignment == ((0, 0), (1, 1), (1, 2), (2, 3), (3, 4), (5, 6), (5, 7), (6, 5), (7, 8))
    assert pair.source.governors == (1, -1, 1, 1, 5, -1, 5, 5)
    assert pair.target is not None
    assert pair.target.governors == (2, 2, -1, 2, 2, 7, 7, -1, 7)
    assert truth.source_coreference == ((6, 2),)
    assert truth.target_coreference == ((5, 3),)


def test_truth_of_a_question_with_split_verb_group() -> None:
    pair = render(SentencePlan(Clause("verbal", name("Sara"), DO["eat"], mood="what", tense="progressive")))
    assert pair.truth is not None and pair.target is not None
    # What is Sara eating ?  |  Che cosa sta mangiando Sara ?
    assert pair.truth.alignment == ((0, 0), (0, 1), (1, 2), (2, 4), (3, 3), (4, 5))
    assert pair.source.governors == (3, 3, 3, -1, 3)
    assert pair.target.governors == (1, 3, 3, -1, 3, 3)


def test_couples_are_antecedents_with_both_names() -> None:
    couple = Couple(NOUNS["Luca"], NOUNS["Maria"])
    sleeping = Clause("verbal", couple, GO["sleep"], tense="progressive")
    pair = render(
        SentencePlan(sleeping),
        SentencePlan(Clause("verbal", SPEAKER, DO["help"], tense="past", object=pronoun_for(couple))),
    )
    assert " ".join(pair.words[1]) == "Luca e Maria stanno dormendo . Li ho aiutati ."
    assert pair.truth is not None
    assert pair.truth.source_coreference == ((8, 0), (8, 2))
    assert pair.truth.target_coreference == ((6, 0), (6, 2))


def test_contracted_prepositions_align_with_both_words() -> None:
    pair = render(SentencePlan(Clause("place", name("Luca"), place=place("park", "in", "in"))))
    assert (" ".join(pair.words[0]), " ".join(pair.words[1])) == ("Luca is in the park .", "Luca è nel parco .")
    assert pair.truth is not None
    assert {(2, 2), (3, 2)} <= set(pair.truth.alignment)
