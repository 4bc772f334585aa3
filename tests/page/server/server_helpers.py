"""A server in a thread, and what asks it: bytes over a socket, as any program could send them."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

from attnworks.page.contents import Contents
from attnworks.page.server.access import listen, local_hosts
from attnworks.page.server.app import application
from attnworks.page.server.live import LiveModel
from attnworks.page.server.queue import Worker
from attnworks.page.server.start import Server
from attnworks.traces.subject import open_subject
from tests.exam_helpers import LINES, tiny_folder

PATIENCE = 180.0
TOKEN = "a-token-of-the-tests"
JSON = {"Content-Type": "application/json"}


class Reply(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Asks one server; `get` and `post` take paths behind the token."""

    def __init__(self, port: int) -> None:
        self.port = port

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, chunked: bool = False
    ) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, dict(headers or {}), encode_chunked=chunked)
            answer = connection.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def get(self, path: str = "", **headers: str) -> Reply:
        return self.send("GET", f"/{TOKEN}/{path}", None, headers)

    def post(self, path: str, body: Any, headers: Mapping[str, str] = JSON) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body)
        return self.send("POST", f"/{TOKEN}/{path}", data, headers)

    def raw(self, request: bytes) -> bytes:
        """The first bytes of the answer to these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(request)
            return connection.recv(65536)


@cache
def live(name: str) -> LiveModel:
    """A tiny model of this name, opened once: it answers, and stays as it is."""
    return LiveModel(open_subject(str(tiny_folder(name))), max_length=23, text=LINES[0])


@contextmanager
def serving(contents: Contents, model: LiveModel, worker: Worker | None = None) -> Iterator[Client]:
    worker = Worker() if worker is None else worker
    with listen("127.0.0.1", 0) as place:
        port = place.getsockname()[1]
        server = Server(application(contents, model, worker, hosts=local_hosts("127.0.0.1", port), token=TOKEN), worker)
        thread = threading.Thread(target=server.run, args=([place],))
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield Client(port)
        finally:
            server.should_exit = True
            thread.join()
            worker.close()
