"""Options that several commands share.

What lives here: their types and help texts. What stays out: what commands do.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[
    Path | None,
    typer.Option("--home", help="The crsbench home; default: CRSBENCH_HOME, else ./crsbench_home.", show_default=False),
]


class TableFormat(StrEnum):
    """How a command prints."""

    table = "table"
    json = "json"


class RowFormat(StrEnum):
    """How rows are printed."""

    table = "table"
    csv = "csv"
    json = "json"


Format = Annotated[TableFormat, typer.Option("--format", help="table for people, json for programs.")]
