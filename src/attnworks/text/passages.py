"""Texts with their words and syntactic governors, passages of one or two texts, and how both are read from lines.

>>> passages, report = from_texts(["The cat sleeps.", "", "It dreams."])
>>> passages[1].source.text, passages[1].source.line
('It dreams.', 3)
>>> report.summary()
'2 passages; 1 line left out: empty (line 2)'
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Protocol, Self

from attnworks.core.display import counted
from attnworks.core.errors import AttnworksError, FolderError, UsageError
from attnworks.text.words import cleaned, plain, written
from attnworks.text.words import spelled as spelled_words
from attnworks.text.words import words as words_of

ROOT = -1
"""The governor of a word that depends on none."""
MAX_LINE_BYTES = 2**20
"""Bytes of the longest line that is read."""
MAX_TEXT_BYTES = 2**32
"""Bytes of the longest text that is read, unpacked: a pipe or a device may have no end."""
MAX_WORDS = 1_000
"""A side with more words than this is not a sentence and is left out."""
LINES_REMEMBERED = 5
"""Line numbers that a report gives for each reason."""

Words = tuple[str, ...]
Links = tuple[tuple[int, int], ...]


class Text:
    """A text, the words that spell it (blanks aside) and the position of each word's syntactic governor.

    governors    ROOT for a word without one
    line         the number of its line in the file it was read from, from 1; equal texts may differ in it
    """

    __slots__ = ("_text", "governors", "line", "words")

    def __init__(
        self, text: str, words: Words | None = None, governors: tuple[int, ...] | None = None, line: int | None = None
    ) -> None:
        self._text: str | None = text
        self.words, self.governors, self.line = words, governors, line
        if words is not None and without_blanks(text) != without_blanks("".join(words)):
            raise self._wrong("words that spell the text", f"{' '.join(words)!r}", "give the words of this text")
        if governors is None:
            return
        number = len(words or ())
        if len(governors) != number:
            got = f"{len(governors)} for {number} words"
            raise self._wrong("one governor for each word", got, "give both or neither")
        for word, governor in enumerate(governors):
            if not ROOT <= governor < number or governor == word:
                expected = f"governors from {ROOT} (a root) to {number - 1}, none its own"
                raise self._wrong(expected, f"governor {governor} of word {word}", "count words from 0")

    @classmethod
    def of_words(cls, words: Words, governors: tuple[int, ...] | None = None, text: str | None = None) -> Self:
        """Words, with blanks between them or in this text. Nothing is checked; `text` may join the words later."""
        made = cls.__new__(cls)
        made._text, made.words, made.governors, made.line = text, words, governors, None
        return made

    @property
    def text(self) -> str:
        return " ".join(self.words or ()) if self._text is None else self._text

    @property
    def spelled(self) -> Words:
        """The words with joiners where the text has no blank between them (`attnworks.text.words`)."""
        if self._text is None:
            return self.words or ()
        spelled = spelled_words(self._text)
        letters = len(without_blanks(self._text))
        kept = self.words is None or sum(map(len, plain(spelled))) == letters
        return spelled if kept else self.words or ()

    @property
    def written(self) -> str:
        """The text as people write it: without blanks before full stops, for instance."""
        return written(self.spelled)

    @property
    def name(self) -> str:
        """The name in error messages: its line, or else its beginning."""
        if self.line is not None:
            return f"line {self.line:,}"
        text = self.text
        return f"text {text if len(text) <= 40 else f'{text[:39]}…'!r}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Text) and self._compared() == other._compared()

    def __hash__(self) -> int:
        return hash(self._compared())

    def __repr__(self) -> str:
        return f"Text({self.text!r}, {self.words}, {self.governors}, {self.line})"

    def _compared(self) -> tuple[str, Words | None, tuple[int, ...] | None]:
        return self.text, self.words, self.governors

    def _wrong(self, expected: str, got: str, remedy: str) -> UsageError:
        return UsageError(self.name, expected, got, remedy)


@dataclass(frozen=True, slots=True)
class Truth:
    """Gold structure of a passage, as positions of words: (source, target) and (pronoun, antecedent) links.

    alignment             many-to-many, sorted
    target_coreference    where the pronoun is overt
    """

    alignment: Links
    source_coreference: Links
    target_coreference: Links


@dataclass(frozen=True, slots=True)
class Passage:
    """One text, its translation where a model reads two, and the gold structure where it is known."""

    source: Text
    target: Text | None = None
    truth: Truth | None = None

    @classmethod
    def of_words(cls, source: Words, target: Words) -> Passage:
        return cls(Text.of_words(source), Text.of_words(target))

    @property
    def words(self) -> tuple[Words, Words]:
        """The words of both sides of a pair of a corpus, punctuation marks being words of their own."""
        assert self.source.words is not None and self.target is not None and self.target.words is not None
        return self.source.words, self.target.words


class Digest(Protocol):
    """A hash that is being computed, such as hashlib.sha256()."""

    def update(self, data: bytes, /) -> None: ...


def numbered_lines(path: Path, digest: Digest | None = None) -> Iterator[tuple[int, str | None]]:
    """(number, text without its line end) of every line; the text of a line over MAX_LINE_BYTES bytes is None.

    A byte order mark and Windows line ends are removed. An unreadable file raises a one-line error. `digest`, such as
    hashlib.sha256(), is updated with every unpacked byte, because a pipe can be read only once.
    """
    for number, offset, line in _raw_lines(path, digest):
        if len(line) > MAX_LINE_BYTES:
            yield number, None
            continue
        try:
            text = line.decode()
        except UnicodeDecodeError as wrong:
            got = f"byte 0x{line[wrong.start]:02x} at offset {offset + wrong.start:,} (line {number:,})"
            raise UsageError(f"read {path}", "UTF-8 text", got, "save the file as UTF-8") from None
        if number == 1:
            text = text.removeprefix("\ufeff")
        yield number, text.rstrip("\r\n")


def _raw_lines(path: Path, digest: Digest | None) -> Iterator[tuple[int, int, bytes]]:
    """(number, offset, bytes) of every line; of an overlong one only its beginning."""
    number = offset = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
            for number in count(1):
                line = stream.readline(MAX_LINE_BYTES + 1)
                if not line:
                    break
                yield number, offset, line
                offset += _counted(path, offset, line, digest)
                while len(line) > MAX_LINE_BYTES and not line.endswith(b"\n"):
                    line = stream.readline(MAX_LINE_BYTES + 1)
                    offset += _counted(path, offset, line, digest)
    except AttnworksError:
        raise
    except FileNotFoundError:
        raise _unreadable(path, "nothing there", "check the name") from None
    except IsADirectoryError:
        raise _unreadable(path, "a folder", "name a file in it") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as wrong:
        raise _unreadable(path, f"a broken gzip file ({wrong})", "make or fetch the file again") from None
    except (OSError, ValueError) as wrong:
        got = wrong.strerror if isinstance(wrong, OSError) and wrong.strerror else str(wrong)
        raise _unreadable(path, got, "choose a file that can be read") from None
    if number == 1:
        raise _unreadable(path, "an empty file", "choose a file with text in it")


def _counted(path: Path, offset: int, data: bytes, digest: Digest | None) -> int:
    """Update the digest with these bytes and return their number; an error if they make the text too long."""
    if digest is not None:
        digest.update(data)
    if offset + len(data) > MAX_TEXT_BYTES:
        expected = f"at most {MAX_TEXT_BYTES:,} bytes of text"
        raise UsageError(f"read {path}", expected, "more", "split the text into several files")
    return len(data)


def _unreadable(path: Path, got: str, remedy: str) -> FolderError:
    return FolderError(f"read {path}", "a text file", got, remedy)


@dataclass(frozen=True)
class ReadReport:
    """How much was usable, and the lines (rows, entries) that were left out.

    read         usable pairs or passages
    bad          number of those left out
    reasons      reason -> number of those left out
    first_lines  reason -> the first line numbers, from 1, where lines are numbered
    unit         what is left out: line, row or entry
    what         what is read: pair or passage
    """

    read: int
    bad: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    first_lines: dict[str, tuple[int, ...]] = field(default_factory=dict)
    unit: str = "line"
    what: str = "pair"

    def summary(self) -> str:
        """One sentence, e.g. `151,089 pairs; 3 lines left out: no tab (lines 7, 19), empty side (line 40)`."""
        read = counted(self.read, self.what)
        return f"{read}; {self.left_out()}" if self.bad else read

    def left_out(self) -> str:
        """The second half of the summary."""
        reasons = ", ".join(f"{reason} ({self._where(reason)})" for reason in self.reasons)
        return f"{counted(self.bad, self.unit)} left out: {reasons}" if self.bad else f"nothing but blank {self.unit}s"

    def of_passages(self, number: int) -> ReadReport:
        """The report of passages that were taken from what was read."""
        return replace(self, read=number, what="passage")

    def _where(self, reason: str) -> str:
        number, numbers = self.reasons[reason], self.first_lines.get(reason, ())
        if not numbers:
            return f"{number:,}"
        more = f" and {number - len(numbers):,} more" if number > len(numbers) else ""
        unit = counted(number, self.unit).partition(" ")[2]
        return f"{unit} {', '.join(map(str, numbers))}{more}"


class ReadTally:
    """Makes passages of texts and counts what is unusable."""

    def __init__(self, unit: str = "line") -> None:
        self._unit = unit
        self._read = 0
        self._reasons: dict[str, int] = {}
        self._first: dict[str, tuple[int, ...]] = {}

    def pair(self, source: str, target: str, number: int | None = None) -> Passage | None:
        """The passage of two texts, or None (and a reason counted) if it is unusable."""
        if "\0" in source or "\0" in target:
            return self.leave_out("NUL byte", number)
        texts = cleaned(source), cleaned(target)
        sides = words_of(texts[0]), words_of(texts[1])
        if not all(sides):
            return self.leave_out("empty side", number)
        if max(map(len, sides)) > MAX_WORDS:
            return self.leave_out(f"more than {MAX_WORDS:,} words", number)
        self._read += 1
        return Passage(Text.of_words(sides[0], text=texts[0]), Text.of_words(sides[1], text=texts[1]))

    def leave_out(self, reason: str, number: int | None = None) -> None:
        """Count something unusable, with its number where it has one."""
        self._reasons[reason] = self._reasons.get(reason, 0) + 1
        first = self._first.get(reason, ())
        if number is not None and len(first) < LINES_REMEMBERED:
            self._first[reason] = (*first, number)

    def report(self) -> ReadReport:
        return ReadReport(self._read, sum(self._reasons.values()), dict(self._reasons), dict(self._first), self._unit)


def from_texts(texts: Sequence[str]) -> tuple[list[Passage], ReadReport]:
    """One passage for each text that is not blank; a tab is a blank."""
    tally = ReadTally("line")
    passages = [
        Passage(Text(text.strip(), line=number))
        for number, text in enumerate(texts, 1)
        if _has_text((text,), tally, number)
    ]
    return passages, _report(passages, tally, "the texts", "give a line of text")


def from_file(path: Path | str, digest: Digest | None = None) -> tuple[list[Passage], ReadReport]:
    """One passage for each line of a UTF-8 file, or of standard input for -.

    A tab separates source and target, further columns are ignored.

    Either every line has a tab or none has: a model reads one side or two. `digest` is updated with all bytes.
    """
    path = Path("/dev/stdin") if str(path) == "-" else Path(path).expanduser()
    tally = ReadTally("line")
    passages: list[Passage] = []
    for number, line in numbered_lines(path, digest):
        if line is None:
            tally.leave_out(f"more than {MAX_LINE_BYTES:,} bytes", number)
            continue
        columns = line.split("\t")[:2] if line.strip() else [line]
        if _has_text(columns, tally, number):
            source, *target = (Text(column.strip(), line=number) for column in columns)
            passages.append(Passage(source, target[0] if target else None))
    first = {passage.target is None: passage.source.name for passage in reversed(passages)}
    if len(first) == 2:
        expected = "a tab between source and target in every line, or in none"
        got = f"one in {first[False]} and none in {first[True]}"
        raise UsageError(f"read {path}", expected, got, "give every line a target, or remove the tabs")
    return passages, _report(passages, tally, f"read {path}", "choose a file with a line of text")


def without_blanks(text: str) -> str:
    return "".join(text.split())


def _has_text(columns: Sequence[str], tally: ReadTally, number: int) -> bool:
    """Whether every column has some text; if not, a reason is counted."""
    filled = [bool(column.strip()) for column in columns]
    if any("\0" in column for column in columns):
        tally.leave_out("NUL byte", number)
        return False
    if not all(filled):
        tally.leave_out("empty side" if any(filled) else "empty", number)
    return all(filled)


def _report(passages: Sequence[Passage], tally: ReadTally, asked: str, remedy: str) -> ReadReport:
    report = tally.report()
    if not passages:
        got = report.left_out() if report.bad else "no line at all"
        raise UsageError(asked, "a line with text", got, remedy)
    return report.of_passages(len(passages))
