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
from crsbench_assets.report.figures.analyses import drawn_rows, figure_layout, figure_traces
from crsbench_assets.report.figures.reliability import (
    explain,
    reliability_diagrams,
    reliability_layouts,
    reliability_traces,
)
from crsbench_assets.report.frames import read_frames
from crsbench_assets.report.sections import SECTIONS
from crsbench_assets.storage.files import replace_bytes
from crsbench_assets.tables.registry import TABLES

if TYPE_CHECKING:
    from crsbench_assets.report.frames import ReportFrames
    from crsbench_assets.report.sections import Section
    from crsbench_assets.storage.layout import HomeLayout

TEMPLATES = Path(__file__).parent / "templates"

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
    leaderboard = frames.leaderboard.to_dicts()
    layouts: dict[str, dict[str, Any]] = reliability_layouts(frames)
    traces = reliability_traces(frames)
    for section in SECTIONS:
        if section.figure and not (drawn := drawn_rows(section.figure, frames.analyses[section.table])).is_empty():
            layouts[_plot_id(section)] = figure_layout(section.figure, drawn)
            traces[_plot_id(section)] = figure_traces(section.figure, drawn)
    is_retired = dict(frames.encoders.select("encoder_id", "is_retired").iter_rows())
    is_synthetic = [
        *frames.encoders.get_column("is_synthetic"),
        *frames.datasets.get_column("is_synthetic"),
    ]
    return environment.get_template("report.html.j2").render(
        info=frames.info,
        axes=AXIS_LABELS,
        candidates=[row for row in leaderboard if row["role"] != "control"],
        controls=[row for row in leaderboard if row["role"] == "control"],
        is_retired=is_retired,
        any_synthetic=any(is_synthetic),
        all_synthetic=all(is_synthetic),
        diagrams=reliability_diagrams(frames),
        findings=findings(frames),
        limits=LIMITS,
        analyses=[_analysis(section, frames, layouts) for section in SECTIONS],
        plots={"layouts": layouts, "traces": traces},
        plotly_js=_inlined(get_plotlyjs()),
        style=_inlined((TEMPLATES / "report.css").read_text(encoding="utf-8")),
        script=_inlined((TEMPLATES / "report.js").read_text(encoding="utf-8")),
    )


@dataclass(frozen=True)
class AnalysisPart:
    """A section with its rows.

    Args:
        section: what is asked.
        rows: what is shown; empty where the table has no rows.
        columns: columns shown, each with its meaning; empty where it is a summary.
        plot_id: key of its traces; None where there is nothing to draw.
        height: of the figure, in CSS pixels.
    """

    section: Section
    rows: list[dict[str, Any]]
    columns: dict[str, str]
    plot_id: str | None
    height: int


def _plot_id(section: Section) -> str:
    return f"analysis/{section.table}"


def _analysis(section: Section, frames: ReportFrames, layouts: dict[str, dict[str, Any]]) -> AnalysisPart:
    rows = frames.analyses[section.table]
    meaning = {column.name: column.description for column in TABLES[section.table].columns}
    # a column of reasons without a reason says nothing
    shown = [name for name in rows.columns if not name.endswith("reason") or rows.get_column(name).count()]
    layout = layouts.get(_plot_id(section))
    return AnalysisPart(
        section=section,
        rows=rows.to_dicts(),
        columns={name: meaning.get(name, "") for name in shown},
        plot_id=_plot_id(section) if layout else None,
        height=layout["height"] if layout else 0,
    )


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
