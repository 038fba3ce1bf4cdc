"""No test reaches beyond this machine: names are not looked up and nothing connects, in children of a test as well.

Python imports a module of this name when it starts, so a process with this folder on its PYTHONPATH is cut off from its
first line on; pytest's own process imports it from ``conftest``. Loopback and Unix sockets stay: the Dagster UI and its
code servers talk over them. The hook sees what Python's socket module does, which is all that our libraries use.
"""

from __future__ import annotations

import sys
from typing import Any

CONNECTIONS = ("socket.connect", "socket.sendto", "socket.sendmsg")
LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname")


def leaves_the_machine(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Return the host that an audit event of Python would reach; None where it stays here."""
    if event in CONNECTIONS:
        address = arguments[1]
        host = address[0] if isinstance(address, tuple) and address else None  # a Unix socket has a path
    elif event in LOOKUPS:
        host = arguments[0]
    else:
        return None
    if isinstance(host, bytes | bytearray):
        host = host.decode(errors="replace")
    if not isinstance(host, str) or host in ("", "localhost", "<broadcast>"):
        return None
    import ipaddress
    import socket

    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return None if host == socket.gethostname() else host
    return None if event in LOOKUPS or address.is_loopback or address.is_unspecified else host


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """Refuse an audit event that would leave the machine.

    Raises:
        AssertionError: always then; libraries take an OSError for a network that is down and go on without it.
    """
    host = leaves_the_machine(event, arguments)
    if host is not None:
        raise AssertionError(f"a test reaches beyond this machine: {event} {host}")


sys.addaudithook(refuse)
