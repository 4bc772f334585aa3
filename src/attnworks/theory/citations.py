"""Where the code of the package cites a claim: the way from a row of the table to what implements it."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

ID = re.compile(r"\b(?:(S[0-4]\.)(\d+)(?:-(?:S[0-4]\.)?(\d+))?|(D)(\d+)(?:-D?(\d+))?)\b")


@cache
def citations() -> dict[str, tuple[str, ...]]:
    """Id -> the files of the package that cite it, outside this room and that of commands. S4.20-S4.23 cites four."""
    home = Path(__file__).parents[1]
    found: dict[str, list[str]] = defaultdict(list)
    for file in sorted(home.rglob("*.py")):
        name = file.relative_to(home).as_posix()
        if name.startswith(("claims/", "cli/")):
            continue
        for id in cited(file.read_text(encoding="utf-8")):
            found[id].append(name)
    return {id: tuple(names) for id, names in found.items()}


def cited(text: str) -> list[str]:
    """The ids in a text, each once.

    >>> cited("Source: S4.20-S4.22, D6.")
    ['D6', 'S4.20', 'S4.21', 'S4.22']
    """
    ids: set[str] = set()
    for book, first, last, derived, own_first, own_last in ID.findall(text):
        low, high = int(first or own_first), int(last or own_last or first or own_first)
        ids |= {f"{book or derived}{number}" for number in range(low, high + 1)}
    return sorted(ids)
