"""Italian nominal morphology: articles, contracted prepositions, plurals and agreement."""

from __future__ import annotations

from typing import Literal

Gender = Literal["m", "f"]

VOWELS = "aeiouàèéìòù"
IMPURE_CLUSTERS = ("z", "gn", "ps", "pn", "x", "y")
CONTRACTING_STEMS = {"di": "de", "a": "a", "da": "da", "in": "ne", "su": "su"}

IRREGULAR_NOUN_PLURALS = {
    "uomo": "uomini",
    "uovo": "uova",
    "mano": "mani",
    "braccio": "braccia",
    "zio": "zii",
    "dio": "dei",
    "bue": "buoi",
    "ala": "ali",
    "moglie": "mogli",
}
FEMININE_IN_THE_PLURAL = {"uovo", "braccio"}
INVARIABLE_NOUNS = {"foto", "moto", "auto", "radio", "cinema", "zoo", "re", "gru", "specie"}
PLURALS_IN_ICHI = {"fico", "antico", "carico"}
PLURALS_IN_CI = {"greco"}
POSSESSIVES = {
    ("mio", "m", True): "miei",
    ("tuo", "m", True): "tuoi",
    ("suo", "m", True): "suoi",
}
INVARIABLE_ADJECTIVES = {"blu", "rosa", "loro", "ogni"}
DEMONSTRATIVE_LIKE = {"bello": "be", "quello": "que"}


def begins_with_vowel(word: str) -> bool:
    """True where elision may happen; the letter h is mute."""
    return word[0].lower() in VOWELS or word[0] in "hH"


def begins_impure(word: str) -> bool:
    """True before s + consonant, z, gn, ps, pn, x and y, which ask for lo, gli, uno."""
    lower = word.lower()
    if lower[0] == "s":
        return len(lower) > 1 and lower[1] not in VOWELS
    return lower.startswith(IMPURE_CLUSTERS)


def definite(gender: Gender, plural: bool, following: str) -> str:
    """The definite article before the following word."""
    vowel = begins_with_vowel(following)
    if gender == "f":
        return "le" if plural else "l'" if vowel else "la"
    impure = begins_impure(following)
    if plural:
        return "gli" if vowel or impure else "i"
    return "l'" if vowel else "lo" if impure else "il"


def indefinite(gender: Gender, following: str) -> str:
    """The indefinite article before the following word."""
    if gender == "f":
        return "un'" if begins_with_vowel(following) else "una"
    return "uno" if begins_impure(following) else "un"


def fuse(stem: str, article: str) -> str:
    """A stem (de, ne, be, que, ...) fused with a definite article."""
    if article == "il":
        return stem + "l"
    return stem + article if article in ("i", "gli") else f"{stem}l{article}"


def contract(preposition: str, article: str) -> str:
    """A preposition with the definite article: `nel`, `sulla`, `vicino al`, but `con il`."""
    first, _, last = preposition.rpartition(" ")
    stem = CONTRACTING_STEMS.get(last)
    fused = fuse(stem, article) if stem else f"{last} {article}"
    return f"{first} {fused}".strip()


def before(preposition: str, following: str) -> str:
    """A preposition before a word without article: `ad` before a, `d'` before `acqua`."""
    if following[0].lower() == "a":
        if preposition == "a" or preposition.endswith(" a"):
            return preposition + "d"
        if preposition == "di" and following == "acqua":
            return "d'"
    return preposition


def conjunction(following: str) -> str:
    """`e`, or `ed` before another e."""
    return "ed" if following[0].lower() in "eè" else "e"


def plural(noun: str, gender: Gender) -> str:
    """The plural of a noun of the given gender."""
    if noun in IRREGULAR_NOUN_PLURALS:
        return IRREGULAR_NOUN_PLURALS[noun]
    if noun in INVARIABLE_NOUNS or noun[-1] not in "aeo":
        return noun
    if noun[-1] == "e":
        return noun[:-1] + "i"
    if noun[-1] == "o":
        return plural_of_o(noun)
    return plural_of_feminine_a(noun) if gender == "f" else plural_of_masculine_a(noun)


def gender_in_number(noun: str, gender: Gender, is_plural: bool) -> Gender:
    """The gender of a noun in the given number: `l'uovo` is masculine, `le uova` feminine."""
    return "f" if is_plural and noun in FEMININE_IN_THE_PLURAL else gender


def plural_of_o(word: str) -> str:
    """The masculine plural of a word in -o."""
    if word.endswith("io"):
        return word[:-1]
    if word.endswith("ologo") or word in PLURALS_IN_CI:
        return word[:-1] + "i"
    if word.endswith("ico") and word not in PLURALS_IN_ICHI:
        return word[:-1] + "i"
    if word.endswith(("co", "go")):
        return word[:-1] + "hi"
    return word[:-1] + "i"


def plural_of_feminine_a(word: str) -> str:
    """The feminine plural of a word in -a."""
    if word.endswith(("ca", "ga")):
        return word[:-1] + "he"
    if word.endswith(("cia", "gia")) and word[-4] not in VOWELS:
        return word[:-2] + "e"
    return word[:-1] + "e"


def plural_of_masculine_a(word: str) -> str:
    """The masculine plural of a word in -a: `turisti`, `colleghi`."""
    return word[:-1] + ("hi" if word.endswith(("ca", "ga")) else "i")


def agree(adjective: str, gender: Gender, is_plural: bool) -> str:
    """An adjective, participle or possessive in the form that agrees."""
    if adjective in INVARIABLE_ADJECTIVES:
        return adjective
    if (adjective, gender, is_plural) in POSSESSIVES:
        return POSSESSIVES[adjective, gender, is_plural]
    if adjective.endswith("o"):
        if gender == "m":
            return plural_of_o(adjective) if is_plural else adjective
        feminine = adjective[:-1] + "a"
        return plural_of_feminine_a(feminine) if is_plural else feminine
    if adjective.endswith("ista"):
        return plural(adjective, gender) if is_plural else adjective
    return adjective[:-1] + "i" if is_plural else adjective


def agree_before_noun(adjective: str, gender: Gender, is_plural: bool, following: str) -> str:
    """A prenominal form: `bel`, `begli`, `quell'`, `buon`, `quest'` and the regular ones."""
    if adjective in DEMONSTRATIVE_LIKE:
        return fuse(DEMONSTRATIVE_LIKE[adjective], definite(gender, is_plural, following))
    if adjective == "buono" and not is_plural:
        return "buo" + indefinite(gender, following)[1:]
    if adjective == "questo" and not is_plural and begins_with_vowel(following):
        return "quest'"
    return agree(adjective, gender, is_plural)
