"""The browser of the tests: the system's Chromium, its windows, and the pictures that are kept.

What lives here: finding and starting it, two sizes of window, and where pictures go. What stays out: what is looked at
(the tests beside this file) and what makes a page faulty (``faults``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

import crsbench_assets

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

DESKTOP, PHONE = 1400, 400
"""Widths of a window in pixels."""

HEIGHTS = {DESKTOP: 900, PHONE: 800}

PICTURES = Path(
    os.environ.get("CRSBENCH_SCREENSHOTS") or Path(crsbench_assets.__file__).parents[1] / "build" / "screenshots"
)
"""Where pictures of pages are kept for a person to look at."""

WAIT_MS = 60_000
"""Patience with a page, on a machine that computes at the same time."""

expect.set_options(timeout=WAIT_MS)


@contextmanager
def started_chromium() -> Iterator[Browser]:
    """Yield Chromium with an empty profile; skip the test where the system has none."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine; on Debian: apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def window(browser: Browser, width: int, *, is_offline: bool = False) -> Iterator[Page]:
    """Yield an empty window of a width, without what another window stored."""
    context = browser.new_context(
        viewport={"width": width, "height": HEIGHTS[width]}, offline=is_offline, reduced_motion="reduce"
    )
    context.set_default_timeout(WAIT_MS)
    try:
        yield context.new_page()
    finally:
        context.close()


def keep_picture(page: Page, name: str, *, of: Locator | None = None) -> None:
    """Keep a picture of the window, or of one of its elements."""
    assert page.viewport_size is not None
    path = PICTURES / f"{name}-{page.viewport_size['width']}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    (of or page).screenshot(path=path)
