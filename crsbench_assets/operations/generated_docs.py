"""Writes the pages that are made from code: ``docs/warehouse.md``.

What lives here: the page's place and what this version computes. What stays out: its text (``tables.docs``).
Run from a clone: ``python -m crsbench_assets.operations.generated_docs``.
"""

from __future__ import annotations

from pathlib import Path

from crsbench_assets.planning.stages import STAGE_OF_TABLE
from crsbench_assets.storage.files import replace_bytes
from crsbench_assets.tables.docs import warehouse_markdown

WAREHOUSE_PAGE = Path(__file__).parents[2] / "docs" / "warehouse.md"
"""The page in a clone; a wheel has no ``docs``."""


def warehouse_page() -> str:
    """Return the text that :data:`WAREHOUSE_PAGE` should hold."""
    return warehouse_markdown(STAGE_OF_TABLE.keys())


def main() -> None:
    """Write every generated page."""
    replace_bytes(WAREHOUSE_PAGE, warehouse_page().encode())


if __name__ == "__main__":
    main()
