"""The tests run without a network, and their children too; this machine and its sockets stay reachable."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from crsbench_assets_tests.offline.sitecustomize import leaves_the_machine

ELSEWHERE = "192.0.2.1"
"""An address of RFC 5737, which nobody has."""


@pytest.mark.parametrize(
    "reach",
    [
        lambda: socket.create_connection((ELSEWHERE, 443), timeout=1),
        lambda: socket.create_connection(("huggingface.co", 443), timeout=1),
        lambda: socket.getaddrinfo("huggingface.co", 443),
        lambda: socket.gethostbyname("huggingface.co"),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM).connect_ex((ELSEWHERE, 443)),
        lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"", (ELSEWHERE, 53)),
        lambda: socket.socket(socket.AF_INET6, socket.SOCK_STREAM).connect(("2001:db8::1", 443)),
    ],
)
def test_nothing_reaches_beyond_this_machine(reach: Callable[[], object]) -> None:
    with pytest.raises(AssertionError, match="a test reaches beyond this machine"):
        reach()


def test_nor_do_children() -> None:
    code = f"import socket; socket.create_connection(({ELSEWHERE!r}, 443), timeout=1)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"a test reaches beyond this machine: socket.connect {ELSEWHERE}" in done.stderr


def test_this_machine_is_reached(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_connection(("localhost", server.getsockname()[1]), timeout=5).close()
    assert leaves_the_machine("socket.getaddrinfo", (socket.gethostname(), None)) is None
    assert leaves_the_machine("socket.connect", (server, ("::1", 80, 0, 0))) is None
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(str(tmp_path / "s"))
        server.listen()
        client.connect(str(tmp_path / "s"))
