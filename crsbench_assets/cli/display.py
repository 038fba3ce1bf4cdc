"""Tables and sentences on a terminal.

What lives here: the one console, and how rows, plans and leaderboards look. What stays out: what they say. Colours
and bars go away by themselves when the output is piped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 240
"""Columns of output that no terminal limits: wide enough that no cell is folded."""

console = Console(highlight=False, width=None if sys.stdout.isatty() else PIPED_WIDTH)

STATUS_MARK = {
    "ok": "[green]ok[/]",
    "missing": "[yellow]missing[/]",
    "stale": "[yellow]stale[/]",
    "running": "[cyan]running[/]",
    "failed": "[red]failed[/]",
    "not_applicable": "[dim]n/a[/]",
    "retired": "[dim]retired[/]",
}


FOLDED_WIDTH = 14
"""A cell may be folded to this many characters; a table that needs less is shown as one line per value."""


def say(text: str) -> None:
    """Print a line for people; markup in names is shown as text."""
    console.print(text, markup=False, soft_wrap=True)


def say_json(value: Any) -> None:
    """Print JSON for programs, without colour or wrapping."""
    console.file.write(json.dumps(value, indent=1, default=str) + "\n")


def show_rows(names: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None) -> None:
    """Print rows as a table; NULL is an empty cell, numbers have four decimals."""
    from rich.text import Text

    rows = [[_cell(value) for value in row] for row in rows]
    widths = [min(FOLDED_WIDTH, max(map(len, column))) for column in zip(names, *rows, strict=True)]
    if sum(widths) + 3 * len(names) + 1 > console.width:
        _show_records(names, rows, title)
        return
    table = Table(title=title, title_justify="left")
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*[Text(text) for text in row])
    console.print(table)


def _show_records(names: Sequence[str], rows: Sequence[Sequence[str]], title: str | None) -> None:
    if title:
        say(title)
    width = max(map(len, names))
    for number, row in enumerate(rows, start=1):
        say(f"-- {number} of {len(rows)}")
        for name, text in zip(names, row, strict=True):
            say(f"{name:<{width}}  {text}")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return f"{value:.4f}" if isinstance(value, float) else str(value)


def duration(seconds: float | None) -> str:
    """Return a time for people."""
    if seconds is None:
        return "unknown until the first cell is done"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def number(n: int | None) -> str:
    """Return a count for people."""
    return "an unknown number of" if n is None else f"{n:,}"


def size(n_bytes: float | None) -> str:
    """Return a size for people."""
    if n_bytes is None:
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 1000:
            return f"{n_bytes:.0f} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.1f} TB"
