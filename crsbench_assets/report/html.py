"""The report as one HTML file: tables and figures of the published warehouse, readable from disk, offline.

What lives here: putting rows and figures into the templates beside this file, and writing the file into the home. What
stays out: the rows (``frames``), what is drawn (``figures``), look and behaviour (``templates``). Names come from cards
that anybody may have written, so every text is escaped; a content security policy in the page lets the browser ask no
host for anything.
Source: interfaces page, "Home" and "CLI".
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.ids import CLEAN
from crsbench_assets.config.protocol import AXES
from crsbench_assets.report.decision import LIMITS, findings
from crsbench_assets.report.figures.charts import charts, figure_title, series_key
from crsbench_assets.report.figures.reliability import (
    explain,
    reliability_diagrams,
    reliability_layouts,
    reliability_traces,
)
from crsbench_assets.report.frames import read_frames
from crsbench_assets.report.marks import Marks
from crsbench_assets.report.sections import GROUPS, LEADERBOARD, SECTIONS
from crsbench_assets.report.words import heading, spoken
from crsbench_assets.storage.files import replace_bytes
from crsbench_assets.tables.registry import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable
    from collections.abc import Set as AbstractSet

    import polars as pl

    from crsbench_assets.report.figures.charts import Chart, Figure
    from crsbench_assets.report.frames import ReportFrames
    from crsbench_assets.report.sections import Section
    from crsbench_assets.storage.layout import HomeLayout

TEMPLATES = Path(__file__).parent / "templates"

_OPEN_ROWS = 12
"""A longer table is folded, so that the page can be read from section to section."""

AXIS_LABELS = {name: name.replace("_", " ").capitalize() for name in AXES}


def write_report(layout: HomeLayout) -> Path:
    """Write ``reports/report.html`` of a home from its published warehouse, and return the file's path.

    Raises:
        ConfigError: plotly or jinja2 is not installed.
        StorageError: nothing is published, the snapshot is not what was published, or the disk refuses.
    """
    missing = [name for name in ("plotly", "jinja2") if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"The report needs packages that are not installed ({', '.join(missing)}): "
            "run `pip install 'crsbench[report]'`."
        )
    path = layout.root / "reports" / "report.html"
    replace_bytes(path, render_report(read_frames(layout)).encode())
    return path


def render_report(frames: ReportFrames) -> str:
    """Return the page.

    A number that is shown rounded stands unrounded in the ``value`` of its ``data`` element; what the figures draw
    stands in the JSON element ``plots``.
    """
    import jinja2
    from plotly.offline import get_plotlyjs

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(explain=explain, condition=_condition)
    environment.globals.update(heading=heading, spoken=spoken)
    controls = frozenset(frames.encoders.filter(role="control").get_column("encoder_id"))
    board = _plots((LEADERBOARD,), frames.drawn["leaderboard"], "leaderboard", controls)
    parts = [_part(section, frames, controls) for section in SECTIONS]
    drawn = [chart for plots in (board, *(part.plots for part in parts)) for plot in plots for chart in plot.charts]
    leaderboard = frames.leaderboard.to_dicts()
    marks = Marks(frames.encoders, frames.datasets)
    is_synthetic = [
        *frames.encoders.get_column("is_synthetic"),
        *frames.datasets.get_column("is_synthetic"),
    ]
    return environment.get_template("report.html.j2").render(
        info=frames.info,
        axes=AXIS_LABELS,
        candidates=[row for row in leaderboard if row["role"] != "control"],
        controls=[row for row in leaderboard if row["role"] == "control"],
        board_plots=board,
        marks=marks,
        any_marks=any(marks.of_encoder(row["encoder_id"]) for row in leaderboard),
        names=dict(frames.encoders.select("encoder_id", "name").iter_rows()),
        control_ids=controls,
        is_retired=dict(frames.encoders.select("encoder_id", "is_retired").iter_rows()),
        any_synthetic=any(is_synthetic),
        all_synthetic=all(is_synthetic),
        diagrams=reliability_diagrams(frames),
        findings=findings(frames),
        limits=LIMITS,
        groups={key: (title, [part for part in parts if part.section.group == key]) for key, title in GROUPS.items()},
        plots={
            "layouts": reliability_layouts(frames) | {chart.plot_id: chart.layout for chart in drawn},
            "traces": reliability_traces(frames) | {chart.plot_id: chart.traces for chart in drawn},
        },
        plotly_js=_inlined(get_plotlyjs()),
        style=_inlined((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=_inlined((TEMPLATES / "report.js").read_text(encoding="utf-8")),
    )


@dataclass(frozen=True)
class Plots:
    """A figure of a section.

    Args:
        title: what is drawn against what.
        key: marker, colour and name of every series.
        charts: its plots, at least one.
        blocks: values that fold plots together, in order; one empty string for no folding.
    """

    title: str
    key: list[tuple[str, str, str]]
    charts: list[Chart]
    blocks: list[str]


@dataclass(frozen=True)
class Column:
    """A column of a table: its heading, its meaning with its name, and whether numbers stand in it."""

    name: str
    title: str
    meaning: str
    is_number: bool


@dataclass(frozen=True)
class Part:
    """A section with its rows.

    Args:
        section: what is asked.
        plots: its figures that have something to draw.
        rows: of its table; empty where there are none.
        columns: that are shown.
        reasons: the words for every reason in the rows, by code.
        choices: for every column of ``section.choices`` its values.
        is_folded: the table opens on request.
    """

    section: Section
    plots: list[Plots]
    rows: list[dict[str, Any]]
    columns: list[Column]
    reasons: dict[str, str]
    choices: dict[str, list[Any]]
    is_folded: bool


def _plots(
    figures: Iterable[Figure], drawn: Iterable[pl.DataFrame], prefix: str, controls: AbstractSet[str]
) -> list[Plots]:
    found = []
    for place, (figure, rows) in enumerate(zip(figures, drawn, strict=True)):
        if plots := charts(figure, rows, f"{prefix}/{place}", controls):
            blocks = list(dict.fromkeys(chart.block for chart in plots))
            found.append(Plots(figure_title(figure, rows), series_key(figure, rows, controls), plots, blocks))
    return found


def _part(section: Section, frames: ReportFrames, controls: AbstractSet[str]) -> Part:
    rows = frames.sections[section.key]
    meaning = {column.name: column.description for column in TABLES[section.source].columns}
    # a column of reasons without a reason says nothing
    shown = [name for name in rows.columns if not name.endswith("reason") or rows.get_column(name).count()]
    reasons = {text for name in shown if name.endswith("reason") for text in rows.get_column(name).drop_nulls()}
    return Part(
        section=section,
        plots=_plots(section.figures, frames.drawn[section.key], section.key, controls),
        rows=rows.to_dicts(),
        columns=[
            Column(name, heading(name), f"{name}: {meaning[name]}" if name in meaning else name, _is_number(rows[name]))
            for name in shown
        ],
        reasons={text: explain(text) for text in sorted(reasons)},
        choices={name: rows.get_column(name).unique(maintain_order=True).to_list() for name in section.choices},
        is_folded=rows.height > _OPEN_ROWS and not section.choices,
    )


def _is_number(values: pl.Series) -> bool:
    return bool(values.dtype.is_numeric())


def _condition(condition_id: str) -> str:
    """Return the words for a condition that diagrams are drawn of."""
    if condition_id == CLEAN:
        return "Clean test images"
    return f"Shift target {condition_id.removeprefix('shift_')}"


def _inlined(text: str) -> str:
    """Return the text of a script or style that we ship, which the template does not escape.

    Raises:
        ValueError: it would end its element early.
    """
    if "</script" in text.lower() or "</style" in text.lower():
        raise ValueError("a script or style that is inlined holds its own closing tag")
    return text
