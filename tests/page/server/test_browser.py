"""The browser is opened without telling the address to others."""

from __future__ import annotations

import queue
import stat
import sys
import threading
import webbrowser
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from attnworks.page.browser import DISPLAYS
from attnworks.page.server.start import open_browser


def test_by_a_file_of_ones_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: queue.Queue[str] = queue.Queue()
    monkeypatch.setattr(webbrowser, "open", asked.put)
    monkeypatch.setenv("DISPLAY", ":0")
    with open_browser("http://127.0.0.1:1234/secret/"):
        address = asked.get(timeout=180)
        file = Path(urlsplit(address).path)
        assert address.startswith("file:") and "secret" not in address
        assert 'url=http://127.0.0.1:1234/secret/"' in file.read_text()
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert not file.parent.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems always have a display")
def test_not_without_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(webbrowser, "open", asked.append)
    for name in DISPLAYS:
        monkeypatch.delenv(name, raising=False)
    with open_browser("http://127.0.0.1:1234/secret/"):
        for thread in threading.enumerate():
            if thread.daemon and thread is not threading.current_thread():
                thread.join(timeout=10)
    assert asked == []
