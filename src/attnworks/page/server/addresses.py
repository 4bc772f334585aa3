"""Where the server listens, and what it may be called: this machine alone."""

from __future__ import annotations

import errno
import ipaddress
import socket
from contextlib import suppress

from attnworks.core.errors import AttnworksError, UsageError


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
