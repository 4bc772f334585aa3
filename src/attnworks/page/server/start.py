"""Starting the server of a model, and opening its page in the browser."""

from __future__ import annotations

import html
import secrets
import shlex
import signal
import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from attnworks.core.errors import UsageError
from attnworks.core.folders import disk_errors
from attnworks.exam.folder import EXAM_FILE
from attnworks.page.server.access import check_local, listen, local_hosts, url_host
from attnworks.page.server.app import application
from attnworks.page.server.live import LiveModel
from attnworks.page.server.queue import Worker
from attnworks.reshape.history import receipts_of
from attnworks.traces.subject import open_subject

SECONDS_TO_SEND_LAST, SECONDS_TO_FINISH_WORK = 1, 0.5
"""Time limits for sending answers and for running work when the server stops."""


@contextmanager
def open_browser(url: str) -> Iterator[None]:
    """Open the browser on a file that redirects to the address, and remove the file at the end.

    All users of the machine can read the command line of a browser; only the owner can read the file.
    """
    with tempfile.TemporaryDirectory(prefix="attnworks-") as folder:
        file = Path(folder) / "open.html"
        redirect = f'<meta http-equiv="refresh" content="0; url={html.escape(url)}">'
        file.write_text(f'<!DOCTYPE html><meta charset="utf-8">{redirect}<title>attnworks</title>', encoding="utf-8")
        threading.Thread(target=webbrowser.open, args=(file.as_uri(),), daemon=True).start()
        yield


class Server(uvicorn.Server):
    """On Ctrl-C and SIGTERM it finishes running work within a second, drops waiting work, and ends with exit code 0."""

    def __init__(self, app: ASGIApp, worker: Worker, *, ignore_later_signals: bool = False) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=SECONDS_TO_SEND_LAST,
            )
        )
        self.worker, self.ignore_later_signals = worker, ignore_later_signals

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.worker.stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Handle signals until the last work is done, without raising them again; only the main thread gets signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
            self.worker.close(SECONDS_TO_FINISH_WORK)
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if self.ignore_later_signals else handler)


def serve_page(
    name: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    max_tokens: int = 128,
    text: str | None = None,
    opens: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    tell: Callable[[str], object] = print,
    ends_process: bool = False,
) -> bool:
    """Serve the page of a model until a signal comes; False if a thread is still at work then, which nothing can end.

    max_tokens      of a sentence
    text            the sentence that is shown first
    opens           whether to open the page in the browser
    ends_process    whether the process ends afterwards; further signals are then ignored
    """
    host = check_local(host)
    _check_model(name)
    with listen(host, port) as place:
        number = place.getsockname()[1]
        model = open_live(name, max_tokens=max_tokens, text=text, device=device, dtype=dtype)
        token, worker = secrets.token_urlsafe(), Worker()
        app = application(model.page(), model, worker, hosts=local_hosts(host, number), token=token)
        url = f"http://{url_host(host)}:{number}/{token}/"
        tell(f"Serving {name} at {url}")
        tell("Ctrl-C stops.")
        with open_browser(url) if opens else nullcontext():
            try:
                Server(app, worker, ignore_later_signals=ends_process).run([place])
            finally:
                ended = worker.close(0.0)
        tell("Stopped.")
        return ended


def open_live(
    name: str, *, max_tokens: int = 128, text: str | None = None, device: str = "cpu", dtype: str = "float32"
) -> LiveModel:
    """The model of this name, with the receipts of its folder."""
    subject = open_subject(name, device=device, dtype=dtype)
    return LiveModel(subject, max_tokens=max_tokens, text=text, receipts=receipts_of(name))


def _check_model(name: str) -> None:
    """An error for an exam folder, whose page `attnworks report` writes."""
    with disk_errors(f"open {name}", remedy="check the path"):
        is_exam = (Path(name) / EXAM_FILE).is_file()
    if is_exam:
        remedy = shlex.join(["attnworks", "report", name, "--out", "report.html"]) + " writes its page"
        raise UsageError(f"serve {name}", "a model", "the folder of an examination", remedy)
