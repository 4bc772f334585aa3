"""Text -> words: the tokens of every corpus that comes from files. `written(spelled(text))` is the text again.

The rule, for alphabetic scripts:
1. Text is taken in Unicode form NFC, with ’ written as ' and without invisible and control characters.
2. White space separates. A sign (anything but letters, digits, _ and accents) is a word of its own; a run of dots or of
   hyphens is one: `Well...` is `Well` `...`.
3. Signs inside a word stay: hyphens and apostrophes between letters (`mother-in-law`, `don't`, `o'clock`), and points,
   commas and colons between digits (`3.14`, `1,000`, `10:30`).
4. An Italian elision ends after its apostrophe: `l'amica` is `l'` `amica`, `dell'800` is `dell'` `800`. An elision is a
   consonant and an apostrophe before a vowel, an h or a digit, so that `ma'am` and `O'Hara` are whole.
5. The English `'s` is a word of its own (`Maria` `'s`), as in the embedded corpus.
6. A last apostrophe is a sign, save in the Italian `po'`, `mo'`, `be'`, `va'`, `fa'`, `da'`, `di'`, `sta'`.

Words that were joined by blanks are found again: `words(" ".join(words(text))) == words(text)`.

`spelled` has the same words and the spacing: a joiner ￭ (U+FFED) in a word stands where the text has no blank, as in
the Tokenizer of OpenNMT. `It's l'amica.` is `It` `￭'s` `l'￭` `amica` `￭.`. What a model writes in such words is joined
without rules of a language, and signs keep the spacing that they had in training.

>>> written(spelled("It's l'amica (di Luca)."))
"It's l'amica (di Luca)."
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate
from sys import intern
from unicodedata import normalize

_ACCENTS = r"\u0300-\u036f"
_LETTER = rf"[\w{_ACCENTS}]"
_VOWELS = "aeiouàáâãäåæèéêëìíîïòóôõöøœùúûü"
_AFTER_CONSONANT_AND_APOSTROPHE = rf"(?<=[^\W\d_{_VOWELS}{_VOWELS.upper()}]')"
_VOWEL_H_OR_DIGIT = rf"[{_VOWELS}{_VOWELS.upper()}hH\d]"
_POSSESSIVE = rf"'[sS](?!{_LETTER})"
_INNER_APOSTROPHE = rf"(?!{_POSSESSIVE})'(?:(?!{_VOWEL_H_OR_DIGIT})|(?!{_AFTER_CONSONANT_AND_APOSTROPHE}))"

_PLAIN_WORD = rf"[^\W\d]\w*+(?![-'{_ACCENTS}])"
_PLAIN_SIGN = rf"[^\w\s'.{_ACCENTS}-]|\.(?!\.)"
_NUMBER = r"\d+(?:[.,:]\d+)++"
_TRUNCATED = rf"(?:[Pp]o|[Mm]o|[Bb]e|[Vv]a|[Ff]a|[Dd]a|[Dd]i|[Ss]ta)'(?!{_LETTER})"
_WHOLE = rf"{_LETTER}++(?:(?:-|{_INNER_APOSTROPHE}){_LETTER}++)*+"
_ELIDED = rf"{_WHOLE}'{_AFTER_CONSONANT_AND_APOSTROPHE}(?={_VOWEL_H_OR_DIGIT})"
_ELIDED_BEFORE_BLANK = rf"{_WHOLE}'{_AFTER_CONSONANT_AND_APOSTROPHE}(?= {_VOWEL_H_OR_DIGIT})"

# The plain cases come first because they are nearly all; the others would give them the same words, more slowly.
_WORD = re.compile(
    rf"(?=\S)(?:{_PLAIN_WORD}|{_PLAIN_SIGN}|{_NUMBER}|(?<!')(?:{_TRUNCATED}|{_ELIDED_BEFORE_BLANK})"
    rf"|{_ELIDED}|{_WHOLE}|(?<={_LETTER}){_POSSESSIVE}|(?<!\S)'[sS](?!\S)|\.\.+|--+|['-])"
)
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060\ufeff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


JOINER, IN_ITS_PLACE = "￭", "■"
"""The mark of a missing blank, and what a joiner in a text becomes."""


def cleaned(text: str) -> str:
    """The text as its words spell it: NFC, plain apostrophes, no invisible and no control characters, single blanks."""
    if not text.isascii():
        text = normalize("NFC", _INVISIBLE.sub("", text)).replace("’", "'").replace(JOINER, IN_ITS_PLACE)
    if not text.isprintable():
        text = _CONTROL.sub(" ", text)
    return " ".join(text.split())


def words(text: str) -> tuple[str, ...]:
    """The words and signs of a text. Equal words are one object in memory, so that large corpora stay small."""
    return tuple(map(intern, _WORD.findall(cleaned(text))))


def spelled(text: str) -> tuple[str, ...]:
    """The words of a text with joiners where it has no blank between two of them.

    The joiner is on the side of the sign, or of the second word if neither is a sign.
    """
    text = cleaned(text)
    parts: list[str] = []
    end = -1
    for found in _WORD.finditer(text):
        word = found[0]
        if found.start() == end and parts:
            if _is_letter(word[0]) and not _is_letter(parts[-1][-1]):
                parts[-1] += JOINER
            else:
                word = JOINER + word
        parts.append(word)
        end = found.end()
    return tuple(map(intern, parts))


def written(spelled: Sequence[str]) -> str:
    """The text of words with joiners; without joiners they are separated by blanks."""
    text = " ".join(spelled)
    if JOINER not in text:
        return text
    return text.replace(f" {JOINER}", "").replace(f"{JOINER} ", "").replace(JOINER, "")


def plain(spelled: Sequence[str]) -> tuple[str, ...]:
    """The words without their joiners."""
    return tuple(word.replace(JOINER, "") for word in spelled)


def without_joiners(text: str, spans: list[tuple[int, int]]) -> tuple[str, list[tuple[int, int]]]:
    """The text without its joiners, and where these spans are in it."""
    if JOINER not in text:
        return text, spans
    before = list(accumulate((character == JOINER for character in text), initial=0))
    return text.replace(JOINER, ""), [(start - before[start], end - before[end]) for start, end in spans]


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "_"
