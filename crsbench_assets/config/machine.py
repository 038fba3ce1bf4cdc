"""What this machine has, as far as settings depend on it.

What lives here: whether there is a GPU, without importing a library that could use it. What stays out: whether torch
can (``operations.doctor``).
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path


def has_gpu() -> bool:
    """Whether an NVIDIA driver is loaded, or this is a Mac with Apple's own chip."""
    return Path("/proc/driver/nvidia/version").exists() or (sys.platform == "darwin" and platform.machine() == "arm64")
