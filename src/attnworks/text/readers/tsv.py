"""`tsv:FILE` or `tsv:FILE.gz`: one pair per line, source TAB target, further columns ignored, UTF-8.

Blank lines are skipped; lines without a tab, with an empty side, with a NUL byte or far too long are left out and
reported by number.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from attnworks.core.errors import UsageError
from attnworks.text.lines import LONGEST_LINE, numbered_lines
from attnworks.text.pair import Pair
from attnworks.text.readers.contract import CORPORA
from attnworks.text.readers.splitting import split_by_source
from attnworks.text.report import Tally


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
