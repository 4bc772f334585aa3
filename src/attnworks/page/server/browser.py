"""The page in the user's browser, without telling its secret address to others on the machine."""

from __future__ import annotations

import html
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def opened(url: str) -> Iterator[None]:
    """Open the browser on a file that leads to the address, and remove the file at the end.

    The command line of a browser can be read by everybody on the machine; the file, only by its owner.
    """
    with tempfile.TemporaryDirectory(prefix="attnworks-") as folder:
        file = Path(folder) / "open.html"
        lead = f'<meta http-equiv="refresh" content="0; url={html.escape(url)}">'
        file.write_text(f'<!DOCTYPE html><meta charset="utf-8">{lead}<title>attnworks</title>', encoding="utf-8")
        threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()
        yield
