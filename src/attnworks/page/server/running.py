"""The server while it runs, from its first connection to its last."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from attnworks.page.server.queue import Worker

SECONDS_TO_END, SECONDS_TO_WORK = 1, 0.5
"""For answers that are being sent, and for work that runs, when the server is stopped."""


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
