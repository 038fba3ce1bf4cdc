"""One thread: more of them only wait for each other on a shared machine. No network, and no token of anybody's."""

from __future__ import annotations

import socket

import pytest
import torch


@pytest.fixture(autouse=True, scope="package")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="package")
def _no_network():
    """Let every connection fail, so that a download that a library starts by itself is a failed test."""

    def refused(_socket, address):
        raise AssertionError(f"a test of encoders connects to {address}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", refused)
        patch.setattr(socket.socket, "connect_ex", refused)
        yield
