"""python -m attnworks.hf.coverage [--types a,b] [--jobs 2] [--out FILE] [--resume FILE] [--page FILE]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from attnworks.hf.coverage.page import page, summary
from attnworks.hf.coverage.sweep import Row, read_rows, sweep, write_rows
from attnworks.hf.tiny import text_model_types


def _main() -> None:
    asked = _asked()
    file: Path = asked.resume or asked.out
    rows = read_rows(file) if asked.resume else {}
    types = asked.types.split(",") if asked.types else text_model_types()
    todo = [] if asked.only_page else [name for name in types if name not in rows]

    def done(row: Row) -> None:
        rows[row["type"]] = row
        write_rows(file, rows)
        outcomes = ", ".join(f"{verb} {found['outcome']}" for verb, found in row.get("verbs", {}).items())
        _say(f"{len(rows)}: {row['type']}: {row.get('reason') or outcomes}")

    sweep(todo, jobs=asked.jobs, done=done)
    if asked.page is not None:
        asked.page.write_text(page(rows))
    _say(summary(rows))


def _asked() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m attnworks.hf.coverage", description="Try every verb on every type."
    )
    parser.add_argument("--types", help="model types, with commas between them; all that take token ids by default")
    parser.add_argument("--jobs", type=int, default=1, help="types that are tried at the same time")
    parser.add_argument("--out", type=Path, default=Path("coverage.json"), help="file for the results")
    parser.add_argument("--resume", type=Path, help="file with results, to which those of missing types are added")
    parser.add_argument("--page", type=Path, help="file for the table, such as docs/families.md")
    parser.add_argument("--only-page", action="store_true", help="with --resume: try nothing, only write the table")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main()
