"""Chromium, and homes that the browser looks at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from crsbench_assets_tests.browser.chromium import started_chromium
from crsbench_assets_tests.integration.conftest import filled
from crsbench_assets_tests.report.conftest import reported_home

__all__ = ["filled", "reported_home"]  # fixtures of other folders that the tests here use as well


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """The system's Chromium; of a module, because while it is open no other test may run an event loop."""
    with started_chromium() as browser:
        yield browser
