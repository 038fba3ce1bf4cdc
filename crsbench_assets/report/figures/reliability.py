"""Reliability diagrams: stated confidence against observed frequency, one panel per cell.

What lives here: the panels of each dataset with their traces, and the sentence that stands where there is nothing to
draw. What stays out: the pooling over seeds (``frames``), the page around the panels (``html``).
Source: Guo et al. (2017), ICML, arXiv 1706.04599, figure 1 (the diagram); Bröcker and Smith (2007),
doi:10.1175/WAF993.1 (points at the mean confidence of a bin rather than its centre, counts beside them); protocol page,
section 5.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from crsbench_assets.config.ids import CLEAN, shift_condition
from crsbench_assets.tables.reasons import REASONS

if TYPE_CHECKING:
    import polars as pl

    from crsbench_assets.report.frames import ReportFrames

# mid-tones: at least 3:1 against the page's white and against its dark
POINT_COLOUR = "#3578c6"
RULE_COLOUR = "#7d8590"
GRID_COLOUR = "rgba(125, 133, 144, 0.25)"

PLOT_LAYOUT: dict[str, Any] = {
    "autosize": True,
    "font": {"size": 11, "family": "system-ui, sans-serif"},
    "paper_bgcolor": "rgba(0, 0, 0, 0)",
    "plot_bgcolor": "rgba(0, 0, 0, 0)",
    "showlegend": False,
    "hovermode": "closest",
    "dragmode": False,  # a finger on a plot scrolls the page
}
"""What every plot of the report has in common."""


@dataclass(frozen=True)
class Diagram:
    """One condition of a panel.

    Args:
        condition_id: ``clean``, or the shift target's.
        plot_id: key of its traces; None where there is nothing to draw.
        record: the row of ``ReportFrames.calibration``, or None.
        reason: a sentence where ``plot_id`` is None.
    """

    condition_id: str
    plot_id: str | None
    record: dict[str, Any] | None
    reason: str | None


@dataclass(frozen=True)
class Panel:
    """One cell: its encoder, its status where that is not ``ok``, and a diagram per condition of its dataset."""

    encoder: dict[str, Any]
    status: str | None
    diagrams: tuple[Diagram, ...]


@dataclass(frozen=True)
class DatasetDiagrams:
    """The panels of a dataset in the order of the leaderboard, and its labels where it is multi-label.

    Args:
        dataset: the row of the table.
        conditions: ids of what can be shown; the first is ``clean``.
        n_seeds: seeds that are pooled; 0 where no record is published.
        panels: one per cell of the grid.
        labels: encoder, and its rows of ``ReportFrames.labels`` in the order of the dataset's card.
    """

    dataset: dict[str, Any]
    conditions: tuple[str, ...]
    n_seeds: int
    panels: tuple[Panel, ...]
    labels: tuple[tuple[dict[str, Any], list[dict[str, Any]]], ...]


def explain(reason: str | None) -> str:
    """Return a reason for people: the meaning of its code with the code, or the text as it is.

    Args:
        reason: a code of ``tables.reasons``, several joined by commas, ``stage: code`` or ``stage: sentence``.

    Example:
        >>> explain("one_class_train")
        'the training subset holds one value of this label (one_class_train)'
    """
    if not reason:
        return "no reason is recorded"
    codes = reason.split(": ", 1)[-1].split(", ")
    if all(code in REASONS for code in codes):
        return f"{'; '.join(REASONS[code] for code in codes)} ({reason})"
    return reason


def reliability_diagrams(frames: ReportFrames) -> list[DatasetDiagrams]:
    """Return the panels of every dataset, in order of id.

    Every cell of the grid has a panel: one that failed or does not apply says why instead of showing an empty plot.
    """
    order = {encoder_id: place for place, encoder_id in enumerate(frames.leaderboard.get_column("encoder_id"))}
    encoders = sorted(
        frames.encoders.iter_rows(named=True), key=lambda row: (order.get(row["encoder_id"], len(order)), row["name"])
    )
    return [_of_dataset(frames, dataset, encoders) for dataset in frames.datasets.iter_rows(named=True)]


def reliability_traces(frames: ReportFrames) -> dict[str, list[dict[str, Any]]]:
    """Return the Plotly traces of every diagram that can be drawn, by its ``plot_id``.

    The diagonal of perfect calibration, the points (x: mean stated probability of the bin, y: observed frequency,
    ``customdata``: the entries), and the entries of the bins as bars below them.
    """
    traces = {}
    for key, bins in frames.reliability.group_by("dataset_id", "encoder_id", "condition_id", maintain_order=True):
        traces["/".join(map(str, key))] = _traces(bins)
    return traces


def reliability_layouts(frames: ReportFrames) -> dict[str, dict[str, Any]]:
    """Return the Plotly layout that the diagrams of a dataset share, by dataset: its panels compare at a glance."""
    return {
        str(dataset_id): _layout(bins.get_column("n").to_list())
        for (dataset_id,), bins in frames.reliability.group_by("dataset_id", maintain_order=True)
    }


def _of_dataset(frames: ReportFrames, dataset: dict[str, Any], encoders: list[dict[str, Any]]) -> DatasetDiagrams:
    import polars as pl

    here = pl.col("dataset_id") == dataset["dataset_id"]
    conditions = (CLEAN, *([shift_condition(dataset["shift_id"])] if dataset["shift_id"] else []))
    cells = {row["encoder_id"]: row for row in frames.cells.filter(here).iter_rows(named=True)}
    records = {
        (row["encoder_id"], row["condition_id"]): row for row in frames.calibration.filter(here).iter_rows(named=True)
    }
    drawn = set(frames.reliability.filter(here).select("encoder_id", "condition_id").unique().iter_rows())
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in frames.labels.filter(here).iter_rows(named=True):
        rows.setdefault(row["encoder_id"], []).append(row)
    place = {name: i for i, name in enumerate(json.loads(dataset["classes"]))}

    def panel(encoder: dict[str, Any]) -> Panel:
        cell = cells[encoder["encoder_id"]]
        status = None if cell["status"] == "ok" else cell["status"]
        return Panel(encoder, status, tuple(diagram(cell, condition_id) for condition_id in conditions))

    def diagram(cell: dict[str, Any], condition_id: str) -> Diagram:
        key = (cell["encoder_id"], condition_id)
        record = records.get(key)
        if key in drawn:
            return Diagram(condition_id, "/".join((dataset["dataset_id"], *key)), record, None)
        return Diagram(condition_id, None, record, _why_empty(cell, record))

    return DatasetDiagrams(
        dataset=dataset,
        conditions=conditions,
        n_seeds=max((row["n_seeds"] for row in records.values()), default=0),
        panels=tuple(panel(encoder) for encoder in encoders if encoder["encoder_id"] in cells),
        labels=tuple(
            (encoder, sorted(rows[encoder["encoder_id"]], key=lambda row: place.get(row["class_name"], len(place))))
            for encoder in encoders
            if encoder["encoder_id"] in rows
        ),
    )


def _why_empty(cell: dict[str, Any], record: dict[str, Any] | None) -> str:
    """Return the sentence for a diagram without bins."""
    if record is not None:
        return explain(record["reason"])
    if cell["status"] in ("ok", "retired"):
        return "no record of this condition is published"
    return explain(cell["reason"])


def _layout(counts: list[int]) -> dict[str, Any]:
    """Return the layout of diagrams whose bins have these entries.

    Entries stand on a logarithmic axis: a rare label has thousands in its first bin and a handful in its last.
    """
    import plotly.graph_objects as go

    low, high = math.floor(math.log10(min(counts))), math.log10(max(counts))
    decades = sorted({10**low, 10 ** math.floor(high)})
    axis = {"fixedrange": True, "zeroline": False, "gridcolor": GRID_COLOUR}
    unit = axis | {
        "range": [-0.03, 1.03],
        "tickvals": [0, 0.25, 0.5, 0.75, 1],
        "ticktext": ["0", "", "0.5", "", "1"],
    }
    entries = axis | {
        "type": "log",
        "range": [low - 0.3, high + 0.1],  # a bar of the smallest count is still seen
        "tickvals": decades,
        "ticktext": [f"{decade // 1000}k" if decade >= 1000 else str(decade) for decade in decades],
    }
    layout = go.Layout(
        **PLOT_LAYOUT,
        margin={"l": 46, "r": 8, "t": 6, "b": 38},
        bargap=0.1,
        xaxis=unit | {"title": {"text": "stated", "standoff": 4}, "anchor": "y2"},
        yaxis=unit | {"title": {"text": "observed", "standoff": 4}, "domain": [0.3, 1]},
        yaxis2=entries | {"title": {"text": "n", "standoff": 4}, "domain": [0, 0.2]},
        meta={"columns": ["mean_confidence", "mean_label", "n"], "has_legend": False},
    )
    return dict(layout.to_plotly_json())


def _traces(bins: pl.DataFrame) -> list[dict[str, Any]]:
    import plotly.graph_objects as go

    n = bins.get_column("n").to_list()
    width = (bins.get_column("bin_high") - bins.get_column("bin_low")).to_list()
    centre = ((bins.get_column("bin_high") + bins.get_column("bin_low")) / 2).to_list()
    diagonal = go.Scatter(
        x=[0, 1], y=[0, 1], mode="lines", line={"color": RULE_COLOUR, "dash": "dash", "width": 1}, hoverinfo="skip"
    )
    points = go.Scatter(
        x=bins.get_column("mean_confidence").to_list(),
        y=bins.get_column("mean_label").to_list(),
        customdata=[[count] for count in n],
        mode="lines+markers",
        marker={"color": POINT_COLOUR, "size": 6},
        line={"color": POINT_COLOUR, "width": 1.5},
        hovertemplate="stated %{x:.3f}<br>observed %{y:.3f}<br>n %{customdata[0]:,}<extra></extra>",
    )
    counts = go.Bar(
        x=centre,
        y=n,
        width=width,
        yaxis="y2",
        marker={"color": RULE_COLOUR},
        hovertemplate="n %{y:,}<extra></extra>",
    )
    return [dict(trace.to_plotly_json()) for trace in (diagonal, points, counts)]
