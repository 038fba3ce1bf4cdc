from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from crsbench_assets.config.errors import StorageError
from crsbench_assets.report.figures.analyses import drawn_rows, figure_layout, figure_traces
from crsbench_assets.report.frames import analysis_query, read_frames
from crsbench_assets.report.sections import SECTIONS, Figure
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.tables.analyses import ANALYSIS_TABLES
from crsbench_assets_tests.report.conftest import Rows
from crsbench_assets_tests.report.pages import Element, plots

ON_REQUEST = {"depth_sweep", "lora_transfer", "prompting"}
"""Analyses that this version does not compute."""


def test_every_analysis_has_a_section() -> None:
    tables = [section.table for section in SECTIONS]
    assert len(tables) == len(set(tables))
    assert set(tables) == {table.name for table in ANALYSIS_TABLES} - ON_REQUEST


def test_tables_hold_the_numbers_of_the_warehouse(page: Element, warehouse: Rows) -> None:
    (panel_id,) = (row["panel_id"] for row in warehouse("SELECT panel_id FROM warehouse_info"))
    n_shown = 0
    for part in SECTIONS:
        rows = warehouse(analysis_query(part, panel_id))
        section = page.one("section", id=f"analysis-{part.table}")
        bodies = list(section.all("tbody"))
        assert len(bodies) == bool(rows)
        if not rows:
            assert "Not computed" in section.text
            continue
        lines = list(bodies[0].all("tr"))
        assert len(lines) == len(rows)
        for line, row in zip(lines, rows, strict=True):
            expected = [float(v) for v in row.values() if isinstance(v, int | float) and not isinstance(v, bool)]
            assert line.numbers == pytest.approx(expected, abs=1e-14)
            n_shown += len(expected)
    assert n_shown > 100


def test_rows_of_another_panel_are_left_out() -> None:
    query = {part.table: analysis_query(part, "it's") for part in SECTIONS}
    assert "WHERE panel_id = 'it''s'" in query["dominance"]
    assert "panel_id" not in query["institutional_shift"]


def test_summaries_count_all_rows(reported_home: HomeLayout, warehouse: Rows) -> None:
    frames = read_frames(reported_home)
    for table in ("panel_perturbations", "weight_perturbations"):
        shown = frames.analyses[table].get_column("n_perturbations").sum()
        assert [shown] == [row["n"] for row in warehouse(f"SELECT count(*) AS n FROM {table}")]


def test_figures_draw_the_rows_of_their_tables(reported_home: HomeLayout, page: Element) -> None:
    frames, traces = read_frames(reported_home), plots(page)["traces"]
    for part in SECTIONS:
        if part.figure is None:
            assert f"analysis/{part.table}" not in traces
            continue
        rows = drawn_rows(part.figure, frames.analyses[part.table])
        if rows.is_empty():
            assert f"analysis/{part.table}" not in traces
            continue
        drawn: list[dict[str, Any]] = [t for t in traces[f"analysis/{part.table}"] if t.get("hoverinfo") != "skip"]
        for name, key in ((part.figure.x, "x"), (part.figure.y, "y"), (part.figure.value, "z")):
            if name:
                assert sorted(v for t in drawn for v in t[key]) == sorted(rows.get_column(name))


def test_series_are_told_apart_without_colour() -> None:
    rows = pl.DataFrame({"x": [0.1, 0.2, 0.3], "y": [0.2, 0.1, 0.4], "kind": ["a", "b", None]})
    diagonal, *series = figure_traces(Figure("points", "x", "y", series="kind", is_compared=True), rows)
    assert (diagonal["x"], diagonal["y"], diagonal["line"]["dash"]) == ([0.1, 0.4], [0.1, 0.4], "dash")
    assert len({trace["marker"]["symbol"] for trace in series}) == 3
    assert len({trace["marker"]["color"] for trace in series}) == 1


def test_intervals_reach_from_bound_to_bound() -> None:
    # value .5 in [.4, .8]; value .6 without interval: no whisker; no value: no row
    rows = pl.DataFrame({"v": [0.5, 0.6, None], "low": [0.4, None, 0.1], "high": [0.8, None, 0.2], "id": list("abc")})
    figure = Figure("intervals", "v", "id", "low", "high")
    (trace,) = figure_traces(figure, drawn_rows(figure, rows))
    assert (trace["x"], trace["y"]) == ([0.5, 0.6], ["a", "b"])
    assert trace["error_x"]["array"] == pytest.approx([0.3, 0.0])
    assert trace["error_x"]["arrayminus"] == pytest.approx([0.1, 0.0])


def test_a_figure_grows_with_its_rows() -> None:
    figure = Figure("matrix", "a", "b", value="v")
    heights = [
        figure_layout(figure, pl.DataFrame({"a": ["x"] * n, "b": [str(i) for i in range(n)], "v": [0.0] * n}))["height"]
        for n in (2, 50)
    ]
    assert heights == [320, 90 + 26 * 50]


def test_a_warehouse_of_another_version_is_refused_in_one_sentence(
    reported_home: HomeLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crsbench_assets.report.frames.LABELS", "FROM table_of_tomorrow")
    with pytest.raises(StorageError, match="another version of crsbench published it: run `crsbench publish`"):
        read_frames(reported_home)
