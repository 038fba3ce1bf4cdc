from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import duckdb
import pytest

from crsbench_assets.config.errors import StorageError
from crsbench_assets.report.frames import read_frames
from crsbench_assets.report.sections import GROUPS, LEADERBOARD, SECTIONS
from crsbench_assets.report.words import HEADINGS, spoken
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.tables.analyses import ANALYSIS_TABLES
from crsbench_assets.tables.ddl import create_table
from crsbench_assets.tables.registry import TABLES
from crsbench_assets_tests.report.conftest import Rows
from crsbench_assets_tests.report.pages import Element, plots

ON_REQUEST = {"depth_sweep", "lora_transfer", "prompting"}
"""Analyses that this version does not compute."""


def test_every_analysis_has_a_section() -> None:
    keys = [section.key for section in SECTIONS]
    assert len(keys) == len(set(keys))
    assert {table.name for table in ANALYSIS_TABLES} - ON_REQUEST <= set(keys)
    assert {section.source for section in SECTIONS} <= TABLES.keys()
    assert [*dict.fromkeys(section.group for section in SECTIONS)] == list(GROUPS)


def test_every_column_has_a_heading(warehouse: Rows) -> None:
    shown = {
        row["column_name"]
        for query in [part.query for part in SECTIONS] + [LEADERBOARD.query]
        for row in warehouse(f"DESCRIBE {query}")
    }
    drawn = {name for part in SECTIONS for one in part.figures for name in (one.x, one.y, one.value) if name}
    assert shown | drawn == HEADINGS.keys()


def test_values_are_said_without_underscores() -> None:
    assert spoken("category", "broad_medical") == "broad medical"
    assert spoken("encoder_id", "vit_b") == "vit_b"
    assert spoken("class_name", "a_b") == "a_b"
    assert spoken("exposure", '{"ward": "not_seen"}') == "ward: not seen"
    assert spoken("domains", "[]") == "none"
    assert (spoken("dataset_id", ""), spoken("licence", None), spoken("is_primary", False)) == (
        "all",
        "not recorded",
        "no",
    )


def test_tables_hold_the_numbers_of_the_warehouse(page: Element, warehouse: Rows) -> None:
    n_shown = 0
    for part in SECTIONS:
        rows = warehouse(part.query)
        section = page.one("section", id=part.key)
        bodies = list(section.all("tbody"))
        assert len(bodies) == bool(rows)
        if not rows:
            assert (part.empty or "Not computed: the table has no rows for this panel.") in section.text
            continue
        lines = list(bodies[0].all("tr"))
        assert len(lines) == len(rows)
        for line, row in zip(lines, rows, strict=True):
            expected = [float(v) for v in row.values() if isinstance(v, int | float) and not isinstance(v, bool)]
            assert line.numbers == pytest.approx(expected, abs=1e-14)
            n_shown += len(expected)
    assert n_shown > 1000


def test_figures_draw_the_numbers_of_the_warehouse(page: Element, warehouse: Rows) -> None:
    """What a file of a plot says, point by point, is what the query says."""
    figures = [(part.key, place, one, part.query) for part in SECTIONS for place, one in enumerate(part.figures)]
    drawn, n_points = plots(page), 0
    for key, place, figure, query in [("leaderboard", 0, LEADERBOARD, ""), *figures]:
        rows = [
            row
            for row in warehouse(figure.query or query)
            if all(row[name] == value for name, value in figure.where.items())
            and all(row[name] is not None for name in (figure.x, figure.y, figure.value) if name)
        ]
        found: list[tuple[Any, ...]] = []
        columns: list[str] = []
        for plot_id, traces in drawn["traces"].items():
            if plot_id.startswith(f"{key}/{place}/"):
                columns = drawn["layouts"][plot_id]["meta"]["columns"]
                found += points(traces)
        assert bool(found) == bool(rows), key
        if rows:
            assert {figure.x, figure.y} <= set(columns[:2])
            expected = [tuple(row[name] for name in columns) for row in rows]
            assert sorted(found, key=repr) == sorted(expected, key=repr), key
        n_points += len(found)
    assert n_points > 1000


def points(traces: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return what the CSV of a plot holds."""
    found: list[tuple[Any, ...]] = []
    for trace in traces:
        if "z" in trace:
            found += [
                (x, y, value)
                for y, line in zip(trace["y"], trace["z"], strict=True)
                for x, value in zip(trace["x"], line, strict=True)
                if value is not None
            ]
        elif "meta" in trace:
            assert trace["x"] == [trace["meta"]["row"][0]] * 2
            found.append(tuple(trace["meta"]["row"]))
        elif "customdata" in trace:
            found += [(x, y, *told) for x, y, told in zip(trace["x"], trace["y"], trace["customdata"], strict=True)]
    return found


def test_rows_of_another_panel_are_left_out() -> None:
    for part in SECTIONS:
        if any(column.name == "panel_id" for column in TABLES[part.source].columns):
            assert "panel_id = (SELECT panel_id FROM warehouse_info)" in part.query


def test_summaries_count_all_rows(reported_home: HomeLayout, warehouse: Rows) -> None:
    frames = read_frames(reported_home)
    for table in ("panel_perturbations", "weight_perturbations"):
        shown = frames.sections[table].get_column("n_perturbations").sum()
        assert [shown] == [row["n"] for row in warehouse(f"SELECT count(*) AS n FROM {table}")]


def test_curves_under_corruption_begin_at_the_clean_images(warehouse: Rows) -> None:
    (part,) = (part for part in SECTIONS if part.key == "corruption_curves")
    rows = {
        (row["dataset_id"], row["encoder_id"], row["corruption"], row["severity"]): row["macro_auroc_mean"]
        for row in warehouse(part.query)
    }
    records = warehouse("SELECT * FROM seed_aggregates WHERE label_fraction = 1")
    corrupted = [row for row in records if "-s" in row["condition_id"]]
    assert len(rows) == len(corrupted) + len({key[:3] for key in rows}) and corrupted
    for row in records:
        kind, _, severity = row["condition_id"].partition("-s")
        for key, value in rows.items():
            if key[:2] == (row["dataset_id"], row["encoder_id"]) and (
                key[2:] == (kind, int(severity or -1)) or (kind == "clean" and key[3] == 0)
            ):
                assert value == row["macro_auroc_mean"]


def test_a_reason_is_said_once(page: Element) -> None:
    section = page.one("section", id="bootstrap_ranks")
    assert section.text.count("what is redrawn is not seeds alone") == 1
    (said,) = section.having("reasons")
    assert len(list(said.all("li"))) == len({entry.text for entry in said.all("li")})


def test_controls_are_marked_and_last(page: Element, warehouse: Rows) -> None:
    body = page.one("table", id="institutional_shift-table").one("tbody")
    assert [next(line.all("td")).text.endswith("control") for line in body.all("tr")] == [False, False, True]
    (floor,) = warehouse("SELECT crs FROM leaderboard WHERE encoder_id = 'floor'")
    (line,) = (trace["meta"]["row"] for trace in plots(page)["traces"]["leaderboard/0/0"] if "meta" in trace)
    assert line[:2] == [floor["crs"], "floor"]
    assert "control floor" in page.one("section", id="leaderboard").having("legend")[0].text


def test_long_tables_are_folded(page: Element, warehouse: Rows) -> None:
    for part in SECTIONS:
        rows = warehouse(part.query)
        folds = [fold.text for fold in page.one("section", id=part.key).all("summary")]
        assert (f"Table of {len(rows)} rows" in folds) == (len(rows) > 12 and not part.choices)


def test_the_reader_chooses_by_dataset_labels_and_error(page: Element, warehouse: Rows) -> None:
    section = page.one("section", id="choice")
    choices = [[option.attributes["value"] for option in one.all("option")] for one in section.all("select")]
    fractions = [str(row["f"]) for row in warehouse("SELECT DISTINCT label_fraction AS f FROM seed_aggregates")]
    assert choices[0] == ["chest", "skin"] and sorted(choices[1]) == sorted(fractions)
    headers = [header.one("button").attributes["title"] for header in section.one("thead").all("th")]
    fields = [*section.all("select"), section.one("input")]
    named = [headers[int(one.attributes["data-column"])].split(":")[0] for one in fields]
    assert named == ["dataset_id", "label_fraction", "ece_mean"]


def test_a_warehouse_of_another_version_is_refused_in_one_sentence(
    reported_home: HomeLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crsbench_assets.report.frames.LABELS", "FROM table_of_tomorrow")
    with pytest.raises(StorageError, match="another version of crsbench published it: run `crsbench publish`"):
        read_frames(reported_home)


# quarantine: a and b of the dataset, x of its target. In no split: a and b for that, c beyond a cap, d and e in groups
# with test images; each stands there once per seed
def test_whoever_was_left_out_is_counted_once() -> None:
    (query,) = (part.query for part in SECTIONS if part.key == "quarantine")
    with closing(duckdb.connect()) as connection:
        connection.execute("CREATE TABLE quarantine (dataset_id TEXT, source_id TEXT, image_id TEXT, reason TEXT)")
        connection.execute(
            "INSERT INTO quarantine VALUES ('skin', 'primary', 'a', 'unreadable'), "
            "('skin', 'primary', 'b', 'constant'), ('skin', 'ward', 'x', 'unreadable')"
        )
        connection.execute("CREATE TABLE splits (dataset_id TEXT, image_id TEXT, seed INT, split TEXT, reason TEXT)")
        for image_id, split, reason in (
            ("a", "left_out", "excluded"),
            ("b", "left_out", "excluded"),
            ("c", "left_out", "excluded"),
            ("d", "left_out", "group_in_declared_test"),
            ("e", "left_out", "group_in_declared_test"),
            ("f", "train", None),
            ("x", "test", None),
        ):
            for seed in (0, 1):
                connection.execute("INSERT INTO splits VALUES ('skin', ?, ?, ?, ?)", [image_id, seed, split, reason])
        assert connection.sql(query).fetchall() == [
            ("skin", "primary", 1, "constant"),
            ("skin", "primary", 1, "excluded"),
            ("skin", "primary", 1, "unreadable"),
            ("skin", "primary", 2, "group_in_declared_test"),
            ("skin", "ward", 1, "unreadable"),
        ]


def test_grades_stand_in_their_order_also_without_the_table_of_datasets() -> None:
    (query,) = (part.query for part in SECTIONS if part.key == "dataset_statistics")
    grades = ("none", "mild", "severe", "a worse one")
    rows = TABLES["dataset_statistics"].empty()
    with closing(duckdb.connect()) as connection:
        for name in ("datasets", "dataset_statistics"):
            connection.execute(create_table(TABLES[name], "main"))
        for n, grade in enumerate(grades):
            row = dict.fromkeys(rows.columns, 0) | {"dataset_id": "eyes", "source_id": "primary", "class_name": grade}
            row |= {"split": "test", "n_positive": n, "reason": None}
            values = [row[name] for name in rows.columns]
            connection.execute(f"INSERT INTO dataset_statistics VALUES ({', '.join('?' * len(values))})", values)
        assert sorted(row[3] for row in connection.sql(query).fetchall()) == sorted(grades)
        columns = TABLES["datasets"].column_names
        row = dict.fromkeys(columns, "") | {"dataset_id": "eyes", "task": "ordinal", "classes": json.dumps(grades)}
        row |= {"n_classes": 4, "is_synthetic": False}
        connection.execute(f"INSERT INTO datasets VALUES ({', '.join('?' * len(columns))})", [row[c] for c in columns])
        assert [row[3] for row in connection.sql(query).fetchall()] == list(grades)
