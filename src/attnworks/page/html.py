"""A page as one HTML file that needs nothing from elsewhere.

The only thing that runs is one inline script, and the only style is one sheet; the policy names both by their SHA-256.
All data are in elements of plain text, in base64, so that no text of a model or a corpus is ever parsed as HTML.
"""

from __future__ import annotations

import base64
import hashlib
import html
from functools import cache

from attnworks.page.contents import SCRIPT_FILE, STYLE_FILE, Contents, resource

NO_SCRIPT = "This page draws itself by a script that is part of it. Allow scripts for this file to see it."


def page_html(contents: Contents) -> str:
    """The whole file."""
    script, style = (resource(name).decode() for name in (SCRIPT_FILE, STYLE_FILE))
    live = contents.page["host"] == "live"
    title = html.escape(contents.page["title"].encode(errors="replace").decode())
    data = [_data("page", contents.packed)]
    data += [_data(f"blob-{name}", blob) for name, blob in contents.blobs.items()]
    return "\n".join(
        (
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy(live=live))}">',
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
    """What a browser lets the page do; for a live page as a header too, where frame-ancestors may be added."""
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
