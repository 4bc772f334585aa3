"""Italian verbs: present, imperfect, future, participle, gerund and auxiliary."""

from __future__ import annotations

from typing import NamedTuple

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
    "essere": "sar",
    "avere": "avr",
    "andare": "andr",
    "venire": "verr",
    "fare": "far",
    "dare": "dar",
    "stare": "star",
    "bere": "berr",
    "potere": "potr",
    "dovere": "dovr",
    "volere": "vorr",
    "sapere": "sapr",
    "vedere": "vedr",
    "vivere": "vivr",
    "cadere": "cadr",
    "rimanere": "rimarr",
    "tenere": "terr",
    "tradurre": "tradurr",
    "sedere": "sieder",
}
IRREGULAR_PARTICIPLES = {
    "essere": "stato",
    "venire": "venuto",
    "fare": "fatto",
    "dire": "detto",
    "bere": "bevuto",
    "leggere": "letto",
    "scrivere": "scritto",
    "vedere": "visto",
    "prendere": "preso",
    "mettere": "messo",
    "chiudere": "chiuso",
    "aprire": "aperto",
    "tradurre": "tradotto",
    "perdere": "perso",
    "rompere": "rotto",
    "nascondere": "nascosto",
    "scegliere": "scelto",
    "dipingere": "dipinto",
    "spingere": "spinto",
    "correre": "corso",
    "piangere": "pianto",
    "ridere": "riso",
    "sorridere": "sorriso",
    "rispondere": "risposto",
    "offrire": "offerto",
    "rimanere": "rimasto",
    "vivere": "vissuto",
    "accendere": "acceso",
    "spegnere": "spento",
    "scoprire": "scoperto",
    "scendere": "sceso",
    "vincere": "vinto",
    "chiedere": "chiesto",
    "decidere": "deciso",
}
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


def participle(infinitive: str) -> str:
    """The past participle, masculine singular."""
    if infinitive in IRREGULAR_PARTICIPLES:
        return IRREGULAR_PARTICIPLES[infinitive]
    stem, theme = infinitive[:-3], infinitive[-3:]
    if theme == "ere" and stem.endswith(("c", "sc")):
        return stem + "iuto"
    return stem + {"are": "ato", "ere": "uto", "ire": "ito"}[theme]


def gerund(infinitive: str) -> str:
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
        participle(infinitive),
        gerund(infinitive),
        reflexive or infinitive in CONJUGATED_WITH_ESSERE,
        reflexive,
    )
