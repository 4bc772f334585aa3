"""A page as one HTML file that needs nothing from elsewhere.

It has one inline script and one style sheet; its Content-Security-Policy allows these two alone, by their SHA-256. All
data are in elements of plain text, in base64, so that no text of a model or a corpus is ever parsed as HTML.
"""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache

from attnworks.page.contents import SCRIPT_FILE, STYLE_FILE, Contents, resource

PAGE_START = b"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="generator" content="attnworks">"""
"""How every page begins, so that only pages are replaced by pages."""
NO_SCRIPT = "A script in this file draws the page. Allow scripts for this file to see it."


def page_html(contents: Contents) -> str:
    """The whole file."""
    script, style = (resource(name).decode() for name in (SCRIPT_FILE, STYLE_FILE))
    title = html.escape(contents.page["title"].encode(errors="replace").decode())
    content_policy = html.escape(policy(live=contents.page["host"] == "live"))
    data = [_data("page", contents.packed), *(_data(f"blob-{name}", blob) for name, blob in contents.blobs.items())]
    return "\n".join(
        (
            PAGE_START.decode(),
            f'<meta http-equiv="Content-Security-Policy" content="{content_policy}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{title}</title>",
            f"<style>{style}</style>",
            "</head>",
            "<body>",
            f"<noscript>{NO_SCRIPT}</noscript>",
            '<div id="app"></div>',
            *data,
            f"<script>{script}</script>",
            "</body>",
            "</html>",
            "",
        )
    )


@cache
def policy(*, live: bool) -> str:
    """The Content-Security-Policy of a page. A live page also sends it as a header."""
    script, style = (_hash(resource(name)) for name in (SCRIPT_FILE, STYLE_FILE))
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src '{script}'",
            f"style-src '{style}'",
            "img-src data: blob:",
            "connect-src 'self'" if live else "connect-src 'none'",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _hash(data: bytes) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(data).digest()).decode()}"


def _data(name: str, text: str) -> str:
    return f'<script type="text/plain" id="{html.escape(name)}">{text}</script>'
