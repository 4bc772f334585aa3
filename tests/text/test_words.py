"""Words: the documented rule, case by case, and its laws."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnworks.text import grammar
from attnworks.text.words import JOINER, cleaned, plain, spelled, words, written

CASES = {
    "": "",
    " \t\n ": "",
    "Ciao, mondo!": "Ciao , mondo !",
    "L'amica dell'avvocato c'è.": "L' amica dell' avvocato c' è .",
    "l'hotel dell'800, vent'anni": "l' hotel dell' 800 , vent' anni",
    "l’amica dell’Étoile": "l' amica dell' Étoile",
    "l' amica": "l' amica",
    "un po' d'acqua": "un po' d' acqua",
    "Va' via! Sta' zitto.": "Va' via ! Sta' zitto .",
    "I don't know, o'clock": "I don't know , o'clock",
    "We'll see; you're he'd I've": "We'll see ; you're he'd I've",
    "Maria's cat, it's TOM'S.": "Maria 's cat , it 's TOM 'S .",
    "Maria 's cat": "Maria 's cat",
    "ma'am O'Hara O'Connor ne'er rock'n'roll": "ma'am O'Hara O'Connor ne'er rock'n'roll",
    "my mother-in-law": "my mother-in-law",
    "wait - what -- a- -b": "wait - what -- a - - b",
    "Well... what?! No!!": "Well ... what ? ! No ! !",
    "3.14, 1,000 and 10:30.": "3.14 , 1,000 and 10:30 .",
    "15% di 20€": "15 % di 20 €",
    "«Sì», “no” (forse)": "« Sì » , “ no ” ( forse )",
    "'ciao' and 'cat' is 's'": "' ciao ' and ' cat ' is ' s '",
    "the boys' books": "the boys ' books",
    "snake_case x86_64": "snake_case x86_64",
    "perche\u0301": "perché",
    "soft\u00adhyphen zero\u200bwidth \ufeffmark": "softhyphen zerowidth mark",
    "nul\0bell\x07next\x85line": "nul bell next line",
    "a\u00a0b\u2003c": "a b c",
    "Привет, мир! Γειά σου": "Привет , мир ! Γειά σου",
    "naïve 👍🏽": "naïve 👍 🏽",
}


@pytest.mark.parametrize("text", CASES)
def test_a_text_becomes_its_words(text: str) -> None:
    assert words(text) == tuple(CASES[text].split())


def test_the_words_of_the_embedded_corpus_are_found_again() -> None:
    for pair in grammar.pairs(100):
        assert words(" ".join(pair.words[0])) == pair.words[0]
        assert words(" ".join(pair.words[1])) == pair.words[1]


TEXTS = st.text() | st.text(st.sampled_from("aehlsStcpodi'’-. ,:19_\u0301é\"\u00ad"), max_size=20)


@given(TEXTS)
def test_joined_words_are_found_again(text: str) -> None:
    assert words(" ".join(words(text))) == words(text)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126)))
def test_only_white_space_is_lost(text: str) -> None:
    assert "".join(words(text)) == re.sub(r"\s", "", text)


@given(TEXTS)
def test_no_word_is_empty_or_holds_white_space(text: str) -> None:
    assert all(word and not re.search(r"\s", word) for word in words(text))


def test_equal_words_are_one_object() -> None:
    first, second = words("dell'abbondanza"), words("Dell'abbondanza")
    assert first[1] is second[1]


@pytest.mark.parametrize("piece", ["a'", "l'a", "-", "'", "a-", "1.", "'s", "\u0301", "l' a"])
def test_long_unusual_texts_take_no_long_time(piece: str) -> None:
    assert words(piece * 20_000)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Maria's l'amica (di Luca).", "Maria ￭'s l'￭ amica (￭ di Luca ￭) ￭."),
        ("«Sì», 3.14!", "«￭ Sì ￭» ￭, 3.14 ￭!"),
        ("La sedia è nuova .", "La sedia è nuova ."),
        ("x￭y", "x ￭■￭ y"),
    ],
)
def test_joiners_stand_where_a_text_has_no_blank(text: str, expected: str) -> None:
    assert spelled(text) == tuple(expected.split())


@given(TEXTS)
def test_spelled_words_give_back_the_text(text: str) -> None:
    assert written(spelled(text)) == cleaned(text)
    assert plain(spelled(text)) == words(text)


def test_the_embedded_corpus_is_written_as_people_do() -> None:
    """Its words have blanks between them; the same words are found in what people write, in the same places."""
    seen: set[str] = set()
    for pair in grammar.pairs(300):
        for side in (pair.source, pair.target):
            assert side is not None and side.words is not None
            assert plain(side.spelled) == side.words and spelled(side.written) == side.spelled
            assert " ." not in side.written and "' " not in side.written
            seen |= {word for word in side.spelled if JOINER in word}
    assert {"￭.", "￭,", "￭?", "￭'s", "l'￭"} <= seen
