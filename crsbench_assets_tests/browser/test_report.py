"""The report as people read it: on a desktop and a phone, from disk, without a network, with a screen reader."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from crsbench_assets.report.html import write_report
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets_tests.browser import faults
from crsbench_assets_tests.browser.chromium import DESKTOP, PHONE, keep_picture, window
from crsbench_assets_tests.report.conftest import MARKUP

pytestmark = pytest.mark.slow  # a panel of 15 encoders and a hundred plots: minutes

WIDTHS = pytest.mark.parametrize("width", [DESKTOP, PHONE])


@pytest.fixture(scope="module")
def synthetic15(tmp_path_factory: pytest.TempPathFactory) -> HomeLayout:
    """The home of ``crsbench demo --panel synthetic15``."""
    layout = HomeLayout(tmp_path_factory.mktemp("synthetic15") / "home")
    command = ["demo", "--panel", "synthetic15", "--home", str(layout.root)]
    done = subprocess.run(
        [sys.executable, "-m", "crsbench_assets.cli", *command],
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return layout


@pytest.fixture(scope="module", params=["reported_home", "synthetic15"])
def report(request: pytest.FixtureRequest) -> Report:
    """The report of a small home with names that look like markup and cells without result, and of a whole panel."""
    return Report(request.param, write_report(request.getfixturevalue(request.param)))


@dataclass(frozen=True)
class Report:
    """A report, named for its home."""

    name: str
    path: Path


@dataclass(frozen=True)
class Opened:
    """A report in a window, everything unfolded and drawn, and what the browser said about it."""

    page: Page
    n_plots: int
    requests: list[str]
    complaints: list[str]


@pytest.fixture(scope="module", params=[DESKTOP, PHONE])
def opened(request: pytest.FixtureRequest, chromium: Browser, report: Report) -> Iterator[Opened]:
    """The report in a window without a network."""
    with window(chromium, request.param, is_offline=True) as page:
        requests: list[str] = []
        complaints: list[str] = []
        page.on("request", lambda asked: requests.append(asked.url))
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(report.path.as_uri())
        yield Opened(page, faults.unroll(page), requests, complaints)


def test_it_opens_from_disk_and_asks_nobody(opened: Opened, report: Report) -> None:
    assert opened.requests == [report.path.as_uri()]
    assert opened.complaints == []


def test_nothing_reaches_beyond_the_window(opened: Opened) -> None:
    assert faults.beyond_the_window(opened.page) == []


def test_no_text_is_clipped(opened: Opened) -> None:
    assert faults.clipped_texts(opened.page) == []


def test_no_labels_overlap(opened: Opened) -> None:
    assert faults.overlapping_labels(opened.page) == []


def test_every_plot_has_marks(opened: Opened) -> None:
    assert opened.n_plots > 0
    assert faults.empty_plots(opened.page) == []


def test_pictures_of_every_section_are_kept(opened: Opened, report: Report) -> None:
    sections = opened.page.locator("section[id]")
    assert sections.count() > 3
    for section in sections.all():
        section.scroll_into_view_if_needed()
        keep_picture(opened.page, f"report-{report.name}/{section.get_attribute('id')}", of=section)
    opened.page.evaluate("scrollTo(0, 0)")
    keep_picture(opened.page, f"report-{report.name}/top")


@WIDTHS
def test_a_screen_reader_finds_no_serious_fault(chromium: Browser, report: Report, width: int) -> None:
    with window(chromium, width, is_offline=True) as page:
        page.goto(report.path.as_uri())
        assert faults.inaccessible(page) == []


def test_names_with_markup_are_text(chromium: Browser, reported_home: HomeLayout) -> None:
    with window(chromium, DESKTOP, is_offline=True) as page:
        page.goto(write_report(reported_home).as_uri())
        expect(page.locator("#leaderboard").get_by_text(MARKUP).first).to_be_visible()
        assert [e.inner_text() for e in page.locator("b").all() if e.inner_text() == "x"] == []


def test_tables_are_sorted_from_the_keyboard(chromium: Browser, reported_home: HomeLayout) -> None:
    with window(chromium, DESKTOP, is_offline=True) as page:
        page.goto(write_report(reported_home).as_uri())
        header = page.locator("table.sortable thead th[aria-sort]").first
        before = header.get_attribute("aria-sort")
        header.locator("button").focus()
        page.keyboard.press("Enter")
        assert header.get_attribute("aria-sort") != before
        page.keyboard.press("Enter")
        assert header.get_attribute("aria-sort") in ("ascending", "descending")


SPOILED = """<!doctype html><html lang="en"><title>t</title><body style="margin:0"><main>
<div style="width:900px">wide</div>
<p style="width:40px;overflow:hidden;white-space:nowrap">a text that is cut</p>
<div class="plot js-plotly-plot" data-plot="a" style="width:90px;height:60px">
<svg class="main-svg" width="90" height="60">
<text x="5" y="20">one label</text><text x="9" y="22">another</text></svg></div>
<img src="data:," width="20" height="20"></main></body></html>"""
"""A page with every fault that is looked for."""


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (faults.beyond_the_window, "the page is 900 px wide in a window of 400 px"),
        (faults.clipped_texts, '"a text that is cut" is clipped'),
        (faults.overlapping_labels, '"one label" and "another" overlap in a'),
        (faults.empty_plots, 'the plot "a" has no mark'),
        (faults.inaccessible, "image-alt (critical)"),
    ],
)
def test_each_fault_is_found_where_it_is(chromium: Browser, look: Any, said: str) -> None:
    with window(chromium, PHONE) as page:
        page.set_content(SPOILED)
        assert said in "\n".join(look(page))
