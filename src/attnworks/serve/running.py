"""The server while it runs, from its first connection to its last."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from attnworks.serve.work import Worker

SECONDS_TO_END = 2
"""For answers that are on their way when the server is stopped."""


class Server(uvicorn.Server):
    """Ctrl-C and SIGTERM let it finish what runs, drop what waits, and end as a command that did what it should."""

    def __init__(self, app: ASGIApp, worker: Worker) -> None:
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
        self.worker = worker

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
            self.worker.close()
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def run(app: ASGIApp, worker: Worker, place: socket.socket) -> None:
    """Serve until told to stop."""
    try:
        Server(app, worker).run([place])
    finally:
        worker.close()
        place.close()
