"""Starting the server of a model, and opening its page in the browser."""

from __future__ import annotations

import html
import secrets
import signal
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from attnworks.core.display import Progress
from attnworks.core.errors import UsageError
from attnworks.page.browser import open_file
from attnworks.page.server.access import local_hosts, url_host
from attnworks.page.server.app import application
from attnworks.page.server.live import LiveModel
from attnworks.page.server.queue import Worker
from attnworks.reshape.history import receipts_of
from attnworks.traces.subject import Subject

SECONDS_TO_SEND_LAST, SECONDS_TO_FINISH_WORK = 1, 0.5
"""Time limits for sending answers and for running work when the server stops."""


@contextmanager
def open_browser(url: str) -> Iterator[None]:
    """Open the browser, if there is a display, on a file that redirects to the address, and remove it at the end.

    All users of the machine can read the command line of a browser; only the owner can read the file.
    """
    with tempfile.TemporaryDirectory(prefix="attnworks-") as folder:
        file = Path(folder) / "open.html"
        redirect = f'<meta http-equiv="refresh" content="0; url={html.escape(url)}">'
        file.write_text(f'<!DOCTYPE html><meta charset="utf-8">{redirect}<title>attnworks</title>', encoding="utf-8")
        threading.Thread(target=open_file, args=(file,), daemon=True).start()
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


def run_server(
    model: LiveModel,
    name: str,
    place: socket.socket,
    host: str,
    remarks: Sequence[str] = (),
    *,
    open: bool,
    progress: Progress,
    ignore_later_signals: bool,
) -> bool:
    """Serve a model at a socket that listens, until Ctrl-C or SIGTERM; whether all work has ended.

    name       what the first message calls the model; `remarks` are printed after it
    open       whether the page is opened in the browser
    """
    number = place.getsockname()[1]
    token, worker = secrets.token_urlsafe(), Worker()
    app = application(model.page(), model, worker, hosts=local_hosts(host, number), token=token)
    url = f"http://{url_host(host)}:{number}/{token}/"
    for message in (f"Serving {name} at {url}", "Ctrl-C stops.", *remarks):
        progress(message, 0, 0)
    with open_browser(url) if open else nullcontext():
        try:
            Server(app, worker, ignore_later_signals=ignore_later_signals).run([place])
        finally:
            ended = worker.close(0.0)
    progress("Stopped.", 0, 0)
    return ended


def live_model(subject: Subject, *, max_length: int = 128, text: str | None = None) -> LiveModel:
    """A model, with the receipts of its folder."""
    if subject.source is None:
        raise UsageError(f"serve {subject.name}", "a tokenizer beside the model", "none", "pass tokenizer=...")
    receipts = () if subject.folder is None else receipts_of(str(subject.folder))
    return LiveModel(subject, max_length=max_length, text=text, receipts=receipts)
