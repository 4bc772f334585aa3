"""Files that are part of every page: the script and the style, bundled from web/, and the table of claims."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

SCRIPT, STYLE, CLAIMS = "page.js", "page.css", "claims.json"


@cache
def resource(name: str) -> bytes:
    return files("attnworks.page").joinpath(name).read_bytes()
