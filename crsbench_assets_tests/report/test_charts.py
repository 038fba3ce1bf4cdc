from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest

from crsbench_assets.report.figures.charts import COLOURS, Figure, charts, drawn_rows, figure_title, series_key

NONE: frozenset[str] = frozenset()


def traces_of(figure: Figure, rows: pl.DataFrame, controls: frozenset[str] = NONE) -> list[dict[str, Any]]:
    (chart,) = charts(figure, drawn_rows(figure, rows), "p", controls)
    return chart.traces


@pytest.mark.parametrize(
    ("kind", "look"),
    [
        ("points", lambda trace: trace["marker"]["symbol"]),
        ("lines", lambda trace: (trace["marker"]["symbol"], trace["line"]["dash"])),
        ("intervals", lambda trace: trace["marker"]["symbol"]),
        ("bars", lambda trace: trace["marker"]["pattern"]["shape"]),
    ],
)
def test_series_are_told_apart_without_colour(kind: Any, look: Any) -> None:
    rows = pl.DataFrame({"crs": [0.1, 0.2, 0.3], "axis": ["a", "a", "b"], "mode": ["i", "j", None]})
    figure = Figure(kind, "crs", "axis", series="mode")
    series = traces_of(figure, rows)
    assert len({look(trace) for trace in series}) == 3
    assert len({glyph for glyph, _, _ in series_key(figure, rows, NONE)}) == 3
    assert [name for _, _, name in series_key(figure, rows, NONE)] == ["i", "j", "not recorded"]


def test_a_series_looks_the_same_in_every_panel() -> None:
    # j alone in the second panel: it keeps the second marker
    rows = pl.DataFrame(
        {"rank": [1, 2, 3], "crs": [0.1, 0.2, 0.3], "mode": ["i", "j", "j"], "dataset_id": ["x", "x", "y"]}
    )
    first, second = charts(Figure("points", "rank", "crs", series="mode", panel=("dataset_id",)), rows, "p", NONE)
    assert [first.title, second.title] == ["x", "y"]
    assert [first.plot_id, second.plot_id] == ["p/0", "p/1"]
    assert second.traces[0]["marker"] == first.traces[1]["marker"]
    assert first.layout["yaxis"]["range"] == second.layout["yaxis"]["range"] == pytest.approx([0.09, 0.31])


def test_blocks_fold_panels() -> None:
    rows = pl.DataFrame({"rank": [1, 2], "crs": [0.1, 0.2], "encoder_id": ["e", "e"], "dataset_id": ["x", "y"]})
    found = charts(Figure("lines", "rank", "crs", panel=("encoder_id",), block="dataset_id"), rows, "p", NONE)
    assert [(chart.title, chart.block) for chart in found] == [("e", "x"), ("e", "y")]


def test_intervals_reach_from_bound_to_bound() -> None:
    # value .5 in [.4, .8]; value .6 without interval: no whisker; no value: no row
    rows = pl.DataFrame(
        {"crs": [0.5, 0.6, None], "crs_ci_low": [0.4, None, 0.1], "crs_ci_high": [0.8, None, 0.2], "axis": list("abc")}
    )
    (trace,) = traces_of(Figure("intervals", "crs", "axis", "crs_ci_low", "crs_ci_high"), rows)
    assert (trace["x"], trace["y"]) == ([0.5, 0.6], ["a", "b"])
    assert trace["customdata"] == [[0.4, 0.8], [None, None]]
    assert trace["error_x"]["array"] == [pytest.approx(0.3), None]
    assert trace["error_x"]["arrayminus"] == [pytest.approx(0.1), None]


def test_a_series_without_bounds_has_no_whiskers() -> None:
    rows = pl.DataFrame({"crs": [0.5], "crs_ci_low": [None], "crs_ci_high": [None], "axis": ["a"]})
    (trace,) = traces_of(Figure("intervals", "crs", "axis", "crs_ci_low", "crs_ci_high"), rows)
    assert "error_x" not in trace


def test_controls_are_lines_among_intervals_and_small_among_points() -> None:
    rows = pl.DataFrame({"crs": [0.5, 0.2], "rank": [1, 2], "encoder_id": ["good", "null"]})
    controls = frozenset({"null"})
    points, line = traces_of(Figure("intervals", "crs", "encoder_id"), rows, controls)
    assert (points["y"], line["x"], line["y"], line["yaxis"]) == (["good"], [0.2, 0.2], [0, 1], "y2")
    assert line["meta"]["row"] == [0.2, "null"]
    assert (line["line"]["dash"], line["offsetgroup"]) == ("dot", "controls")  # else Plotly moves it off its value
    assert series_key(Figure("intervals", "crs", "encoder_id"), rows, controls)[0][2] == "control null"
    (trace,) = traces_of(Figure("points", "crs", "rank"), rows, controls)
    assert trace["marker"]["size"] == [8, 5] and trace["marker"]["color"][0] == COLOURS[0]


def test_a_compared_figure_draws_the_line_of_equals() -> None:
    rows = pl.DataFrame({"ece_before": [0.1, 0.2, 0.3], "ece_after": [0.2, 0.1, 0.4]})
    diagonal, _ = traces_of(Figure("points", "ece_before", "ece_after", is_compared=True), rows)
    assert (diagonal["x"], diagonal["y"], diagonal["line"]["dash"]) == ([0.1, 0.4], [0.1, 0.4], "dash")
    assert "customdata" not in diagonal


def test_a_matrix_is_square_and_its_columns_are_numbered() -> None:
    # a over b .5, a over c .25; c stands only among the columns
    rows = pl.DataFrame(
        {"encoder_id": ["a", "b", "a"], "other_encoder_id": ["b", "c", "c"], "p_dominates": [0.5, 1.0, 0.25]}
    )
    figure = Figure("matrix", "other_encoder_id", "encoder_id", value="p_dominates")
    (chart,) = charts(figure, rows, "p", NONE)
    (trace,) = chart.traces
    assert trace["x"] == trace["y"] == ["a", "b", "c"]
    assert trace["z"] == [[None, 0.5, 0.25], [None, None, 1.0], [None, None, None]]
    assert trace["text"] == [["", "50", "25"], ["", "", "100"], ["", "", ""]]
    assert chart.layout["xaxis"]["ticktext"] == ["1", "2", "3"]
    assert chart.layout["yaxis"]["ticktext"] == ["a 1", "b 2", "c 3"]
    assert figure_title(figure, rows) == "P(dominates) by encoder"


def test_a_figure_grows_with_its_names() -> None:
    figure = Figure("intervals", "crs", "encoder_id")
    heights = [
        charts(figure, pl.DataFrame({"crs": [0.5] * n, "encoder_id": [str(i) for i in range(n)]}), "p", NONE)[0]
        for n in (2, 50)
    ]
    assert [chart.layout["height"] for chart in heights] == [86 + 24 * 2, 86 + 24 * 50]


def test_long_names_keep_both_ends() -> None:
    names = ["efficientnet_lite2_middle", "efficientnet_lite0_middle"]
    (chart,) = charts(
        Figure("bars", "crs", "encoder_id"), pl.DataFrame({"crs": [1.0, 2.0], "encoder_id": names}), "p", NONE
    )
    ticks = chart.layout["yaxis"]["ticktext"]
    assert ticks[0] == "efficient…te2_middle" and len(set(ticks)) == 2
    assert chart.layout["yaxis"]["tickvals"] == names


def test_equal_values_still_have_an_axis() -> None:
    (chart,) = charts(
        Figure("box", "tau_b", "mode"), pl.DataFrame({"tau_b": [1.0, 1.0], "mode": ["a", "a"]}), "p", NONE
    )
    assert chart.layout["xaxis"]["range"] == [0.95, 1.05]
    assert chart.traces[0]["customdata"] == [[], []]


def test_bars_begin_at_zero_and_logarithms_show_every_value() -> None:
    rows = pl.DataFrame(
        {"n_positive": [5, 10, 8, 9], "class_name": list("abcd"), "label_fraction": [0.01, 1.0, 0.05, 0.1]}
    )
    (bars,) = charts(Figure("bars", "n_positive", "class_name"), rows, "p", NONE)
    assert bars.layout["xaxis"]["range"][0] == -0.5
    (log,) = charts(Figure("lines", "label_fraction", "n_positive", is_log_x=True), rows, "p", NONE)
    assert log.layout["xaxis"]["tickvals"] == [0.01, 0.05, 0.1, 1.0] and log.layout["xaxis"]["type"] == "log"
    assert log.layout["xaxis"]["ticktext"] == ["0.01", "0.05", "", "1"]  # .1 would run into .05 on a phone


@pytest.mark.parametrize(("ranks", "tick"), [([1, 2], 1), ([1, 15], 1), ([1, 40], None), ([0.1, 0.9], None)])
def test_few_ranks_have_a_tick_each(ranks: list[float], tick: int | None) -> None:
    rows = pl.DataFrame({"rank": ranks, "axis": ["a", "b"]})
    (chart,) = charts(Figure("intervals", "rank", "axis"), rows, "p", NONE)
    assert chart.layout["xaxis"].get("dtick") == tick


def test_a_bar_of_zero_shows_its_edge() -> None:
    (trace,) = traces_of(Figure("bars", "rank", "axis"), pl.DataFrame({"rank": [0, 0], "axis": ["a", "b"]}))
    assert trace["marker"]["line"]["width"] > 0


def test_nothing_is_drawn_of_nothing() -> None:
    rows = pl.DataFrame({"crs": [None, 0.5], "rank": [1, 2], "mode": ["a", "b"]}, schema_overrides={"crs": pl.Float64})
    figure = Figure("points", "crs", "rank", where={"mode": "a"})
    assert drawn_rows(figure, rows).is_empty()
    assert charts(figure, drawn_rows(figure, rows), "p", NONE) == []
    assert drawn_rows(replace(figure, where={}), rows).height == 1
