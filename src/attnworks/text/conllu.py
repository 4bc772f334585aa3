"""CoNLL-U -> passages with words and syntactic governors, and parses for passages that have none.

The words are those of the text: a multiword token such as Italian `della` (`1-2`, with the syntactic words `di` and
`la`) is one word, and its governor is that of its topmost syntactic word. Empty nodes (`1.1`) are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from attnworks.core.display import counted
from attnworks.core.errors import UsageError
from attnworks.text.passages import MAX_LINE_BYTES, ROOT, Passage, Text, numbered_lines, without_blanks

CONLLU_COLUMNS = 10
_TEXT = re.compile(r"#\s*text\s*=\s*(.*)")
_IDENTITY = re.compile(r"(\d+)(?:([-.])(\d+))?")


class _Range(NamedTuple):
    """A multiword token and the ids of its first and last syntactic word."""

    first: int
    last: int
    form: str
    line: int


@dataclass
class _Sentence:
    """One sentence as it stands in the file: ids and heads count from 1, and head 0 means none."""

    path: Path
    text: str | None = None
    forms: list[str] = field(default_factory=list)
    heads: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    ranges: list[_Range] = field(default_factory=list)
    empty_nodes: int = 0
    """Empty nodes after the last word."""

    def wrong(self, line: int, expected: str, got: str, remedy: str = "correct the parse") -> UsageError:
        return UsageError(f"read {self.path}, line {line:,}", expected, got, remedy)


def read_parses(path: Path | str) -> list[Passage]:
    """The sentences of a CoNLL-U file, gzipped if named .gz. A malformed one raises a one-line error."""
    path = Path(path).expanduser()
    passages = [_passage(sentence) for sentence in _sentences(path)]
    if not passages:
        raise UsageError(f"read {path}", "parses in CoNLL-U", "no sentence", "choose a file with one word in each line")
    return passages


def attach(passages: Sequence[Passage], parses: Sequence[Passage]) -> tuple[list[Passage], int]:
    """The passages with the words and governors of the first parse of the same text (blanks aside), on either side.

    The number counts passages without a parse of their source; these stay as they are.
    """
    known: dict[str, Text] = {}
    for parse in parses:
        known.setdefault(without_blanks(parse.source.text), parse.source)

    def parsed(side: Text | None) -> Text | None:
        found = known.get(without_blanks(side.text)) if side else None
        return Text(side.text, found.words, found.governors, side.line) if side and found else side

    attached = [Passage(parsed(passage.source) or passage.source, parsed(passage.target)) for passage in passages]
    return attached, sum(without_blanks(passage.source.text) not in known for passage in passages)


def _sentences(path: Path) -> Iterator[_Sentence]:
    sentence = _Sentence(path)
    for number, line in numbered_lines(path):
        if line is None:
            raise sentence.wrong(number, "a parse", f"more than {MAX_LINE_BYTES:,} bytes")
        if line.startswith("#"):
            if found := _TEXT.fullmatch(line):
                sentence.text = found[1].strip() or None
        elif line.strip():
            _read_word(sentence, line, number)
        else:
            if sentence.forms or sentence.ranges:
                yield sentence
            sentence = _Sentence(path)
    if sentence.forms or sentence.ranges:
        yield sentence


def _read_word(sentence: _Sentence, line: str, number: int) -> None:
    columns = line.split("\t")
    if len(columns) != CONLLU_COLUMNS:
        expected, got = f"{CONLLU_COLUMNS} columns with tabs between them", counted(len(columns), "column")
        raise sentence.wrong(number, expected, got, "save the parses as CoNLL-U")
    identity, form, head = columns[0], columns[1], columns[6]
    found = _IDENTITY.fullmatch(identity)
    after = len(sentence.forms) + 1
    if not found:
        raise sentence.wrong(number, "an id such as 1, 1-2 or 1.1", repr(identity))
    first, kind, last = int(found[1]), found[2], int(found[3] or 0)
    if kind == ".":
        sentence.empty_nodes += 1
        _expect(sentence, number, identity, f"{after - 1}.{sentence.empty_nodes}")
        return
    if not form.strip():
        raise sentence.wrong(number, "a word", "none")
    if kind == "-":
        if first != after or last <= first or (sentence.ranges and sentence.ranges[-1].last >= first):
            raise sentence.wrong(number, f"a range that begins at {after}, after every other", f"id {identity!r}")
        sentence.ranges.append(_Range(first, last, form, number))
        return
    _expect(sentence, number, identity, str(after))
    if not (head.isascii() and head.isdigit()):
        raise sentence.wrong(number, "a head that is a number", repr(head), "parse the text before")
    sentence.forms.append(form)
    sentence.heads.append(int(head))
    sentence.lines.append(number)
    sentence.empty_nodes = 0


def _expect(sentence: _Sentence, number: int, identity: str, expected: str) -> None:
    if identity != expected:
        raise sentence.wrong(number, f"id {expected}", f"id {identity}", "number the words of a sentence from 1")


def _passage(sentence: _Sentence) -> Passage:
    count = len(sentence.forms)
    if sentence.ranges and sentence.ranges[-1].last > count:
        first, last, _, line = sentence.ranges[-1]
        raise sentence.wrong(line, f"the words {first} to {last} below it", f"a sentence that ends at word {count}")
    line = sentence.lines[0]
    words, heads = _words_of_the_text(sentence, _depths(sentence))
    text = sentence.text or " ".join(words)
    if without_blanks(text) != without_blanks("".join(words)):
        remedy = "correct or remove the line '# text ='"
        raise sentence.wrong(line, "words that spell the text", f"the text {text!r}", remedy)
    return Passage(Text(text, words, heads, line))


def _depths(sentence: _Sentence) -> list[int]:
    """The number of words between each word and its root."""
    count = len(sentence.heads)
    for head, line in zip(sentence.heads, sentence.lines, strict=True):
        if head > count:
            raise sentence.wrong(line, f"a head from 0 to {count}", str(head))
    if 0 not in sentence.heads:
        raise sentence.wrong(sentence.lines[0], "a word with head 0, the root", "a sentence without one")
    depths: dict[int, int] = {0: -1}
    for word in range(1, count + 1):
        path: dict[int, None] = {}  # from the word up to one whose depth is known
        while word not in depths:
            if word in path:
                line, got = sentence.lines[word - 1], f"word {word} in a circle of heads"
                raise sentence.wrong(line, "heads that lead to the root", got)
            path[word] = None
            word = sentence.heads[word - 1]
        for below, passed in enumerate(reversed(path), 1):
            depths[passed] = depths[word] + below
    return [depths[word] for word in range(1, count + 1)]


def _words_of_the_text(sentence: _Sentence, depths: Sequence[int]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """The words and their governors, from 0. A range takes that of its topmost word, which lies outside of it."""
    ranges = {some.first: (some.last, some.form) for some in sentence.ranges}
    words: list[str] = []
    topmost: list[int] = []
    place = {0: ROOT}
    first = 1
    while first <= len(sentence.forms):
        last, form = ranges.get(first, (first, sentence.forms[first - 1]))
        members = range(first, last + 1)
        place |= dict.fromkeys(members, len(words))
        words.append(form)
        topmost.append(min(members, key=lambda word: depths[word - 1]))
        first = last + 1
    return tuple(words), tuple(place[sentence.heads[word - 1]] for word in topmost)
