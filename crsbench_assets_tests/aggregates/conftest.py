"""A small protocol: two seeds, fractions 0.1, 0.5 and 1, one corruption at two severities."""

from __future__ import annotations

from pathlib import Path

import pytest

from crsbench_assets.config.protocol import Protocol
from crsbench_assets.config.registry import load_protocol


@pytest.fixture(scope="session")
def protocol() -> Protocol:
    content = load_protocol("crs-1", Path()).model_dump()
    content |= {"seeds": (0, 1), "label_fractions": (0.1, 0.5, 1.0)}
    content["corruptions"] = {"kinds": ("blur",), "severities": (1, 3)}
    return Protocol.model_validate(content)
