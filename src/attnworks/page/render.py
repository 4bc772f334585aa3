"""Where a page is, in a terminal."""

from __future__ import annotations

from rich.text import Text

from attnworks.page.file import WrittenPage


def page_line(page: WrittenPage) -> Text:
    """The file, its size, and how to open it."""
    size = f"{page.bytes / 1e6:.1f} MB" if page.bytes >= 1e6 else f"{page.bytes / 1e3:.0f} kB"
    return Text(f"Page   {page.path} ({size}); {'opened in the browser' if page.opened else 'open it in a browser'}")
