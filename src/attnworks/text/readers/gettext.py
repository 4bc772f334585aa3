"""`gettext:DIR`: the Italian translations of programs, from the .mo catalogs in DIR/it/LC_MESSAGES.

Without DIR, /usr/share/locale. English message -> Italian message, by these rules:
- headers and plural forms are not read; a context before the message is dropped;
- messages of several lines, and messages without a letter outside format directives (`%s: %d`), are left out;
- a menu mnemonic (`_Open`, `&Open`) is dropped when the English has one before a word and the Italian one in a word;
- of messages with the same English, the first in the order of file names counts.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from gettext import GNUTranslations
from pathlib import Path

from attnworks.core.errors import FolderError
from attnworks.text.corpora import CORPORA, split_by_source
from attnworks.text.passages import Passage, ReadTally

DEFAULT_FOLDER = "/usr/share/locale"

_DIRECTIVE = re.compile(r"%(?:\d+\$)?(?:\([^)]*\))?[-+#0-9.* ]*(?:hh|ll|[hlzjtL])?[a-zA-Z%]|\{[^}]*\}")
_MALFORMED = (OSError, ValueError, LookupError, TypeError, OverflowError, RecursionError, struct.error)
_MARK_BEFORE_WORD = {mark: re.compile(rf"(?<!\S){mark}(?=[^\W_])") for mark in "_&"}
_MARK_BEFORE_LETTER = {mark: re.compile(rf"{mark}(?=[^\W_])") for mark in "_&"}


@CORPORA.register("gettext")
@split_by_source("entry")
def _catalogs(argument: str, tally: ReadTally) -> Iterator[Passage]:
    folder = Path(argument or DEFAULT_FOLDER).expanduser()
    files = sorted(file for file in folder.glob("it/LC_MESSAGES/*.mo") if file.is_file())
    if not files:
        expected = f"catalogs {folder}/it/LC_MESSAGES/*.mo"
        raise FolderError(f"corpus 'gettext:{argument}'", expected, "none", "name their folder")
    seen: set[str] = set()
    for file in files:
        for english, italian in _messages(file, tally):
            source, target = without_mnemonics(english.strip(), italian.strip())
            if "\n" in source or "\n" in target:
                tally.leave_out("several lines")
            elif not has_letters(source):
                tally.leave_out("no words")
            elif source in seen:
                tally.leave_out("repeated")
            elif pair := tally.pair(source, target):
                seen.add(source)
                yield pair


def without_mnemonics(source: str, target: str) -> tuple[str, str]:
    """Both texts without their menu mnemonic, if each has exactly one of the same kind."""
    for mark, before_word in _MARK_BEFORE_WORD.items():
        before_letter = _MARK_BEFORE_LETTER[mark]
        if len(before_word.findall(source)) == len(before_letter.findall(source)) == 1 == target.count(mark):
            return before_word.sub("", source), before_letter.sub("", target)
    return source, target


def has_letters(text: str) -> bool:
    """Whether the text has a letter outside format directives."""
    return any(map(str.isalpha, _DIRECTIVE.sub("", text)))


def _messages(file: Path, tally: ReadTally) -> Iterator[tuple[str, str]]:
    """(message, translation) of a catalog, without its header and plurals; a malformed catalog is counted."""
    try:
        with file.open("rb") as stream:
            entries = vars(GNUTranslations(stream))["_catalog"]
    except _MALFORMED:
        tally.leave_out(f"malformed catalog {file.name}")
        return
    for message, translation in entries.items():
        if isinstance(message, str) and message:
            yield message.rpartition("\x04")[2], translation
