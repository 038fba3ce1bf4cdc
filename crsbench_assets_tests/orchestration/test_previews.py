"""What the Dagster UI shows of rows."""

from __future__ import annotations

import base64
import xml.etree.ElementTree as ElementTree

import polars as pl

from crsbench_assets.orchestration.previews import MAX_PLOTTED, N_ROWS, Mark, first_rows, interval_plot, previews
from crsbench_assets.tables.registry import TABLES

RANKS = TABLES["ranks"]


def ranks(*rows: tuple[str, str, int | None, int | None, int | None]) -> pl.DataFrame:
    columns = ("encoder_id", "panel_id", "rank", "rank_lo", "rank_hi")
    given = pl.DataFrame([dict(zip(columns, row, strict=True)) for row in rows])
    return pl.concat(
        [RANKS.empty(), given.cast({"rank": pl.Int64, "rank_lo": pl.Int64, "rank_hi": pl.Int64})], how="diagonal"
    )


def texts(svg: str) -> list[str]:
    return [str(e.text) for e in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


def picture(markdown: str) -> str:
    return base64.b64decode(markdown.split("base64,")[1].rstrip(")")).decode()


def test_the_first_rows_have_the_table_s_columns_and_readable_numbers() -> None:
    rows = pl.DataFrame({"p_best": [1 / 3] * 30, "encoder_id": ["a"] * 30, "elsewhere": [0] * 30})
    shown = first_rows(RANKS, rows)
    assert [column.name for column in shown.schema.columns] == ["encoder_id", "p_best"]
    assert len(shown.records) == N_ROWS
    assert shown.records[0].data == {"encoder_id": "a", "p_best": 0.333333}


def test_lists_are_shown_as_text_and_absent_values_as_none() -> None:
    table = TABLES["embeddings"]
    shown = first_rows(
        table,
        table.empty()
        .select("image_id", "vector")
        .vstack(
            pl.DataFrame(
                {"image_id": [None], "vector": [[0.5, 1.0]]}, schema=table.empty().select("image_id", "vector").schema
            )
        ),
    )
    assert shown.records[0].data == {"image_id": None, "vector": "[0.5, 1.0]"}


def test_ranks_are_drawn_best_first_per_panel_and_those_without_one_are_left_out() -> None:
    rows = ranks(("a", "p", 2, 1, 3), ("b", "p", 1, None, None), ("c", "p", None, None, None), ("a", "q", 1, 1, 1))
    shown = previews(RANKS, rows)
    assert list(shown) == ["first rows", "plot p", "plot q"]
    assert texts(picture(shown["plot p"].md_str)) == ["rank against panel p", "b", "1", "a", "2 [1, 3]"]
    assert [record.data["encoder_id"] for record in shown["first rows"].records] == ["b", "a", "c", "a"]


def test_scores_are_drawn_largest_first() -> None:
    rows = pl.DataFrame({"encoder_id": ["a", "b"], "panel_id": ["p", "p"], "crs": [0.25, 0.75]})
    shown = previews(TABLES["crs_scores"], rows)
    assert texts(picture(shown["plot p"].md_str))[1:] == ["b", "0.75", "a", "0.25"]


def test_a_table_without_a_plot_shows_its_rows_alone() -> None:
    assert list(previews(TABLES["encoders"], TABLES["encoders"].empty())) == ["first rows"]


def test_a_picture_stays_below_50_kb_whatever_the_number_of_encoders() -> None:
    rows = ranks(*((f"{'<&>' * 20}{n}", "p", n, 1, 999) for n in range(1, 500)))
    markdown = previews(RANKS, rows)["plot p"].md_str
    assert len(markdown) < 50_000
    assert len(texts(picture(markdown))) == 1 + 2 * MAX_PLOTTED
    assert f"the first {MAX_PLOTTED} of 499 encoders" in picture(markdown)


def test_marks_stand_on_one_scale() -> None:
    svg = ElementTree.fromstring(interval_plot("t", [Mark("a", 0.0), Mark("b", 5.0, 0.0, 10.0), Mark("c", 10.0)]))
    first, middle, last = (float(e.attrib["cx"]) for e in svg.iter("{http://www.w3.org/2000/svg}circle"))
    assert middle - first == last - middle > 0


def test_equal_values_and_no_values_are_drawn() -> None:
    assert texts(interval_plot("t", [Mark("a", 1.0), Mark("b", 1.0)])) == ["t", "a", "1", "b", "1"]
    assert texts(interval_plot("t", [])) == ["t"]
