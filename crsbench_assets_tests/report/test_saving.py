"""What the browser saves of a plot, and how it sorts and chooses, from disk and without a network."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page

from crsbench_assets_tests.browser.chromium import DESKTOP, started_chromium, window
from crsbench_assets_tests.report.conftest import Rows

pytestmark = pytest.mark.slow  # a browser


@pytest.fixture
def opened(report: Path) -> Iterator[Page]:
    with started_chromium() as browser, window(browser, DESKTOP, is_offline=True) as page:
        page.goto(report.as_uri())
        yield page


def saved(page: Page, section: str, kind: str) -> Path:
    button = page.locator(f"#{section} [data-save={kind}]").first
    button.focus()
    with page.expect_download() as download:
        page.keyboard.press("Enter")
    return download.value.path()


def test_a_file_of_a_plot_holds_the_rows_of_the_warehouse(opened: Page, warehouse: Rows) -> None:
    rows = list(csv.DictReader(saved(opened, "leaderboard", "csv").open(encoding="utf-8")))
    primary = {row["encoder_id"]: float(row["crs"]) for row in rows if row["variant"] == "primary"}
    view = warehouse("SELECT encoder_id, crs FROM leaderboard WHERE crs IS NOT NULL")
    assert primary == {row["encoder_id"]: row["crs"] for row in view}  # the control's line among them
    assert "floor" in primary


def test_a_matrix_is_saved_as_its_pairs(opened: Page, warehouse: Rows) -> None:
    rows = list(csv.DictReader(saved(opened, "dominance", "csv").open(encoding="utf-8")))
    found = {(row["encoder_id"], row["other_encoder_id"]): float(row["p_dominates"]) for row in rows}
    table = warehouse(
        "FROM dominance WHERE (is_dominating OR p_dominates > 0) AND p_dominates IS NOT NULL "
        "AND panel_id = (SELECT panel_id FROM warehouse_info)"
    )
    assert found == {(row["encoder_id"], row["other_encoder_id"]): row["p_dominates"] for row in table}


def test_a_picture_is_a_png(opened: Page) -> None:
    assert saved(opened, "leaderboard", "png").read_bytes().startswith(b"\x89PNG")


def test_a_table_is_sorted_by_the_keyboard(opened: Page) -> None:
    header = opened.locator("#choice-table th").nth(1)
    header.locator("button").focus()
    for direction in ("ascending", "descending"):
        opened.keyboard.press("Enter")
        assert header.get_attribute("aria-sort") == direction
        values = [float(text) for text in opened.locator("#choice-table td:nth-child(2):visible").all_inner_texts()]
        assert len(values) > 1 and values == sorted(values, reverse=direction == "descending")


def test_rows_are_chosen_by_dataset_and_tolerance(opened: Page, warehouse: Rows) -> None:
    opened.select_option("#choice select >> nth=0", "skin")
    opened.fill("#choice input", "0.05")
    chosen = warehouse(
        "SELECT count(*) AS n FROM seed_aggregates WHERE dataset_id = 'skin' AND condition_id = 'clean' "
        "AND label_fraction = 1 AND ece_mean <= 0.05"
    )
    assert opened.locator("#choice output").inner_text() == f"{chosen[0]['n']} encoders"
    assert opened.locator("#choice-table tbody tr:visible").count() == chosen[0]["n"]
