"""Opening a page in the browser of this machine."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
"""Environment variables of which one is set where Linux can show a browser."""


def has_display() -> bool:
    """Whether a browser has a place to appear; a browser of text would take over the terminal."""
    return sys.platform in ("darwin", "win32") or any(os.environ.get(name) for name in DISPLAYS)


def open_file(path: Path) -> bool:
    """Open a file in the browser; False if there is no display or no browser."""
    try:
        return has_display() and webbrowser.open(path.absolute().as_uri())
    except (OSError, webbrowser.Error):
        return False
