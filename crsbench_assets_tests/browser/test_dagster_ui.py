"""The Dagster UI as people use it: launch a cell, add a card and watch, find out why a cell failed, open the report."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from crsbench_assets.planning.stages import STAGES
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets_tests.browser.chromium import DESKTOP, PHONE, keep_picture, window
from crsbench_assets_tests.integration.homes import (
    add_broken_encoder,
    add_encoder,
    copy_home,
    finished_run,
    instance_of,
    pointers,
    served,
)

pytestmark = pytest.mark.slow  # a live daemon, whose sensor looks every half minute

TICKS_MS = 240_000
"""Two ticks of the sensor, and the runs that they ask for, on a machine that has other work."""

CELL_RUN_MS = 240_000
"""A run behind the runs that the sensor asked for."""

PAGE_MS = 120_000
"""A page of the UI while runs are at work: 15 s were seen on two busy cores."""


@dataclass(frozen=True)
class Watched:
    """A home, and its Dagster UI in a window."""

    layout: HomeLayout
    url: str
    page: Page

    def open(self, path: str) -> Page:
        """Open a page of the UI."""
        self.page.goto(f"{self.url}/{path}")
        return self.page


@pytest.fixture(scope="module")
def watched(chromium: Browser, filled: HomeLayout, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """The UI of a copy of the filled home."""
    layout = copy_home(filled, tmp_path_factory.mktemp("watched") / "home")
    with served(layout) as ui, window(chromium, DESKTOP) as page:
        yield Watched(layout, f"http://127.0.0.1:{ui.port}", page)


def test_the_asset_graph_shows_the_stages_in_their_order(watched: Watched) -> None:
    stages = list(dict.fromkeys([*(stage.group for stage in STAGES), "publication"]))
    page = watched.open("asset-groups")
    names = page.get_by_text(re.compile(r"^\d_\w+$"))
    expect(names.filter(has_text="publication").first).to_be_visible()
    found = [re.sub(r"^\d_", "", name) for name in dict.fromkeys(names.all_inner_texts())]
    assert found[: len(stages)] == stages
    keep_picture(page, "dagster/asset-graph")


def test_a_cell_is_launched_and_succeeds(watched: Watched) -> None:
    page = watched.open("locations/crsbench/jobs/score_cells")
    page.get_by_role("button", name="Materialize all").click()
    dialog = page.get_by_role("dialog").first
    for key in ("tiny-a", "enc-b"):
        dialog.get_by_text("Select a partition or create one").first.click()
        page.locator("label").filter(has_text=key).last.click()
        page.keyboard.press("Escape")
    keep_picture(page, "dagster/launch")
    page.get_by_role("button", name="Launch 1 run").click()
    expect(page.get_by_text("Launched run")).to_be_visible()
    watched.open("locations/crsbench/jobs/score_cells/runs").locator("a[href^='/runs/']").first.click()
    expect(page.get_by_text("Success", exact=True).first).to_be_visible(timeout=CELL_RUN_MS)
    expect(page.get_by_text("partition: tiny-a|enc-b")).to_be_visible()
    keep_picture(page, "dagster/run")
    page.get_by_placeholder("Filter…").fill("next:")
    expect(page.get_by_text("next: calibrate, measure, aggregate, derive_axes, replicate").first).to_be_visible()
    keep_picture(page, "dagster/run-log")
    run_id = page.url.split("/runs/")[1].split("?")[0]
    computed = {name for name, pointer in pointers(watched.layout).items() if pointer.run_id == run_id}
    assert "run_records/encoder_id=enc-b/dataset_id=tiny-a" in computed


def test_cards_fill_their_cells_and_a_failed_one_says_why(watched: Watched) -> None:
    page = watched.open("assets/main/run_records?view=partitions")
    expect(page.get_by_text("Materialized (4)")).to_be_visible()
    add_encoder(watched.layout, "enc-a")
    broken_image = add_broken_encoder(watched.layout, "enc-d", like="enc-b", broken_on="tiny-a")
    # the page that is open fills by itself
    expect(page.get_by_text("Failed (1)")).to_be_visible(timeout=TICKS_MS)
    expect(page.get_by_text("Materialized (7)")).to_be_visible(timeout=TICKS_MS)
    expect(page.get_by_text("Missing (0)")).to_be_visible()
    keep_picture(page, "dagster/partitions")

    page.get_by_text("enc-d").first.click()
    page.get_by_text("View logs").click()
    sentence = page.get_by_text("embeddings of enc-d x tiny-a failed (incomplete_support): 1 vector(s)").first
    expect(sentence).to_be_visible()
    assert broken_image in sentence.inner_text()
    keep_picture(page, "dagster/failed-cell")


@pytest.mark.parametrize("width", [DESKTOP, PHONE])
def test_pictures_of_the_main_pages_are_kept(watched: Watched, chromium: Browser, width: int) -> None:
    """Dagster gives a phone its desktop's layout: what a picture of 400 px cuts is not ours to mend."""
    pages = {
        "overview": ("overview", "Overview"),
        "assets": ("assets", "crs_scores"),
        "runs": ("runs", "Success"),
        "jobs": ("jobs", "score_cells"),
        "automation": ("automation", "registry_sensor"),
        "cell-table": ("assets/main/run_records", "One row per"),
        "pooled-table": ("assets/main/crs_scores", "One row per"),
        "warehouse": ("assets/main/warehouse", "published"),
    }
    with window(chromium, width) as page:
        for name, (path, text) in pages.items():
            page.goto(f"{watched.url}/{path}")
            page.get_by_text(text).first.wait_for(state="attached")
            with suppress(AssertionError):  # a picture of a busy machine is kept as it is
                expect(page.get_by_text("Loading")).to_have_count(0, timeout=15_000)
            page.wait_for_timeout(3_000)  # charts and grey boxes of the page come after its texts
            keep_picture(page, f"dagster/{name}")


def materialize(watched: Watched, table: str, *, is_warned: bool = False) -> Page:
    """Launch a table from its page and return the page as it is after the run; it must have succeeded.

    The UI warns where what a table reads was never asked for. The page is opened anew: one that is open does not always
    ask for the metadata of a run that ended, and a reload before the run ended would have to be repeated.
    """
    page = watched.open(f"assets/main/{table}")
    page.get_by_role("button", name="Materialize").first.click()
    if is_warned:
        page.get_by_role("button", name="Confirm").click()
    launched = page.get_by_text(re.compile(r"Launched run \w{8}"))
    expect(launched).to_be_visible()
    short_id = launched.inner_text().split("Launched run ")[1][:8]
    with instance_of(watched.layout) as instance:
        (run_id,) = (run.run_id for run in instance.get_runs(limit=50) if run.run_id.startswith(short_id))
    run = finished_run(watched.layout, run_id, timeout=CELL_RUN_MS / 1000)
    assert run.is_success, f"run {run_id} of {table} ended as {run.status}"
    page.reload()
    return page


def shown(found: Locator) -> Locator:
    """Return what a page shows at last, on a machine that has other work."""
    expect(found).to_be_visible(timeout=PAGE_MS)
    return found


def test_ranks_have_a_plot_and_the_report_is_where_its_asset_says(watched: Watched) -> None:
    page = materialize(watched, "ranks")
    plot = shown(page.get_by_alt_text("rank against panel base").first)
    plot.scroll_into_view_if_needed()
    assert plot.evaluate("image => image.naturalWidth") > 0
    keep_picture(page, "dagster/ranks-plot")

    page.get_by_role("link", name="the report").click()
    expect(page.get_by_text("one HTML file that asks no host for anything").first).to_be_visible()
    page = materialize(watched, "warehouse", is_warned=True)  # a copied home is published anew
    shown(page.get_by_text(str(watched.layout.root)).first)
    page = materialize(watched, "report")
    path = shown(page.get_by_text(str(watched.layout.root / "reports" / "report.html")).first)
    keep_picture(page, "dagster/report")
    page.goto(f"file://{path.inner_text()}")
    expect(page.locator("#leaderboard")).to_be_visible()
