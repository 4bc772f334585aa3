"""`text:FILE_SRC,FILE_TGT`: line n of the second file translates line n of the first. UTF-8, gzipped if named .gz.

Lines that are blank in both files are skipped; a line that is blank in one, has a NUL byte or is far too long is left
out and reported by number. The files must have the same number of lines.

`tsv:FILE` or `tsv:FILE.gz`: one pair per line, source TAB target, further columns ignored, UTF-8.

Blank lines are skipped; lines without a tab, with an empty side, with a NUL byte or far too long are left out and
reported by number.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path

from attnworks.core.errors import UsageError
from attnworks.text.lines import LONGEST_LINE, Tally, numbered_lines
from attnworks.text.pair import Pair
from attnworks.text.readers.contract import CORPORA, split_by_source

_ENDED = (0, "")


@CORPORA.register("text")
@split_by_source("line")
def text(argument: str, tally: Tally) -> Iterator[Pair]:
    files = [Path(name.strip()).expanduser() for name in argument.split(",") if name.strip()]
    if len(files) != 2:
        raise UsageError(
            asked=f"corpus 'text:{argument}'",
            expected="text:FILE_SRC,FILE_TGT",
            got=f"{len(files) or 'no'} file{'' if len(files) == 1 else 's'}",
            remedy="name two files with a comma between them",
        )
    counts = [0, 0]
    for lines in zip_longest(*map(numbered_lines, files), fillvalue=_ENDED):
        counts = [number or count for (number, _), count in zip(lines, counts, strict=True)]
        (number, source), (_, target) = lines
        if source is None or target is None:
            tally.leave_out(f"more than {LONGEST_LINE:,} bytes", number)
        elif (source.strip() or target.strip()) and (pair := tally.pair(source, target, number)):
            yield pair
    if counts[0] != counts[1]:
        raise UsageError(
            asked=f"read {files[0]} and {files[1]} side by side",
            expected="the same number of lines",
            got=f"{counts[0]:,} and {counts[1]:,}",
            remedy="align the files line by line",
        )


@CORPORA.register("tsv")
@split_by_source("line")
def tsv(argument: str, tally: Tally) -> Iterator[Pair]:
    if not argument:
        raise UsageError(
            asked="corpus 'tsv:'", expected="tsv:FILE", got="no file", remedy="name a file of lines: source TAB target"
        )
    for number, line in numbered_lines(Path(argument).expanduser()):
        if line is None:
            tally.leave_out(f"more than {LONGEST_LINE:,} bytes", number)
        elif "\t" in line:
            source, target = line.split("\t", 2)[:2]
            if pair := tally.pair(source, target, number):
                yield pair
        elif line.strip():
            tally.leave_out("no tab", number)
