"""Italian morphology: articles, contracted prepositions, plurals and agreement; and the forms of verbs."""

from __future__ import annotations

from typing import Literal, NamedTuple

Gender = Literal["m", "f"]

ITALIAN_VOWELS = "aeiouàèéìòù"
IMPURE_CLUSTERS = ("z", "gn", "ps", "pn", "x", "y")
CONTRACTING_STEMS = {"di": "de", "a": "a", "da": "da", "in": "ne", "su": "su"}

IRREGULAR_NOUN_PLURALS = {
    "uomo": "uomini", "uovo": "uova", "mano": "mani", "braccio": "braccia", "zio": "zii", "dio": "dei", "bue": "buoi",
    "ala": "ali", "moglie": "mogli",
}  # fmt: skip
FEMININE_IN_THE_PLURAL = {"uovo", "braccio"}
INVARIABLE_NOUNS = {"foto", "moto", "auto", "radio", "cinema", "zoo", "re", "gru", "specie"}
PLURALS_IN_ICHI = {"fico", "antico", "carico"}
PLURALS_IN_CI = {"greco"}
POSSESSIVE_PLURALS = {"mio": "miei", "tuo": "tuoi", "suo": "suoi"}
INVARIABLE_ADJECTIVES = {"blu", "rosa", "loro", "ogni"}
DEMONSTRATIVE_LIKE = {"bello": "be", "quello": "que"}


def begins_with_vowel(word: str) -> bool:
    """True if elision may happen; the letter h is silent."""
    return word[0].lower() in ITALIAN_VOWELS or word[0] in "hH"


def begins_impure(word: str) -> bool:
    """True before s + consonant, z, gn, ps, pn, x and y, which require lo, gli, uno."""
    lower = word.lower()
    if lower[0] == "s":
        return len(lower) > 1 and lower[1] not in ITALIAN_VOWELS
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


def italian_indefinite(gender: Gender, following: str) -> str:
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


def italian_plural(noun: str, gender: Gender) -> str:
    """The plural of a noun of the given gender."""
    if noun in IRREGULAR_NOUN_PLURALS:
        return IRREGULAR_NOUN_PLURALS[noun]
    if noun in INVARIABLE_NOUNS or noun[-1] not in "aeo":
        return noun
    if noun[-1] == "e":
        return noun[:-1] + "i"
    if noun[-1] == "o":
        return plural_of_o(noun)
    if gender == "f":
        return plural_of_feminine_a(noun)
    return noun[:-1] + ("hi" if noun.endswith(("ca", "ga")) else "i")  # turisti, colleghi


def gender_in_number(noun: str, gender: Gender, is_plural: bool) -> Gender:
    """The gender of a noun in the given number: `l'uovo` is masculine, `le uova` feminine."""
    return "f" if is_plural and noun in FEMININE_IN_THE_PLURAL else gender


def plural_of_o(word: str) -> str:
    """The masculine plural of a word in -o."""
    if word.endswith("io"):
        return word[:-1]
    soft = word in PLURALS_IN_CI or word.endswith("ologo") or (word.endswith("ico") and word not in PLURALS_IN_ICHI)
    return word[:-1] + ("hi" if word.endswith(("co", "go")) and not soft else "i")


def plural_of_feminine_a(word: str) -> str:
    """The feminine plural of a word in -a."""
    if word.endswith(("ca", "ga")):
        return word[:-1] + "he"
    if word.endswith(("cia", "gia")) and word[-4] not in ITALIAN_VOWELS:
        return word[:-2] + "e"
    return word[:-1] + "e"


def agree(adjective: str, gender: Gender, is_plural: bool) -> str:
    """An adjective, participle or possessive in the form that agrees."""
    if adjective in INVARIABLE_ADJECTIVES:
        return adjective
    if adjective.endswith("o"):
        if gender == "m":
            return (POSSESSIVE_PLURALS.get(adjective) or plural_of_o(adjective)) if is_plural else adjective
        feminine = adjective[:-1] + "a"
        return plural_of_feminine_a(feminine) if is_plural else feminine
    if adjective.endswith("ista"):
        return italian_plural(adjective, gender) if is_plural else adjective
    return adjective[:-1] + "i" if is_plural else adjective


def agree_before_noun(adjective: str, gender: Gender, is_plural: bool, following: str) -> str:
    """A prenominal form: `bel`, `begli`, `quell'`, `buon`, `quest'` and the regular ones."""
    if adjective in DEMONSTRATIVE_LIKE:
        return fuse(DEMONSTRATIVE_LIKE[adjective], definite(gender, is_plural, following))
    if adjective == "buono" and not is_plural:
        return "buo" + italian_indefinite(gender, following)[1:]
    if adjective == "questo" and not is_plural and begins_with_vowel(following):
        return "quest'"
    return agree(adjective, gender, is_plural)


REGULAR_PRESENT = {
    "are": ("o", "i", "a", "iamo", "ate", "ano"),
    "ere": ("o", "i", "e", "iamo", "ete", "ono"),
    "ire": ("o", "i", "e", "iamo", "ite", "ono"),
}

INCHOATIVE_PRESENT = ("isco", "isci", "isce", "iamo", "ite", "iscono")
FUTURE_ENDINGS = ("ò", "ai", "à", "emo", "ete", "anno")
IMPERFECT_ENDINGS = ("vo", "vi", "va", "vamo", "vate", "vano")
INCHOATIVE = {"finire", "pulire", "capire", "spedire", "preferire", "costruire", "guarire", "restituire", "punire"}

CONJUGATED_WITH_ESSERE = {
    "andare", "venire", "tornare", "arrivare", "partire", "entrare", "uscire", "salire", "cadere", "rimanere",
    "restare", "nascere", "diventare", "piacere", "essere", "stare", "scendere", "ripartire",
}  # fmt: skip

IRREGULAR_PRESENT = {
    "essere": "sono sei è siamo siete sono",
    "avere": "ho hai ha abbiamo avete hanno",
    "andare": "vado vai va andiamo andate vanno",
    "venire": "vengo vieni viene veniamo venite vengono",
    "fare": "faccio fai fa facciamo fate fanno",
    "dare": "do dai dà diamo date danno",
    "stare": "sto stai sta stiamo state stanno",
    "dire": "dico dici dice diciamo dite dicono",
    "bere": "bevo bevi beve beviamo bevete bevono",
    "potere": "posso puoi può possiamo potete possono",
    "dovere": "devo devi deve dobbiamo dovete devono",
    "volere": "voglio vuoi vuole vogliamo volete vogliono",
    "sapere": "so sai sa sappiamo sapete sanno",
    "uscire": "esco esci esce usciamo uscite escono",
    "scegliere": "scelgo scegli sceglie scegliamo scegliete scelgono",
    "rimanere": "rimango rimani rimane rimaniamo rimanete rimangono",
    "salire": "salgo sali sale saliamo salite salgono",
    "tenere": "tengo tieni tiene teniamo tenete tengono",
    "tradurre": "traduco traduci traduce traduciamo traducete traducono",
    "sedere": "siedo siedi siede sediamo sedete siedono",
    "piacere": "piaccio piaci piace piacciamo piacete piacciono",
    "spegnere": "spengo spegni spegne spegniamo spegnete spengono",
}

IRREGULAR_FUTURE_STEMS = {
    "essere": "sar", "avere": "avr", "andare": "andr", "venire": "verr", "fare": "far", "dare": "dar",
    "stare": "star", "bere": "berr", "potere": "potr", "dovere": "dovr", "volere": "vorr", "sapere": "sapr",
    "vedere": "vedr", "vivere": "vivr", "cadere": "cadr", "rimanere": "rimarr", "tenere": "terr",
    "tradurre": "tradurr", "sedere": "sieder",
}  # fmt: skip

IRREGULAR_PARTICIPLES = {
    "essere": "stato", "venire": "venuto", "fare": "fatto", "dire": "detto", "bere": "bevuto", "leggere": "letto",
    "scrivere": "scritto", "vedere": "visto", "prendere": "preso", "mettere": "messo", "chiudere": "chiuso",
    "aprire": "aperto", "tradurre": "tradotto", "perdere": "perso", "rompere": "rotto", "nascondere": "nascosto",
    "scegliere": "scelto", "dipingere": "dipinto", "spingere": "spinto", "correre": "corso", "piangere": "pianto",
    "ridere": "riso", "sorridere": "sorriso", "rispondere": "risposto", "offrire": "offerto", "rimanere": "rimasto",
    "vivere": "vissuto", "accendere": "acceso", "spegnere": "spento", "scoprire": "scoperto", "scendere": "sceso",
    "vincere": "vinto", "chiedere": "chiesto", "decidere": "deciso",
}  # fmt: skip

LATIN_STEMS = {"fare": "face", "dire": "dice", "bere": "beve", "tradurre": "traduce"}


class Conjugation(NamedTuple):
    """The forms of a verb; finite tenses list the persons from `io` to `loro`."""

    infinitive: str
    present: tuple[str, ...]
    imperfect: tuple[str, ...]
    future: tuple[str, ...]
    participle: str
    gerund: str
    with_essere: bool
    reflexive: bool


def spell(stem: str, ending: str) -> str:
    """Joins the stem of a verb in -are and its ending, keeping the sound of c, g and i."""
    if ending[0] in "ie":
        if stem.endswith(("c", "g")):
            return stem + "h" + ending
        if stem.endswith("i") and (ending[0] == "i" or stem.endswith(("ci", "gi"))):
            return stem[:-1] + ending
    return stem + ending


def present(infinitive: str) -> tuple[str, ...]:
    """The six forms of the present."""
    if infinitive in IRREGULAR_PRESENT:
        return tuple(IRREGULAR_PRESENT[infinitive].split())
    stem, theme = infinitive[:-3], infinitive[-3:]
    if infinitive in INCHOATIVE:
        return tuple(stem + ending for ending in INCHOATIVE_PRESENT)
    join = spell if theme == "are" else str.__add__
    return tuple(join(stem, ending) for ending in REGULAR_PRESENT[theme])


def imperfect(infinitive: str) -> tuple[str, ...]:
    """The six forms of the imperfect."""
    if infinitive == "essere":
        return ("ero", "eri", "era", "eravamo", "eravate", "erano")
    stem = LATIN_STEMS.get(infinitive, infinitive[:-2])
    return tuple(stem + ending for ending in IMPERFECT_ENDINGS)


def future(infinitive: str) -> tuple[str, ...]:
    """The six forms of the simple future."""
    stem = IRREGULAR_FUTURE_STEMS.get(infinitive)
    if stem is None:
        stem = spell(infinitive[:-3], "er") if infinitive.endswith("are") else infinitive[:-1]
    return tuple(stem + ending for ending in FUTURE_ENDINGS)


def past_participle(infinitive: str) -> str:
    """The past participle, masculine singular."""
    if infinitive in IRREGULAR_PARTICIPLES:
        return IRREGULAR_PARTICIPLES[infinitive]
    stem, theme = infinitive[:-3], infinitive[-3:]
    if theme == "ere" and stem.endswith(("c", "sc")):
        return stem + "iuto"
    return stem + {"are": "ato", "ere": "uto", "ire": "ito"}[theme]


def italian_gerund(infinitive: str) -> str:
    """The gerund: `mangiando`, `bevendo`, `facendo`."""
    if infinitive in LATIN_STEMS:
        return LATIN_STEMS[infinitive] + "ndo"
    return infinitive[:-3] + ("ando" if infinitive.endswith("are") else "endo")


def conjugate(lemma: str) -> Conjugation:
    """All forms of a lemma; reflexive lemmas end in -si (`svegliarsi`)."""
    reflexive = lemma.endswith("si")
    infinitive = lemma[:-2] + "e" if reflexive else lemma
    return Conjugation(
        infinitive,
        present(infinitive),
        imperfect(infinitive),
        future(infinitive),
        past_participle(infinitive),
        italian_gerund(infinitive),
        reflexive or infinitive in CONJUGATED_WITH_ESSERE,
        reflexive,
    )
