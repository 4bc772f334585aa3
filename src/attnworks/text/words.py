"""Text -> words: the tokens of every corpus that comes from files. `" ".join` is the way back.

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
"""

from __future__ import annotations

import re
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


def words(text: str) -> tuple[str, ...]:
    """The words and signs of a text. Equal words are one object in memory, so that large corpora stay small."""
    if not text.isascii():
        text = normalize("NFC", _INVISIBLE.sub("", text)).replace("’", "'")
    if not text.isprintable():
        text = _CONTROL.sub(" ", text)
    return tuple(map(intern, _WORD.findall(text)))
