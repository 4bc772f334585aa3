"""Lines, corpora or the embedded grammar -> passages: the texts of an examination, with what is known of their words.

>>> passages, report = from_texts(["The cat sleeps.", "", "It dreams."])
>>> passages[1].source.text, passages[1].source.line
('It dreams.', 3)
>>> report.summary()
'2 passages; 1 line left out: empty (line 2)'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attnworks.core.errors import UsageError
from attnworks.text.lines import LONGEST_LINE, Digest, Report, Tally, numbered_lines
from attnworks.text.pair import Pair

ROOT = -1
"""The head of a word that depends on none."""


@dataclass(frozen=True, slots=True)
class Side:
    """A text, the words that spell it (blanks aside) and the position of each word's syntactic head, ROOT for none.

    line    where the text stood in what it was read from, from 1; no part of its equality
    """

    text: str
    words: tuple[str, ...] | None = None
    heads: tuple[int, ...] | None = None
    line: int | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.words is not None and without_blanks(self.text) != without_blanks("".join(self.words)):
            raise self._wrong("words that spell the text", f"{' '.join(self.words)!r}", "give the words of this text")
        if self.heads is None:
            return
        count = len(self.words or ())
        if len(self.heads) != count:
            raise self._wrong(
                "one head for each word", f"{len(self.heads)} heads for {count} words", "give heads with their words"
            )
        for word, head in enumerate(self.heads):
            if not ROOT <= head < count or head == word:
                raise self._wrong(
                    f"heads from {ROOT} (a root) to {count - 1}, none its own",
                    f"head {head} of word {word}",
                    "count words from 0",
                )

    @property
    def name(self) -> str:
        """What errors call it: its line, or else how it begins."""
        return f"line {self.line:,}" if self.line is not None else f"text {_beginning(self.text)!r}"

    def _wrong(self, expected: str, got: str, remedy: str) -> UsageError:
        return UsageError(asked=self.name, expected=expected, got=got, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Passage:
    """One text, with its translation where a model reads two."""

    source: Side
    target: Side | None = None


class PassageReport(Report):
    """A report that counts passages."""

    def summary(self) -> str:
        passages = f"{self.read:,} passage{'' if self.read == 1 else 's'}"
        return f"{passages}; {self.left_out()}" if self.bad else passages


def from_texts(texts: Sequence[str]) -> tuple[list[Passage], PassageReport]:
    """One passage for each text that is not blank; a tab is a blank."""
    tally = Tally("line")
    passages = [
        Passage(Side(text.strip(), line=number))
        for number, text in enumerate(texts, 1)
        if _has_text((text,), tally, number)
    ]
    return passages, _counted(passages, tally, "the texts", "give a line of text")


def from_file(path: Path | str, digest: Digest | None = None) -> tuple[list[Passage], PassageReport]:
    """One passage for each line of a UTF-8 file, or of standard input for -.

    A tab separates source and target, further columns are ignored.

    Either every line has a tab or none has: a model reads one side or two. `digest` is given the bytes of all lines.
    """
    path = Path("/dev/stdin") if str(path) == "-" else Path(path).expanduser()
    tally = Tally("line")
    passages: list[Passage] = []
    for number, line in numbered_lines(path, digest):
        if line is None:
            tally.leave_out(f"more than {LONGEST_LINE:,} bytes", number)
            continue
        columns = line.split("\t")[:2] if line.strip() else [line]
        if _has_text(columns, tally, number):
            passages.append(Passage(*(Side(column.strip(), line=number) for column in columns)))
    _all_or_none(passages, path)
    return passages, _counted(passages, tally, f"read {path}", "choose a file with a line of text")


def from_pair(pair: Pair) -> Passage:
    """Both sides of a pair, with the heads that its truth knows."""
    truth = pair.truth
    return Passage(
        Side(" ".join(pair.source), pair.source, truth and truth.source_heads),
        Side(" ".join(pair.target), pair.target, truth and truth.target_heads),
    )


def without_blanks(text: str) -> str:
    return "".join(text.split())


def _beginning(text: str, letters: int = 40) -> str:
    return text if len(text) <= letters else f"{text[: letters - 1]}…"


def _has_text(columns: Sequence[str], tally: Tally, number: int) -> bool:
    """Whether every column has some text; if not, a reason is counted."""
    filled = [bool(column.strip()) for column in columns]
    if any("\0" in column for column in columns):
        tally.leave_out("NUL byte", number)
        return False
    if not all(filled):
        tally.leave_out("empty side" if any(filled) else "empty", number)
    return all(filled)


def _counted(passages: Sequence[Passage], tally: Tally, asked: str, remedy: str) -> PassageReport:
    told = tally.report()
    if not passages:
        got = told.left_out() if told.bad else "no line at all"
        raise UsageError(asked=asked, expected="a line with text", got=got, remedy=remedy)
    return PassageReport(len(passages), told.bad, told.reasons, told.first_lines, told.unit)


def _all_or_none(passages: Sequence[Passage], path: Path) -> None:
    first = {passage.target is None: passage.source.name for passage in reversed(passages)}
    if len(first) == 2:
        raise UsageError(
            asked=f"read {path}",
            expected="a tab between source and target in every line, or in none",
            got=f"one in {first[False]} and none in {first[True]}",
            remedy="give every line a target, or take the tabs out",
        )


def check_number(passages: int) -> None:
    if passages < 1:
        raise UsageError(
            asked="passages", expected="one or more", got=str(passages), remedy="ask for one passage at least"
        )
