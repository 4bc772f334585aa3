"""`text:FILE_SRC,FILE_TGT`: line n of the second file translates line n of the first. UTF-8, gzipped if named .gz.

Lines that are blank in both files are skipped. A line that is blank in one file, has a NUL byte or is too long is left
out and reported by number. The files must have the same number of lines.

`tsv:FILE` or `tsv:FILE.gz`: one pair per line, source TAB target, further columns ignored, UTF-8.

Blank lines are skipped. Lines without a tab, with an empty side, with a NUL byte or too long are left out and reported
by number.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from attnworks.core.display import counted
from attnworks.core.errors import UsageError
from attnworks.text.corpora import CORPORA, split_by_source
from attnworks.text.passages import MAX_LINE_BYTES, Passage, ReadTally, numbered_lines

_ENDED = (0, "")


@CORPORA.register("text")
@split_by_source("line")
def _text(argument: str, tally: ReadTally) -> Iterator[Passage]:
    files = [Path(name.strip()).expanduser() for name in argument.split(",") if name.strip()]
    if len(files) != 2:
        got = counted(len(files), "file") if files else "no files"
        raise UsageError(f"corpus 'text:{argument}'", "text:FILE_SRC,FILE_TGT", got, "name two files")
    counts = [0, 0]
    for lines in zip_longest(*map(numbered_lines, files), fillvalue=_ENDED):
        counts = [number or count for (number, _), count in zip(lines, counts, strict=True)]
        (number, source), (_, target) = lines
        if source is None or target is None:
            tally.leave_out(f"more than {MAX_LINE_BYTES:,} bytes", number)
        elif (source.strip() or target.strip()) and (pair := tally.pair(source, target, number)):
            yield pair
    if counts[0] != counts[1]:
        asked, got = f"{files[0]} and {files[1]}", f"{counts[0]:,} and {counts[1]:,}"
        raise UsageError(asked, "the same number of lines", got, "align them")


@CORPORA.register("tsv")
@split_by_source("line")
def _tsv(argument: str, tally: ReadTally) -> Iterator[Passage]:
    if not argument:
        raise UsageError("corpus 'tsv:'", "tsv:FILE", "no file", "name a file of lines: source TAB target")
    for number, line in numbered_lines(Path(argument).expanduser()):
        if line is None:
            tally.leave_out(f"more than {MAX_LINE_BYTES:,} bytes", number)
        elif "\t" in line:
            source, target = line.split("\t", 2)[:2]
            if pair := tally.pair(source, target, number):
                yield pair
        elif line.strip():
            tally.leave_out("no tab", number)
