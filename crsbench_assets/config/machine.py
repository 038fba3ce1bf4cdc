"""What this machine has, as far as settings depend on it, and how much of it a computation takes.

What lives here: whether there is a GPU, without importing a library that could use it; the device of torch that a
setting names; one thread for what is computed next. What stays out: whether torch can use the GPU
(``operations.doctor``).
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from crsbench_assets.config.errors import ConfigError, reason_of

if TYPE_CHECKING:
    import torch


def has_gpu() -> bool:
    """Whether an NVIDIA driver is loaded, or this is a Mac with Apple's own chip."""
    return Path("/proc/driver/nvidia/version").exists() or (sys.platform == "darwin" and platform.machine() == "arm64")


def torch_device(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is cuda where torch can use it, else mps, else cpu.

    Raises:
        ConfigError: torch knows no such device, or cannot use it here.
    """
    import torch

    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise ConfigError(
            f"device {name!r} cannot be used here ({reason_of(error)}): set `device` in crsbench.yaml to auto, cpu, "
            "cuda, cuda:1 or mps."
        ) from None
    return device


def exact_device(name: str) -> str:
    """Return the device of :func:`torch_device` where it has float64, else ``cpu``: what decides is summed in float64.

    Raises:
        ConfigError: torch knows no such device, or cannot use it here.
    """
    device = torch_device(name)
    return "cpu" if device.type == "mps" else str(device)


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread of torch and of BLAS while the block runs.

    Threads that wait for each other spin: beside one busy neighbour two of them made a probe of half a second take 4
    to 15 seconds, and alone they gained nothing. Cores are used by several cells. And sums are made in one order.
    """
    import torch
    from threadpoolctl import threadpool_limits

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(before)
