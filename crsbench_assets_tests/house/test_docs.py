from __future__ import annotations

import pytest

from crsbench_assets.operations.generated_docs import WAREHOUSE_PAGE, warehouse_page
from crsbench_assets.planning.stages import STAGE_OF_TABLE
from crsbench_assets.tables.ddl import VIEWS, WAREHOUSE_INFO, ViewSpec
from crsbench_assets.tables.docs import warehouse_markdown
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.tables.schema import TableSpec


def test_the_page_is_what_the_shapes_say() -> None:
    assert WAREHOUSE_PAGE.read_text(encoding="utf-8") == warehouse_page(), (
        "run `python -m crsbench_assets.operations.generated_docs`"
    )


def test_every_table_view_and_column_is_described() -> None:
    sections = {part.split("\n", 1)[0]: part for part in warehouse_page().split("\n### ")[1:]}
    shapes: list[TableSpec | ViewSpec] = [*TABLES.values(), WAREHOUSE_INFO, *VIEWS]
    for shape in shapes:
        section = sections[shape.name]
        assert shape.description in section
        for column in shape.columns:
            assert f"| `{column.name}` |" in section


def test_tables_without_a_stage_say_so() -> None:
    sections = {part.split("\n", 1)[0]: part for part in warehouse_page().split("\n### ")[1:]}
    said = {name for name, section in sections.items() if "Not computed in this version" in section}
    assert said == {name for name, spec in TABLES.items() if spec.grain != "publication"} - STAGE_OF_TABLE.keys()


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(ValueError, match="no such tables: nonsense"):
        warehouse_markdown(["nonsense", "run_records"])
