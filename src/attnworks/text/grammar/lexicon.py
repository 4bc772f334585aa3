"""The lemmas of the grammar, in two languages, ranked by frequency inside each kind.

The tables are plain text: entries are separated by commas and listed from the most to the least frequent.
A gender follows the Italian noun as `.m` or `.f` where the ending does not show it. `a/b` gives the masculine and
the feminine of a noun whose English side has no gender. An underscore stands for a space, `*` marks a mass noun, and
`^` an adjective that precedes its Italian noun. Places have an English and an Italian preposition, with a hyphen where
Italian uses no article (`in cucina`). Verbs have the kind of their objects; `s` marks states (no progressive, Italian
imperfect in the past), `n` other verbs without progressive.
"""

from __future__ import annotations

from attnworks.text.grammar.entries import (
    Adjective,
    Choice,
    Noun,
    Verb,
    ranked,
    read_adjective,
    read_gender,
    read_noun,
    read_proper,
    read_verb,
    split_entries,
)

NAMES = {
    "m": "Luca, Marco, Paolo, Andrea, Pietro, Matteo, Stefano, Davide, Enrico, Franco, Carlo, Giorgio, Ivan, Ugo",
    "f": "Maria, Anna, Giulia, Sara, Elena, Chiara, Laura, Francesca, Marta, Lucia, Silvia, Irene, Agnese, Zoe",
}

NOUNS = {
    "person": """
        friend amico/amica, teacher insegnante.m/insegnante.f, boy ragazzo, girl ragazza,
        student studente.m/studentessa, woman donna, man uomo, doctor dottore.m/dottoressa, child bambino/bambina,
        neighbor vicino/vicina, waiter cameriere.m, singer cantante.m/cantante.f, cook cuoco/cuoca,
        tourist turista.m/turista.f, lady signora, writer scrittore.m/scrittrice.f, actress attrice.f,
        nurse infermiere.m/infermiera, actor attore.m, colleague collega.m/collega.f, painter pittore.m/pittrice.f,
        lawyer avvocato/avvocata, queen regina, king re.m, psychologist psicologo/psicologa,
        scientist scienziato/scienziata""",
    "kin": """
        mother madre.f, brother fratello, sister sorella, father padre.m, son figlio, daughter figlia,
        grandmother nonna, grandfather nonno, wife moglie.f, husband marito, uncle zio, cousin cugino/cugina,
        aunt zia""",
    "animal": """
        dog cane.m, cat gatto, horse cavallo, bird uccello, mouse topo, rabbit coniglio, cow mucca, duck anatra,
        wolf lupo, monkey scimmia, butterfly farfalla, elephant elefante.m, squirrel scoiattolo, eagle aquila,
        goose oca, zebra zebra""",
    "food": """
        apple mela, cake torta, egg uovo, sandwich panino, orange arancia, pizza pizza, tomato pomodoro,
        potato patata, peach pesca, strawberry fragola, pear pera, cookie biscotto, mushroom fungo, onion cipolla,
        lemon limone.m, cherry ciliegia, fig fico, pineapple ananas.m""",
    "dish": """
        bread pane.m, cheese formaggio, meat carne.f, fish pesce.m, soup zuppa, rice riso, salad insalata,
        honey miele.m, sugar zucchero, butter burro, jam marmellata""",
    "drink": "water acqua, coffee caffè.m, wine vino, milk latte.m, tea tè.m, beer birra, juice succo",
    "text": """
        book libro, letter lettera, story storia, newspaper giornale.m, novel romanzo, message messaggio,
        article articolo, poem poesia, magazine rivista, diary diario""",
    "vehicle": """
        car macchina, bicycle bicicletta, truck camion.m, bus autobus.m, boat barca, motorcycle moto.f,
        tractor trattore.m""",
    "ware": """
        key chiave.f, phone telefono, picture quadro, bag borsa, pen penna, flower fiore.m, gift regalo,
        watch orologio, umbrella ombrello, computer computer.m, glass bicchiere.m, box scatola, bottle bottiglia,
        photo foto.f, backpack zaino, guitar chitarra, toy giocattolo, suitcase valigia, knife coltello, cup tazza,
        plate piatto, candle candela, map mappa, spoon cucchiaio, lighter accendino""",
    "furniture": """
        chair sedia, table tavolo, lamp lampada, bed letto, mirror specchio, sofa divano, desk scrivania,
        shelf scaffale.m, wardrobe armadio, carpet tappeto, pillow cuscino, armchair poltrona""",
    "clothes": """
        shirt camicia, hat cappello, dress vestito, coat cappotto, jacket giacca, shoe scarpa, skirt gonna,
        scarf sciarpa, sweater maglione.m, glove guanto, boot stivale.m, apron grembiule.m""",
    "opening": "door porta, window finestra, drawer cassetto, gate cancello, safe cassaforte.f",
    "show": "movie film.m, game partita, concert concerto, show spettacolo",
    "sound": "song canzone.f, music* musica, radio radio.f",
}

PLACES = """
    garden giardino in in-, park parco in in, kitchen cucina in in-, station stazione.f at a,
    library biblioteca in in-, restaurant ristorante.m at a, beach spiaggia on su, office ufficio in in-,
    city città.f in in-, museum museo at a, hotel albergo in in, market mercato at a, hospital ospedale.m in in,
    square piazza in in-, theater teatro at a, shop negozio in in, forest bosco in in, village paese.m in in,
    zoo zoo.m at a, church chiesa in in-, airport aeroporto at a, castle castello in in, island isola on su,
    stadium stadio at a, bank banca at in-, pool piscina in in-, gym palestra in in-, university università.f at a,
    bridge ponte.m on su, farm fattoria on in, lake lago at a"""

CITIES = """
    Rome Roma, Milan Milano, Paris Parigi, London Londra, Naples Napoli, Florence Firenze, Venice Venezia,
    Turin Torino, Madrid Madrid, Berlin Berlino, Athens Atene, Lisbon Lisbona, Vienna Vienna, Prague Praga"""
COUNTRIES = """
    Spain Spagna, Italy Italia, France Francia, Germany Germania, Portugal Portogallo, England Inghilterra,
    Greece Grecia, Japan Giappone.m, China Cina, Canada Canada.m, Mexico Messico, Egypt Egitto, Ireland Irlanda,
    Sweden Svezia, Brazil Brasile.m, Scotland Scozia"""

ADJECTIVES = {
    "person": """
        happy felice, tired stanco, kind gentile, young ^giovane, good ^buono, tall alto, nice simpatico,
        old ^vecchio, beautiful ^bello, sad triste, sick malato, intelligent intelligente, famous famoso,
        angry arrabbiato, rich ricco, Italian italiano, busy occupato, honest onesto, strong forte,
        worried preoccupato, Spanish spagnolo, shy timido, German tedesco, lazy pigro, elegant elegante,
        generous generoso, optimistic ottimista, French francese""",
    "animal": """
        small ^piccolo, black nero, big ^grande, white bianco, young ^giovane, beautiful ^bello, gray grigio,
        old ^vecchio, tired stanco, strange strano, fast veloce, intelligent intelligente, calm calmo,
        dangerous pericoloso""",
    "thing": """
        new ^nuovo, red rosso, beautiful ^bello, big ^grande, old ^vecchio, white bianco, small ^piccolo, black nero,
        expensive costoso, green verde, blue blu, heavy pesante, clean pulito, dirty sporco, elegant elegante,
        strange strano, yellow giallo, modern moderno, ancient antico, Italian italiano, useful utile, ugly ^brutto,
        French francese, broken rotto, gray grigio""",
    "food": """
        good ^buono, fresh fresco, delicious delizioso, big ^grande, sweet dolce, small ^piccolo, hot caldo,
        cold freddo, excellent ^ottimo, ripe maturo, bad cattivo, expensive costoso""",
    "dish": """
        good ^buono, fresh fresco, hot caldo, delicious delizioso, cold freddo, sweet dolce, excellent ^ottimo,
        bad cattivo, Italian italiano, expensive costoso""",
    "text": """
        new ^nuovo, interesting interessante, long ^lungo, beautiful ^bello, boring noioso, short ^breve, sad triste,
        strange strano, difficult difficile, easy facile, famous famoso, Italian italiano, German tedesco,
        useful utile""",
    "place": """
        big ^grande, beautiful ^bello, small ^piccolo, new ^nuovo, old ^vecchio, quiet tranquillo, ancient antico,
        famous famoso, clean pulito, crowded affollato, modern moderno, empty vuoto""",
    "site": """
        beautiful ^bello, big ^grande, quiet tranquillo, ancient antico, famous famoso, modern moderno,
        small ^piccolo, crowded affollato, strange strano, clean pulito""",
}
ADJECTIVES_OF_KINDS = {
    "person": "person", "kin": "person", "name": "person", "animal": "animal", "food": "food", "dish": "dish",
    "drink": "dish", "text": "text", "show": "text", "sound": "text", "vehicle": "thing", "ware": "thing",
    "furniture": "thing", "clothes": "thing", "opening": "thing", "place": "place", "city": "site",
    "country": "site",
}  # fmt: skip
STATES = "hungry fame.f, thirsty sete.f, cold freddo, sleepy sonno, right ragione.f, afraid paura, warm caldo"

OBJECT_GROUPS = {
    "thing": ("ware", "furniture", "clothes"),
    "belonging": ("ware", "clothes"),
    "anything": ("ware", "furniture", "clothes", "vehicle", "text"),
    "meal": ("food", "dish"),
    "human": ("name", "person", "kin"),
    "being": ("name", "person", "kin", "animal"),
    "visible": ("name", "person", "animal", "ware", "vehicle", "show"),
    "pleasant": ("food", "dish", "drink", "text", "show", "sound", "ware", "clothes", "city", "country", "animal"),
    "destination": ("place", "city", "country"),
    "washable": ("clothes", "vehicle", "animal"),
    "audible": ("sound", "name", "person", "kin"),
}
"""Kinds of nouns that verbs select together."""

VERBS = {
    "transitive": """
        eat mangiare meal, read leggere text, buy comprare anything, see vedere visible n, drink bere drink,
        love amare being s, drive guidare vehicle, write scrivere text, find trovare belonging n,
        meet incontrare human, have avere anything s, open aprire opening, help aiutare human, look_for cercare being,
        call chiamare human, cook cucinare meal, know conoscere human s, sell vendere anything, watch guardare show,
        close chiudere opening, wash lavare washable, want volere thing s, lose perdere belonging n,
        wait_for aspettare human, take prendere ware, listen_to ascoltare audible, clean pulire furniture,
        visit visitare destination, wear indossare clothes, invite invitare human, forget dimenticare belonging n,
        choose scegliere anything, break rompere ware n, cut tagliare meal, understand capire human n,
        follow seguire being, translate tradurre text, hide nascondere ware, finish finire text""",
    "addressing": "phone telefonare human, speak_to parlare human, answer rispondere human, smile_at sorridere human",
    "giving": "give dare ware, show mostrare ware, send mandare text, lend prestare ware, offer offrire drink",
    "activity": """
        study studiare, work lavorare, sleep dormire, sing cantare, run correre, play giocare, dance ballare,
        cry piangere, swim nuotare, laugh ridere, walk camminare, travel viaggiare, live vivere s""",
    "motion": "go andare, arrive arrivare n, return tornare, come venire, stay rimanere n",
    "reflexive": """
        wake_up svegliarsi, rest riposarsi, get_up alzarsi, have_fun divertirsi, fall_asleep addormentarsi,
        get_dressed vestirsi, get_angry arrabbiarsi, sit_down sedersi n""",
    "report": """
        say dire n, know sapere s, remember ricordare s, write scrivere n, discover scoprire n, explain spiegare n""",
}
COPULA = read_verb("copula", "be", "essere", "s")
HAVING = read_verb("idiom", "have", "avere", "s")
LIKING = read_verb("liking", "like", "piacere", "n")

CLASSIFYING = frozenset(
    ("red", "white", "black", "green", "blue", "yellow", "gray", "Italian", "Spanish", "German", "French", "modern")
)
"""Adjectives that may follow another one: `a beautiful red chair`."""
UNGRADED = CLASSIFYING - {"modern"} | {"broken", "excellent", "delicious", "sick"}
"""Adjectives without `very` and without comparative."""
PASSING = frozenset(("happy", "tired", "sad", "sick", "angry", "busy", "worried"))
"""Adjectives for a passing state of a person."""

COMMON_RANKS = 4
"""How many verbs of each frame also occur in the future, after modals, and in the first and second person."""

DEGREES = {"very": "molto", "too": "troppo", "so": "così", "really": "davvero"}
NUMBERS = {
    "two": "due", "three": "tre", "four": "quattro", "five": "cinque", "six": "sei", "seven": "sette", "eight": "otto",
    "nine": "nove", "ten": "dieci", "twelve": "dodici", "twenty": "venti", "thirty": "trenta",
}  # fmt: skip
QUANTITIES = {"many": "molto", "few": "poco", "several": "diverso", "too many": "troppo", "how many": "quanto"}
OWNERS = {"my": "mio", "your": "tuo", "his": "suo", "her": "suo", "its": "suo", "our": "nostro", "their": "loro"}
FREQUENCIES = {
    "always": "sempre", "often": "spesso", "never": "mai", "already": "già", "just": "appena", "still": "ancora",
    "rarely": "raramente", "finally": "finalmente", "sometimes": "talvolta",
}  # fmt: skip
TIMES = {
    "now": "adesso", "today": "oggi", "yesterday": "ieri", "tomorrow": "domani", "every day": "ogni giorno",
    "tonight": "stasera", "every morning": "ogni mattina", "last night": "ieri sera", "every week": "ogni settimana",
    "last week": "la settimana scorsa", "next week": "la settimana prossima", "on Sunday": "domenica",
    "every year": "ogni anno", "soon": "presto", "next year": "l' anno prossimo", "last year": "l' anno scorso",
    "two days ago": "due giorni fa",
}  # fmt: skip
MANNERS = {"well": "bene", "slowly": "lentamente", "a lot": "molto", "quietly": "tranquillamente", "badly": "male"}


def _nouns() -> dict[str, tuple[Noun, ...]]:
    nouns = {kind: tuple(read_noun(kind, *entry) for entry in split_entries(table)) for kind, table in NOUNS.items()}
    nouns["place"] = tuple(read_noun("place", *entry) for entry in split_entries(PLACES))
    nouns["city"] = tuple(read_proper("city", source, target, "f") for source, target in split_entries(CITIES))
    nouns["country"] = tuple(
        read_proper("country", source, *read_gender(target), True) for source, target in split_entries(COUNTRIES)
    )
    men = [read_proper("name", name, name, "m") for name in NAMES["m"].split(", ")]
    women = [read_proper("name", name, name, "f") for name in NAMES["f"].split(", ")]
    nouns["name"] = tuple(name for couple in zip(men, women, strict=True) for name in couple)
    return nouns


def _adjectives() -> dict[str, tuple[Adjective, ...]]:
    known: dict[str, Adjective] = {}
    kinds: dict[str, tuple[Adjective, ...]] = {}
    for kind, table in ADJECTIVES.items():
        entries = [read_adjective(source, target) for source, target in split_entries(table)]
        kinds[kind] = tuple(known.setdefault(entry.english, entry) for entry in entries)
    return kinds


NOUNS_BY_KIND = _nouns()
ADJECTIVES_BY_KIND = _adjectives()
VERBS_BY_FRAME = {
    frame: tuple(read_verb(frame, *entry) for entry in split_entries(table)) for frame, table in VERBS.items()
}

COMMON_VERBS = frozenset(verb for verbs in VERBS_BY_FRAME.values() for verb in verbs[:COMMON_RANKS])

NOUN_CHOICE: dict[str, Choice[Noun]] = {kind: ranked(nouns) for kind, nouns in NOUNS_BY_KIND.items()}
NOUN_CHOICE |= {group: ranked(*(NOUNS_BY_KIND[kind] for kind in kinds)) for group, kinds in OBJECT_GROUPS.items()}
VERB_CHOICE: dict[str, Choice[Verb]] = {frame: ranked(verbs) for frame, verbs in VERBS_BY_FRAME.items()}
ADJECTIVE_CHOICE: dict[str, Choice[Adjective]] = {
    kind: ranked(ADJECTIVES_BY_KIND[family]) for kind, family in ADJECTIVES_OF_KINDS.items()
}
STATE_CHOICE = ranked([read_noun("state", source, target) for source, target in split_entries(STATES)])
