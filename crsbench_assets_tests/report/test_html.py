from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from crsbench_assets.report.figures.charts import COLOURS
from crsbench_assets.report.figures.reliability import RULE_COLOUR
from crsbench_assets.report.frames import CALIBRATION, LABELS, RELIABILITY, read_frames
from crsbench_assets.report.html import _inlined, render_report
from crsbench_assets.report.sections import GROUPS, SECTIONS
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets_tests.report.conftest import MARKUP, Rows
from crsbench_assets_tests.report.pages import Element, parse, plots

SCORES = (
    "crs",
    "crs_corruption_only",
    "pareto",
    "balance",
    "worst",
    "x_discrimination",
    "x_calibration",
    "x_label_efficiency",
    "x_robustness",
)


def rendered(home: HomeLayout, **changes: Any) -> Element:
    return parse(render_report(replace(read_frames(home), **changes)))


def board_rows(document: Element) -> dict[str, Element]:
    board = document.one("section", id="leaderboard")
    return {row.attributes["data-encoder"]: row for row in board.all("tr") if "data-encoder" in row.attributes}


def panels(document: Element, dataset_id: str) -> dict[str, Element]:
    section = document.one("section", id=f"reliability-{dataset_id}")
    return {figure.attributes["data-encoder"]: figure for figure in section.all("figure")}


# --- one file, alone


def test_the_page_asks_no_host_for_anything(page: Element, report: Path) -> None:
    assert report.stat().st_size < 8e6
    for element in page.all():
        assert element.tag not in ("link", "img", "iframe", "object", "embed", "base", "form"), element
        for name in ("src", "srcset", "action", "data", "poster"):
            assert name not in element.attributes, element
        assert element.attributes.get("href", "#").startswith("#"), element
    (style,) = page.all("style")
    assert "url(" not in style.text and "@import" not in style.text
    (policy,) = page.all("meta", http_equiv="Content-Security-Policy")
    allowed = dict(part.split(" ", 1) for part in policy.attributes["content"].split("; "))
    assert allowed["default-src"] == "'none'"
    assert set(" ".join(allowed.values()).split()) == {"'none'", "'unsafe-inline'", "data:", "blob:"}


def test_plotly_is_inlined_once_before_our_script(page: Element) -> None:
    data, plotly, ours = page.all("script")
    assert data.attributes["type"] == "application/json"
    assert "plotly.js v" in plotly.text[:40]
    assert "Plotly.newPlot" in ours.text and len(ours.text) < 12_000


def test_what_would_end_its_element_is_not_inlined() -> None:
    assert _inlined("a < b && c") == "a < b && c"
    with pytest.raises(ValueError, match="its own closing tag"):
        _inlined("'</SCRIPT>'")


def test_links_lead_to_a_section(page: Element) -> None:
    targets = [element.attributes["id"] for element in page.all() if "id" in element.attributes]
    assert len(targets) == len(set(targets))
    links = [link.attributes["href"].removeprefix("#") for link in page.all("a")]
    navigation = {
        group.one("summary").text: [link.attributes["href"].removeprefix("#") for link in group.all("a")]
        for group in page.one("nav").all("details")
    }
    expected = {title: [section.key for section in SECTIONS if section.group == key] for key, title in GROUPS.items()}
    expected["Decision"] = ["leaderboard", "findings", *expected["Decision"]]
    expected["Calibration"] += ["reliability-chest", "reliability-skin"]
    assert navigation == expected
    assert set(links) <= set(targets)
    labelled = [name for element in page.all() if (name := element.attributes.get("aria-labelledby"))]
    assert {*links, *labelled} <= set(targets)


def test_names_with_markup_are_text(page: Element, report: Path) -> None:
    assert "<b>x</b>" not in report.read_text(encoding="utf-8")
    assert "<i>effusion" not in report.read_text(encoding="utf-8")
    assert board_rows(page)["alpha"].having("name")[0].text == MARKUP
    assert panels(page, "skin")["alpha"].having("name")[0].text == MARKUP
    names = [row.text for row in page.one("table", aria_labelledby="reliability-chest-labels").all("th", scope="row")]
    assert "<i>effusion</i>" in names


def test_the_page_says_where_it_comes_from(page: Element, warehouse: Rows) -> None:
    (info,) = warehouse("FROM warehouse_info")
    facts = {group.one("dt").text: group.one("dd").text for group in page.one("dl", class_="facts").all("div")}
    assert (facts["Protocol"], facts["Label policy"]) == (info["protocol_id"], info["label_policy"])
    assert facts["Panel"].startswith("provisional (no panel is frozen yet")
    assert facts["Version"] == f"crsbench {info['release']}"
    assert facts["Published"].endswith(", publication 1")
    assert page.one("time").attributes["datetime"] == info["published_at"]


def test_synthetic_rows_are_marked(page: Element, reported_home: HomeLayout) -> None:
    assert "synthetic" in [badge.text for row in board_rows(page).values() for badge in row.having("badge")]
    assert page.having("banner")[0].text.startswith("Synthetic. What is marked synthetic here is simulated")
    frames = read_frames(reported_home)
    real = rendered(
        reported_home,
        encoders=frames.encoders.with_columns(is_synthetic=False),
        datasets=frames.datasets.with_columns(is_synthetic=False),
        leaderboard=frames.leaderboard.with_columns(is_synthetic=False),
    )
    assert "synthetic" not in [badge.text for badge in real.having("badge")]
    assert [banner.text for banner in real.having("banner")] == [real.one("noscript").text]


# --- the leaderboard


def test_the_leaderboard_holds_the_numbers_of_the_view(page: Element, warehouse: Rows) -> None:
    view = warehouse("FROM leaderboard")
    rows = board_rows(page)
    assert [encoder["encoder_id"] for encoder in view] == list(rows)  # best first, controls last
    for encoder in view:
        places = ("rank", "rank_lo", "rank_hi", "tie_group", "p_best")
        values = [encoder[name] for name in (*places, *SCORES)]
        assert rows[encoder["encoder_id"]].numbers == [value for value in values if value is not None]
    sort_keys = [cell.attributes["data-sort"] for cell in rows["alpha"].all() if "data-sort" in cell.attributes]
    best = view[0]
    numbers = ["" if best[name] is None else str(best[name]) for name in SCORES]
    assert sort_keys == [
        str(best["rank"]),
        str(best["tie_group"]),
        str(best["p_best"]),
        MARKUP,
        *numbers,
        str(best["n_datasets"]),
    ]


def test_controls_stand_below_in_a_body_of_their_own(page: Element) -> None:
    candidates, controls = page.one("section", id="leaderboard").all("tbody")
    assert [row.attributes.get("data-encoder") for row in candidates.all("tr")] == ["alpha", "beta", "broken"]
    assert [row.attributes.get("data-encoder") for row in controls.all("tr")] == [None, "floor"]
    assert "never ranked" in controls.text


def test_an_encoder_without_a_score_says_why(page: Element) -> None:
    rows = board_rows(page)
    (reason,) = rows["broken"].having("reason")
    assert reason.text.startswith("No score: an applicable cell has no result") and "(incomplete)" in reason.text
    assert not rows["alpha"].having("reason")
    assert "Without a rank interval" not in page.text


def test_ranks_without_intervals_say_why(reported_home: HomeLayout) -> None:
    board = read_frames(reported_home).leaderboard
    ranked = pl.col("rank").is_not_null()
    missing = {name: pl.lit(None) for name in ("rank_lo", "rank_hi", "tie_group")}
    reason = pl.when(ranked).then(pl.lit("no_replicates")).otherwise(pl.col("reason"))
    document = rendered(reported_home, leaderboard=board.with_columns(**missing, reason=reason))
    text = document.one("section", id="leaderboard").text
    assert "2 of 3 candidates. Reason: a cell has no replicates of its axes" in text


def test_intervals_of_ranks_are_shown_where_there_are_some(reported_home: HomeLayout) -> None:
    board = read_frames(reported_home).leaderboard
    ranked = pl.col("rank").is_not_null()
    document = rendered(
        reported_home,
        leaderboard=board.with_columns(
            rank_lo=pl.when(ranked).then(pl.lit(1)),
            rank_hi=pl.when(ranked).then(pl.lit(2)),
            tie_group=pl.when(ranked).then(pl.lit(1)),
        ),
    )
    assert board_rows(document)["beta"].numbers[:4] == [2, 1, 2, 1]
    assert "[1, 2]" in board_rows(document)["beta"].text
    assert "Without a rank interval" not in document.text


def test_tables_are_sorted_from_the_keyboard(page: Element) -> None:
    for table in page.all("table"):
        headers = list(table.one("thead").all("th"))
        assert all(header.one("button").attributes["type"] == "button" for header in headers)
        assert {header.attributes["data-first"] for header in headers} <= {"ascending", "descending"}
        for row in table.all("tr"):
            cells = [cell for cell in row.all() if cell.tag in ("td", "th")]
            if "group" not in row.attributes.get("class", "") and not row.having("button") and cells[0] not in headers:
                assert len(cells) == len(headers)
    sorts = [header.attributes["aria-sort"] for header in page.one("section", id="leaderboard").one("thead").all("th")]
    assert sorts == ["ascending"] + ["none"] * 13


# --- reliability diagrams


def test_diagrams_draw_the_numbers_of_the_warehouse(page: Element, warehouse: Rows) -> None:
    expected: dict[str, list[dict[str, Any]]] = {}
    for row in warehouse(RELIABILITY):
        expected.setdefault(f"{row['dataset_id']}/{row['encoder_id']}/{row['condition_id']}", []).append(row)
    drawn = plots(page)["traces"]
    assert {plot_id for plot_id in drawn if plot_id.startswith(("chest/", "skin/"))} == expected.keys()
    for plot_id, bins in expected.items():
        _, points, counts = drawn[plot_id]
        assert points["x"] == pytest.approx([row["mean_confidence"] for row in bins], abs=1e-14)
        assert points["y"] == pytest.approx([row["mean_label"] for row in bins], abs=1e-14)
        assert [told for (told,) in points["customdata"]] == counts["y"] == [row["n"] for row in bins]
        assert counts["x"] == pytest.approx([(row["bin_low"] + row["bin_high"]) / 2 for row in bins])


def test_every_plot_is_drawn_once_and_named(page: Element) -> None:
    places = page.having("plot")
    assert {place.attributes["data-plot"] for place in places} == plots(page)["traces"].keys()
    assert len(places) == len(plots(page)["traces"])
    assert {place.attributes["data-layout"] for place in places} == plots(page)["layouts"].keys()
    for place in places:
        begins = place.attributes["aria-label"].startswith
        assert place.attributes["role"] == "img"
        assert begins("Reliability diagram of ") or " by " in place.attributes["aria-label"]


def test_errors_and_floors_beside_the_plots_are_those_of_the_warehouse(page: Element, warehouse: Rows) -> None:
    rows = warehouse(CALIBRATION)
    assert len(rows) == 8
    for row in rows:
        panel = panels(page, row["dataset_id"])[row["encoder_id"]]
        block = panel.one("div", data_condition=row["condition_id"])
        names = ("ece", "ece_ci_low", "ece_ci_high", "ece_floor", "ece_floor_p95")
        assert block.numbers == pytest.approx([row[name] for name in names], abs=1e-14)
        assert f"ECE {row['ece']:.3f} [{row['ece_ci_low']:.3f}, " in block.text


def test_a_panel_without_a_plot_says_why(page: Element) -> None:
    for dataset_id, encoder_id, reason in (
        ("skin", "broken", "incomplete_support"),
        ("skin", "beta", "excluded_by_card"),
        ("chest", "broken", "no_vectors"),
    ):
        panel = panels(page, dataset_id)[encoder_id]
        assert not panel.having("plot")
        assert all(reason in text.text for text in panel.having("empty")) and panel.having("empty")


def test_undefined_errors_and_intervals_are_named(reported_home: HomeLayout) -> None:
    frames = read_frames(reported_home)
    skin = pl.col("dataset_id") == "skin"
    document = rendered(
        reported_home,
        calibration=frames.calibration.with_columns(
            ece=pl.when(~skin).then("ece"),
            reason=pl.when(skin).then(pl.lit("missing_seed")),
            ece_ci_low=pl.lit(None, pl.Float64),
            interval_reason=pl.lit("unstable"),
            ece_floor=pl.lit(None, pl.Float64),
        ),
    )
    assert "ECE undefined: not every seed has a value (missing_seed)" in panels(document, "skin")["alpha"].text
    chest = panels(document, "chest")["alpha"].one("div", data_condition="clean").text
    assert "no interval: fewer than 95 % of the replicates are defined (unstable)" in chest
    assert "floor –, p95 0." in chest


def test_the_condition_is_chosen_where_there_are_two(page: Element) -> None:
    (control,) = page.all("fieldset")
    choices = [(c.attributes["value"], "checked" in c.attributes) for c in control.all("input", type="radio")]
    assert choices == [("clean", True), ("shift_ward", False)]
    shown = {
        block.attributes["data-condition"]: "hidden" not in block.attributes
        for block in page.all("div")
        if "data-condition" in block.attributes
    }
    assert shown == {"clean": True, "shift_ward": False}


def test_captions_say_what_is_pooled(page: Element) -> None:
    chest, skin = (page.one("section", id=f"reliability-{name}").text for name in ("chest", "skin"))
    assert "pooled over labels and the 2 seeds by counts" in chest
    assert "pooled over the 2 seeds by counts" in skin


# --- per label


def test_the_table_per_label_holds_the_numbers_of_the_warehouse(page: Element, warehouse: Rows) -> None:
    table = page.one("table", aria_labelledby="reliability-chest-labels")
    bodies = {body.attributes["data-encoder"]: body for body in table.all("tbody")}
    options = [
        option.attributes["value"] for option in page.one("select", data_labels="reliability-chest").all("option")
    ]
    assert options == list(bodies) == ["alpha", "beta", "floor"]
    rows = warehouse(LABELS)
    assert len(rows) == 9
    for row in rows:
        (found,) = (
            line
            for line in bodies[row["encoder_id"]].all("tr")
            if [h.attributes.get("data-sort") for h in line.all("th")] == [row["class_name"]]
        )
        values = [row[name] for name in ("auroc", "ece", "brier")]
        assert found.numbers == pytest.approx([value for value in values if value is not None], abs=1e-14)
        assert [cell.text for cell in found.all("td")][3:] == [str(row["n_pos"]), str(row["n_groups_pos"])]
        assert [reason.text for reason in found.having("reason")] == (
            ["the training subset holds one value of this label (one_class_train)"] if row["reason"] else []
        )
    assert [row["reason"] for row in rows if row["class_name"] == "rare"] == ["one_class_train"] * 3


# --- homes with nothing in them


def test_a_home_without_results_has_a_page_that_says_so(reported_home: HomeLayout) -> None:
    frames = read_frames(reported_home)
    names = [name for name in frames.__dataclass_fields__ if name not in ("info", "sections", "drawn")]
    sections = {key: rows.clear() for key, rows in frames.sections.items()}
    drawn = {key: tuple(rows.clear() for rows in several) for key, several in frames.drawn.items()}
    document = rendered(
        reported_home, sections=sections, drawn=drawn, **{name: getattr(frames, name).clear() for name in names}
    )
    assert "No encoder is scored yet." in document.text
    assert not list(document.all("table")) and plots(document) == {"layouts": {}, "traces": {}}
    n_empty = sum(document.text.count(said) for said in {part.empty or "Not computed: the table" for part in SECTIONS})
    assert n_empty == len(SECTIONS)
    unmeasured = rendered(reported_home, **{name: getattr(frames, name).clear() for name in ("cells", "labels")})
    assert "No encoder is active for this dataset." in unmeasured.text
    assert "No record of this dataset is published." in unmeasured.text


def test_contrasts_meet_wcag_aa(page: Element) -> None:
    """Text 4.5:1, marks 3:1, on the page and on its shaded parts, light and dark."""
    style = page.one("style").text
    blocks = re.findall(r":root \{([^}]*)\}", style)
    assert len(blocks) == 2
    for block in blocks:
        colour = dict(re.findall(r"--([a-z-]+): (#[0-9a-f]{6})", block))
        for paper in ("paper", "shade"):
            for text in ("ink", "soft", "link"):
                assert contrast(colour[text], colour[paper]) >= 4.5, (text, paper)
            assert contrast(colour["accent"], colour[paper]) >= 3.0
        assert contrast(colour["ink"], colour["mark"]) >= 4.5
        for mark in (*COLOURS, RULE_COLOUR):
            assert contrast(mark, colour["paper"]) >= 3.0, mark


def contrast(one: str, other: str) -> float:
    """Return the contrast ratio of WCAG 2.2."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)
