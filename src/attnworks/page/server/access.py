"""Who may ask, and where the server listens: its own pages alone, under a secret address, on this machine."""

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

COMMON = {
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
    """Lets through what comes to http://HOST:PORT/TOKEN/..., and gives every answer the headers of a closed page.

    A foreign Host is refused, or any page could reach us by a name that it lets point here (DNS rebinding); so is a
    foreign Origin. Without the token everything is as if it were not there.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], token: str, policy: str) -> None:
        self.app, self.hosts, self.token = app, frozenset(hosts), token.encode()
        self.headers = {**COMMON, "Content-Security-Policy": f"{policy}; frame-ancestors 'none'"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http"
        answer = self._refused(scope) or self.app
        await answer(self._inside(scope), receive, self._sealed(send))

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

    def _inside(self, scope: Scope) -> dict[str, Any]:
        """The scope as the pages see it, without the token."""
        return {**scope, "path": "/" + scope["path"].partition("/")[2].partition("/")[2]}

    def _sealed(self, send: Send) -> Send:
        async def seal(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers[name] = value
            await send(message)

        return seal


class NoPlaceError(AttnworksError):
    """An address at which nothing can listen."""


def check_local(host: str) -> str:
    """An address of this machine that no other machine can reach; UsageError for others."""
    address = "127.0.0.1" if host == "localhost" else host
    with suppress(ValueError):
        if "%" not in address and ipaddress.ip_address(address).is_loopback:
            return address
    raise UsageError(
        asked=f"--host {host}",
        expected="an address that only this machine can reach, such as 127.0.0.1 or ::1",
        got="another",
        remedy="from another machine, reach it through ssh -L PORT:127.0.0.1:PORT",
    )


def listen(host: str, port: int) -> socket.socket:
    """A socket at this address; at a port of the system's choice for port 0."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        taken = error.errno == errno.EADDRINUSE
        raise NoPlaceError(
            asked=f"serve at {host} port {port}",
            expected="a port that is free" if taken else "an address to listen at",
            got="one in use by another program" if taken else str(error.strerror or error),
            remedy="choose another --port, or leave it out for any that is free",
        ) from error


def local_hosts(host: str, port: int) -> list[str]:
    """What a browser may call this server."""
    names = dict.fromkeys((shown(host), "127.0.0.1", "localhost", "[::1]"))
    return [f"{name}:{port}" for name in names] + [*names] * (port == 80)


def shown(host: str) -> str:
    """As it stands in a URL."""
    return f"[{host}]" if ":" in host else host
