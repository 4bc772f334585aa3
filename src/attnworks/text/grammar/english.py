"""English morphology: plurals, verb forms, the indefinite article and comparatives."""

from __future__ import annotations

import re
from typing import NamedTuple

ENGLISH_VOWELS = "aeiou"

IRREGULAR_PLURALS = {
    "man": "men", "woman": "women", "child": "children", "wife": "wives", "wolf": "wolves", "knife": "knives",
    "shelf": "shelves", "scarf": "scarves", "mouse": "mice", "goose": "geese", "foot": "feet", "tomato": "tomatoes",
    "potato": "potatoes",
}  # fmt: skip

IRREGULAR_VERBS = {
    "be": "was been", "break": "broke broken", "bring": "brought brought", "buy": "bought bought",
    "choose": "chose chosen", "come": "came come", "cut": "cut cut", "draw": "drew drawn", "drink": "drank drunk",
    "drive": "drove driven", "eat": "ate eaten", "fall": "fell fallen", "find": "found found",
    "forget": "forgot forgotten", "get": "got gotten", "give": "gave given", "go": "went gone", "have": "had had",
    "hear": "heard heard", "hide": "hid hidden", "know": "knew known", "leave": "left left", "lend": "lent lent",
    "lose": "lost lost", "meet": "met met", "read": "read read", "run": "ran run", "say": "said said",
    "see": "saw seen", "sell": "sold sold", "send": "sent sent", "sing": "sang sung", "sit": "sat sat",
    "sleep": "slept slept", "speak": "spoke spoken", "steal": "stole stolen", "swim": "swam swum",
    "take": "took taken", "understand": "understood understood", "wake": "woke woken", "wear": "wore worn",
    "write": "wrote written",
}  # fmt: skip

STRESSED_ON_LAST_SYLLABLE = {"forget"}
SILENT_H = ("hour", "honest")
CONSONANT_SOUND = ("uni", "use", "usu", "euro", "one")
IRREGULAR_COMPARATIVES = {"good": "better", "bad": "worse"}
COMPARED_WITH_MORE = {"tired", "bored"}


class VerbForms(NamedTuple):
    """The five forms of an English verb; a particle or a fixed complement stays apart."""

    base: str
    third: str
    gerund: str
    past: str
    participle: str
    particles: tuple[str, ...]


def add_s(word: str) -> str:
    """The ending -s of plurals and of the third person, with its spelling changes."""
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in ENGLISH_VOWELS:
        return word[:-1] + "ies"
    return word + "s"


def english_plural(noun: str) -> str:
    """The plural of a noun."""
    return IRREGULAR_PLURALS.get(noun) or add_s(noun)


def doubles_its_consonant(verb: str) -> bool:
    """True where -ing and -ed double the final consonant (run, stop, forget)."""
    if len(verb) < 3 or verb[-1] in "wxy" or verb[-1] in ENGLISH_VOWELS:
        return False
    stressed = sum(letter in ENGLISH_VOWELS for letter in verb) == 1 or verb in STRESSED_ON_LAST_SYLLABLE
    return stressed and verb[-2] in ENGLISH_VOWELS and verb[-3] not in ENGLISH_VOWELS


def english_gerund(verb: str) -> str:
    """The form in -ing."""
    if verb.endswith("e") and not verb.endswith(("ee", "be")):
        return verb[:-1] + "ing"
    return verb + verb[-1] * doubles_its_consonant(verb) + "ing"


def regular_past(verb: str) -> str:
    """The form in -ed."""
    if verb.endswith("e"):
        return verb + "d"
    if verb.endswith("y") and verb[-2] not in ENGLISH_VOWELS:
        return verb[:-1] + "ied"
    return verb + verb[-1] * doubles_its_consonant(verb) + "ed"


def verb_forms(lemma: str) -> VerbForms:
    """All forms of a lemma such as `eat` or `look for`; only its first word inflects."""
    base, *particles = lemma.split()
    past, participle = IRREGULAR_VERBS.get(base, f"{regular_past(base)} {regular_past(base)}").split()
    third = {"be": "is", "have": "has", "go": "goes", "do": "does"}.get(base) or add_s(base)
    return VerbForms(base, third, english_gerund(base), past, participle, tuple(particles))


def english_indefinite(following: str) -> str:
    """`a` or `an`, by the first sound of the following word."""
    following = following.lower()
    if following.startswith(SILENT_H):
        return "an"
    return "an" if following[0] in ENGLISH_VOWELS and not following.startswith(CONSONANT_SOUND) else "a"


def comparative(adjective: str) -> tuple[str, ...]:
    """`taller`, `happier`, `better`, or the two words `more famous`."""
    if adjective in IRREGULAR_COMPARATIVES:
        return (IRREGULAR_COMPARATIVES[adjective],)
    groups = len(re.findall("[aeiouy]+", adjective.removesuffix("e")))  # about the number of syllables
    if adjective.endswith("y") and groups == 2:
        return (adjective[:-1] + "ier",)
    if groups > 1 or adjective in COMPARED_WITH_MORE:
        return ("more", adjective)
    if adjective.endswith("e"):
        return (adjective + "r",)
    return (adjective + adjective[-1] * doubles_its_consonant(adjective) + "er",)
