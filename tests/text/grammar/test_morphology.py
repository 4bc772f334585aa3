"""Forms of both languages against hand-written expectations."""

from __future__ import annotations

import pytest

from attnworks.text.grammar import english, italian
from attnworks.text.grammar.italian import Gender


@pytest.mark.parametrize(
    ("gender", "plural", "following", "article"),
    [
        ("m", False, "libro", "il"),
        ("m", False, "zaino", "lo"),
        ("m", False, "studente", "lo"),
        ("m", False, "gnomo", "lo"),
        ("m", False, "psicologo", "lo"),
        ("m", False, "xilofono", "lo"),
        ("m", False, "yogurt", "lo"),
        ("m", False, "sale", "il"),
        ("m", False, "amico", "l'"),
        ("m", False, "hotel", "l'"),
        ("m", True, "libri", "i"),
        ("m", True, "zaini", "gli"),
        ("m", True, "specchi", "gli"),
        ("m", True, "amici", "gli"),
        ("f", False, "casa", "la"),
        ("f", False, "zebra", "la"),
        ("f", False, "acqua", "l'"),
        ("f", True, "amiche", "le"),
    ],
)
def test_definite_articles(gender: Gender, plural: bool, following: str, article: str) -> None:
    assert italian.definite(gender, plural, following) == article


@pytest.mark.parametrize(
    ("gender", "following", "article"),
    [
        ("m", "libro", "un"),
        ("m", "amico", "un"),
        ("m", "zaino", "uno"),
        ("m", "specchio", "uno"),
        ("m", "psicologo", "uno"),
        ("f", "casa", "una"),
        ("f", "scuola", "una"),
        ("f", "idea", "un'"),
    ],
)
def test_indefinite_articles(gender: Gender, following: str, article: str) -> None:
    assert italian.italian_indefinite(gender, following) == article


@pytest.mark.parametrize(
    ("preposition", "article", "contracted"),
    [
        ("di", "il", "del"),
        ("di", "lo", "dello"),
        ("di", "l'", "dell'"),
        ("di", "gli", "degli"),
        ("a", "il", "al"),
        ("a", "i", "ai"),
        ("a", "lo", "allo"),
        ("da", "la", "dalla"),
        ("da", "l'", "dall'"),
        ("in", "il", "nel"),
        ("in", "la", "nella"),
        ("in", "le", "nelle"),
        ("su", "la", "sulla"),
        ("su", "gli", "sugli"),
        ("vicino a", "la", "vicino alla"),
        ("davanti a", "l'", "davanti all'"),
        ("con", "il", "con il"),
        ("sotto", "la", "sotto la"),
    ],
)
def test_contracted_prepositions(preposition: str, article: str, contracted: str) -> None:
    assert italian.contract(preposition, article) == contracted


@pytest.mark.parametrize(
    ("preposition", "following", "form"),
    [
        ("a", "Roma", "a"),
        ("a", "Atene", "ad"),
        ("a", "Anna", "ad"),
        ("a", "Elena", "a"),
        ("di", "acqua", "d'"),
        ("di", "Anna", "di"),
        ("accanto a", "Andrea", "accanto ad"),
    ],
)
def test_prepositions_without_article(preposition: str, following: str, form: str) -> None:
    assert italian.before(preposition, following) == form


@pytest.mark.parametrize(("following", "form"), [("Maria", "e"), ("Elena", "ed"), ("è", "ed"), ("io", "e")])
def test_and(following: str, form: str) -> None:
    assert italian.conjunction(following) == form


@pytest.mark.parametrize(
    ("noun", "gender", "plural"),
    [
        ("gatto", "m", "gatti"),
        ("casa", "f", "case"),
        ("fiore", "m", "fiori"),
        ("chiave", "f", "chiavi"),
        ("amico", "m", "amici"),
        ("amica", "f", "amiche"),
        ("cuoco", "m", "cuochi"),
        ("fico", "m", "fichi"),
        ("psicologo", "m", "psicologi"),
        ("lago", "m", "laghi"),
        ("parco", "m", "parchi"),
        ("arancia", "f", "arance"),
        ("camicia", "f", "camicie"),
        ("ciliegia", "f", "ciliegie"),
        ("valigia", "f", "valigie"),
        ("spiaggia", "f", "spiagge"),
        ("giacca", "f", "giacche"),
        ("orologio", "m", "orologi"),
        ("specchio", "m", "specchi"),
        ("zio", "m", "zii"),
        ("città", "f", "città"),
        ("caffè", "m", "caffè"),
        ("film", "m", "film"),
        ("autobus", "m", "autobus"),
        ("foto", "f", "foto"),
        ("uomo", "m", "uomini"),
        ("uovo", "m", "uova"),
        ("mano", "f", "mani"),
        ("braccio", "m", "braccia"),
        ("moglie", "f", "mogli"),
        ("turista", "m", "turisti"),
        ("turista", "f", "turiste"),
        ("collega", "m", "colleghi"),
        ("collega", "f", "colleghe"),
    ],
)
def test_italian_plurals(noun: str, gender: Gender, plural: str) -> None:
    assert italian.italian_plural(noun, gender) == plural


def test_eggs_change_their_gender() -> None:
    assert italian.gender_in_number("uovo", "m", False) == "m"
    assert italian.gender_in_number("uovo", "m", True) == "f"


@pytest.mark.parametrize(
    ("adjective", "forms"),
    [
        ("rosso", "rosso rossa rossi rosse"),
        ("felice", "felice felice felici felici"),
        ("bianco", "bianco bianca bianchi bianche"),
        ("simpatico", "simpatico simpatica simpatici simpatiche"),
        ("antico", "antico antica antichi antiche"),
        ("lungo", "lungo lunga lunghi lunghe"),
        ("grigio", "grigio grigia grigi grigie"),
        ("vecchio", "vecchio vecchia vecchi vecchie"),
        ("tedesco", "tedesco tedesca tedeschi tedesche"),
        ("ottimista", "ottimista ottimista ottimisti ottimiste"),
        ("blu", "blu blu blu blu"),
        ("mio", "mio mia miei mie"),
        ("suo", "suo sua suoi sue"),
        ("nostro", "nostro nostra nostri nostre"),
        ("loro", "loro loro loro loro"),
    ],
)
def test_agreement(adjective: str, forms: str) -> None:
    agreed = [italian.agree(adjective, gender, plural) for plural in (False, True) for gender in ("m", "f")]
    assert agreed == forms.split()


@pytest.mark.parametrize(
    ("adjective", "gender", "plural", "following", "form"),
    [
        ("bello", "m", False, "cane", "bel"),
        ("bello", "m", False, "specchio", "bello"),
        ("bello", "m", False, "orologio", "bell'"),
        ("bello", "m", True, "libri", "bei"),
        ("bello", "m", True, "zaini", "begli"),
        ("bello", "f", False, "isola", "bell'"),
        ("bello", "f", False, "casa", "bella"),
        ("bello", "f", True, "isole", "belle"),
        ("quello", "m", False, "libro", "quel"),
        ("quello", "m", False, "uomo", "quell'"),
        ("quello", "m", True, "uomini", "quegli"),
        ("quello", "m", True, "cani", "quei"),
        ("buono", "m", False, "amico", "buon"),
        ("buono", "m", False, "studente", "buono"),
        ("buono", "f", False, "idea", "buon'"),
        ("buono", "f", True, "torte", "buone"),
        ("questo", "f", False, "oca", "quest'"),
        ("questo", "m", True, "amici", "questi"),
        ("nuovo", "m", False, "zaino", "nuovo"),
        ("grande", "f", True, "case", "grandi"),
    ],
)
def test_prenominal_forms(adjective: str, gender: Gender, plural: bool, following: str, form: str) -> None:
    assert italian.agree_before_noun(adjective, gender, plural, following) == form


@pytest.mark.parametrize(
    ("infinitive", "forms"),
    [
        ("parlare", "parlo parli parla parliamo parlate parlano"),
        ("mangiare", "mangio mangi mangia mangiamo mangiate mangiano"),
        ("cercare", "cerco cerchi cerca cerchiamo cercate cercano"),
        ("studiare", "studio studi studia studiamo studiate studiano"),
        ("leggere", "leggo leggi legge leggiamo leggete leggono"),
        ("dormire", "dormo dormi dorme dormiamo dormite dormono"),
        ("finire", "finisco finisci finisce finiamo finite finiscono"),
        ("andare", "vado vai va andiamo andate vanno"),
        ("scegliere", "scelgo scegli sceglie scegliamo scegliete scelgono"),
        ("sedere", "siedo siedi siede sediamo sedete siedono"),
    ],
)
def test_present(infinitive: str, forms: str) -> None:
    assert italian.present(infinitive) == tuple(forms.split())


@pytest.mark.parametrize(
    ("infinitive", "third"),
    [
        ("mangiare", "mangerà"),
        ("cercare", "cercherà"),
        ("studiare", "studierà"),
        ("viaggiare", "viaggerà"),
        ("vedere", "vedrà"),
        ("bere", "berrà"),
        ("rimanere", "rimarrà"),
        ("essere", "sarà"),
        ("avere", "avrà"),
        ("venire", "verrà"),
        ("dormire", "dormirà"),
        ("dare", "darà"),
    ],
)
def test_future(infinitive: str, third: str) -> None:
    assert italian.future(infinitive)[2] == third


@pytest.mark.parametrize(
    ("infinitive", "participle", "gerund"),
    [
        ("parlare", "parlato", "parlando"),
        ("fare", "fatto", "facendo"),
        ("dire", "detto", "dicendo"),
        ("bere", "bevuto", "bevendo"),
        ("tradurre", "tradotto", "traducendo"),
        ("conoscere", "conosciuto", "conoscendo"),
        ("piacere", "piaciuto", "piacendo"),
        ("vedere", "visto", "vedendo"),
        ("rompere", "rotto", "rompendo"),
        ("capire", "capito", "capendo"),
        ("aprire", "aperto", "aprendo"),
        ("vivere", "vissuto", "vivendo"),
    ],
)
def test_participles_and_gerunds(infinitive: str, participle: str, gerund: str) -> None:
    assert (italian.past_participle(infinitive), italian.italian_gerund(infinitive)) == (participle, gerund)


@pytest.mark.parametrize(
    ("infinitive", "third"), [("essere", "era"), ("avere", "aveva"), ("dire", "diceva"), ("bere", "beveva")]
)
def test_imperfect(infinitive: str, third: str) -> None:
    assert italian.imperfect(infinitive)[2] == third


@pytest.mark.parametrize(("lemma", "with_essere"), [("andare", True), ("svegliarsi", True), ("mangiare", False)])
def test_auxiliaries(lemma: str, with_essere: bool) -> None:
    assert italian.conjugate(lemma).with_essere is with_essere


@pytest.mark.parametrize(
    ("noun", "plural"),
    [
        ("cat", "cats"),
        ("watch", "watches"),
        ("bus", "buses"),
        ("city", "cities"),
        ("key", "keys"),
        ("child", "children"),
        ("woman", "women"),
        ("wolf", "wolves"),
        ("tomato", "tomatoes"),
        ("mouse", "mice"),
    ],
)
def test_english_plurals(noun: str, plural: str) -> None:
    assert english.english_plural(noun) == plural


@pytest.mark.parametrize(
    ("lemma", "forms"),
    [
        ("eat", "eat eats eating ate eaten"),
        ("watch", "watch watches watching watched watched"),
        ("study", "study studies studying studied studied"),
        ("play", "play plays playing played played"),
        ("run", "run runs running ran run"),
        ("swim", "swim swims swimming swam swum"),
        ("forget", "forget forgets forgetting forgot forgotten"),
        ("travel", "travel travels traveling traveled traveled"),
        ("write", "write writes writing wrote written"),
        ("see", "see sees seeing saw seen"),
        ("open", "open opens opening opened opened"),
        ("visit", "visit visits visiting visited visited"),
        ("have", "have has having had had"),
        ("go", "go goes going went gone"),
    ],
)
def test_english_verbs(lemma: str, forms: str) -> None:
    assert english.verb_forms(lemma)[:5] == tuple(forms.split())


def test_particles_stay_apart() -> None:
    assert english.verb_forms("look for").particles == ("for",)
    assert english.verb_forms("look for").third == "looks"


@pytest.mark.parametrize(
    ("following", "article"),
    [("cat", "a"), ("apple", "an"), ("hour", "an"), ("honest", "an"), ("university", "a"), ("useful", "a"),
     ("Italian", "an"), ("umbrella", "an"), ("ugly", "an"), ("house", "a")],
)  # fmt: skip
def test_a_and_an(following: str, article: str) -> None:
    assert english.english_indefinite(following) == article


@pytest.mark.parametrize(
    ("adjective", "comparative"),
    [("tall", "taller"), ("big", "bigger"), ("happy", "happier"), ("nice", "nicer"), ("good", "better"),
     ("famous", "more famous"), ("tired", "more tired"), ("interesting", "more interesting"), ("shy", "shyer"),
     ("strange", "stranger")],
)  # fmt: skip
def test_comparatives(adjective: str, comparative: str) -> None:
    assert " ".join(english.comparative(adjective)) == comparative
