"""From the name of a model to a running server, and its page in the user's browser."""

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
from attnworks.exam.folder import EXAM
from attnworks.page.server.access import check_local, listen, local_hosts, shown
from attnworks.page.server.app import application
from attnworks.page.server.live import LiveModel
from attnworks.page.server.queue import Worker
from attnworks.reshape.history import receipts_of
from attnworks.traces.subject import open_examinee

SECONDS_TO_END, SECONDS_TO_WORK = 1, 0.5
"""For answers that are being sent, and for work that runs, when the server is stopped."""


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


class Server(uvicorn.Server):
    """Ctrl-C and SIGTERM let it finish what runs within a second, drop what waits, and end with exit code 0."""

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
                timeout_graceful_shutdown=SECONDS_TO_END,
            )
        )
        self.worker, self.ignore_later_signals = worker, ignore_later_signals

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self.worker.stop()
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Without raising them again, and until the last work is done; signals come to the main thread alone."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
            self.worker.close(SECONDS_TO_WORK)
        finally:
            for number, handler in before.items():
                signal.signal(number, signal.SIG_IGN if self.ignore_later_signals else handler)


def run(app: ASGIApp, worker: Worker, place: socket.socket, *, ends_process: bool = False) -> bool:
    """Serve until a signal comes; False if work still runs then, in a thread that nothing can end.

    ends_process    whether the process ends afterwards: further signals are then ignored
    """
    try:
        Server(app, worker, ignore_later_signals=ends_process).run([place])
    finally:
        ended = worker.close(0.0)
        place.close()
    return ended


def serve_page(
    name: str,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    longest: int = 128,
    text: str | None = None,
    opens: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    tell: Callable[[str], object] = print,
    ends_process: bool = False,
) -> bool:
    """Serve the page of a model, live, until a signal comes; False if work still runs then.

    longest    most tokens of a sentence
    text       the sentence that is shown first
    opens      whether to open the page in the browser
    ends_process  whether the process ends afterwards: further signals are then ignored
    """
    host = check_local(host)
    _check_model(name)
    with listen(host, port) as place:
        number = place.getsockname()[1]
        model = open_live(name, longest=longest, text=text, device=device, dtype=dtype)
        token, worker = secrets.token_urlsafe(), Worker()
        app = application(model.page(), model, worker, hosts=local_hosts(host, number), token=token)
        url = f"http://{shown(host)}:{number}/{token}/"
        tell(f"Serving {name} at {url}")
        tell("Ctrl-C stops.")
        with opened(url) if opens else nullcontext():
            ended = run(app, worker, place, ends_process=ends_process)
        tell("Stopped.")
        return ended


def open_live(
    name: str, *, longest: int = 128, text: str | None = None, device: str = "cpu", dtype: str = "float32"
) -> LiveModel:
    """The model of this name, with the receipts of its folder."""
    examinee = open_examinee(name, device=device, dtype=dtype)
    return LiveModel(examinee, longest=longest, text=text, receipts=receipts_of(name))


def _check_model(name: str) -> None:
    """Refuse the folder of an examination: its page asks nothing, and `attnworks report` writes it."""
    with disk_errors(f"open {name}", remedy="check the path"):
        is_exam = (Path(name) / EXAM).is_file()
    if is_exam:
        raise UsageError(
            asked=f"serve {name}",
            expected="a model",
            got="the folder of an examination",
            remedy=shlex.join(["attnworks", "report", name, "--out", "report.html"]) + " writes its page",
        )
