"""Access control: the server listens on this machine only and answers its own pages, under a secret address."""

from __future__ import annotations

import errno
import hmac
import ipaddress
import socket
from collections.abc import Collection
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from attnworks.core.errors import AttnworksError, UsageError

_COMMON_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Frame-Options": "DENY",
}


def refusal(status: int, error: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": error}, status, headers)


class Guard:
    """Passes requests to http://HOST:PORT/TOKEN/... on, and adds security headers to every response.

    Another Host header is refused, since any web page could point a name of its own to this server (DNS rebinding), and
    so is another Origin. Without the token every path is "not found".
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], token: str, policy: str) -> None:
        self.app, self.hosts, self.token = app, frozenset(hosts), token.encode()
        self.headers = {**_COMMON_HEADERS, "Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        answer = self._refused(scope) or self.app
        await answer(self._without_token(scope), receive, self._with_headers(send))

    def _refused(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        if len(headers.getlist("host")) != 1 or headers["host"].lower() not in self.hosts:
            return refusal(421, "this server answers under its own address only")
        origins = headers.getlist("origin")
        if origins and (len(origins) > 1 or origins[0].lower() not in {f"http://{host}" for host in self.hosts}):
            return refusal(403, "this server answers its own page only")
        given = scope["path"].split("/")[1:2]
        if not given or not hmac.compare_digest(given[0].encode("utf-8", "replace"), self.token):
            return refusal(404, "not found")
        return RedirectResponse(f"{scope['path']}/", 308) if scope["path"].count("/") == 1 else None

    def _without_token(self, scope: Scope) -> dict[str, Any]:
        """The scope with a path without the token."""
        return {**scope, "path": "/" + scope["path"].partition("/")[2].partition("/")[2]}

    def _with_headers(self, send: Send) -> Send:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(self.headers)
            await send(message)

        return send_with_headers


class AddressError(AttnworksError):
    """An address at which nothing can listen."""


def check_local(host: str) -> str:
    """An address of this machine that no other machine can reach; UsageError for others."""
    address = "127.0.0.1" if host == "localhost" else host
    with suppress(ValueError):
        if "%" not in address and ipaddress.ip_address(address).is_loopback:
            return address
    remedy = "from another machine use ssh -L PORT:127.0.0.1:PORT"
    raise UsageError(f"--host {host}", "a local address, as 127.0.0.1", "another", remedy)


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address; the system chooses the port if it is 0."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        expected, got = "an address to listen at", str(error.strerror or error)
        if error.errno == errno.EADDRINUSE:
            expected, got = "a port that is free", "one in use by another program"
        remedy = "choose another --port, or leave it out for any that is free"
        raise AddressError(f"serve at {host} port {port}", expected, got, remedy) from error


def local_hosts(host: str, port: int) -> list[str]:
    """Host headers that name this server."""
    names = dict.fromkeys((url_host(host), "127.0.0.1", "localhost", "[::1]"))
    return [f"{name}:{port}" for name in names] + [*names] * (port == 80)


def url_host(host: str) -> str:
    """The host as written in a URL."""
    return f"[{host}]" if ":" in host else host
