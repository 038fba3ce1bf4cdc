"""Figures of the analyses: values with intervals, points of two quantities, and matrices with their numbers.

What lives here: Plotly traces and layout of a section's rows. What stays out: which columns are drawn (``sections``),
the rows (``frames``), the page (``html``).
Source: protocol page, section 8.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crsbench_assets.report.figures.reliability import GRID_COLOUR, POINT_COLOUR, RULE_COLOUR

if TYPE_CHECKING:
    import polars as pl

    from crsbench_assets.report.sections import Figure

_SYMBOLS = ("circle", "square-open", "diamond", "x", "triangle-up-open", "cross")
"""Series are told apart by these, for all have one colour."""


def drawn_rows(figure: Figure, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that a figure shows: those it is of, with a value for each of its quantities.

    Example:
        >>> import polars as pl
        >>> from crsbench_assets.report.sections import Figure
        >>> drawn_rows(Figure("points", "a", "b"), pl.DataFrame({"a": [1, None], "b": [2, 3]})).height
        1
    """
    import polars as pl

    needed = [name for name in (figure.x, figure.y, figure.value) if name]
    return rows.filter(*(pl.col(name) == value for name, value in figure.where.items())).drop_nulls(needed)


def figure_traces(figure: Figure, rows: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the Plotly traces of the rows of ``drawn_rows``, at least one row."""
    import plotly.graph_objects as go

    if figure.kind == "matrix":
        trace = go.Heatmap(
            x=rows.get_column(figure.x).to_list(),
            y=rows.get_column(figure.y).to_list(),
            z=rows.get_column(figure.value).to_list(),
            texttemplate="%{z:.2f}",
            textfont={"color": "#1c2127"},
            # light throughout, so that the dark numbers stay readable
            colorscale=[[0, "#f7c9a3"], [0.5, "#ffffff"], [1, "#9cc3ee"]],
            zmin=-1,
            zmax=1,
            showscale=False,
            hovertemplate="%{y}, %{x}: %{z:.3f}<extra></extra>",
        )
        return [dict(trace.to_plotly_json())]
    traces = []
    if figure.is_compared:
        ends = [
            extreme(min(rows.get_column(figure.x)), min(rows.get_column(figure.y)))
            if extreme is min
            else extreme(max(rows.get_column(figure.x)), max(rows.get_column(figure.y)))
            for extreme in (min, max)
        ]
        traces.append(
            go.Scatter(
                x=ends,
                y=ends,
                mode="lines",
                line={"color": RULE_COLOUR, "dash": "dash", "width": 1},
                hoverinfo="skip",
                showlegend=False,
            )
        )
    parts = [((None,), rows)] if not figure.series else list(rows.group_by(figure.series, maintain_order=True))
    for place, ((name,), part) in enumerate(parts):
        traces.append(_series(figure, part, name, _SYMBOLS[place % len(_SYMBOLS)]))
    return [dict(trace.to_plotly_json()) for trace in traces]


def figure_layout(figure: Figure, rows: pl.DataFrame) -> dict[str, Any]:
    """Return the Plotly layout of the rows of ``drawn_rows``."""
    import plotly.graph_objects as go

    axis: dict[str, Any] = {"fixedrange": True, "zeroline": False, "gridcolor": GRID_COLOUR, "automargin": True}
    is_category = figure.kind != "points"
    labels = rows.get_column(figure.y).n_unique() if is_category else 0
    layout = go.Layout(
        autosize=True,
        height=max(320, 90 + 26 * labels),
        margin={"l": 60, "r": 12, "t": 12, "b": 56},
        font={"size": 11, "family": "system-ui, sans-serif"},
        paper_bgcolor="rgba(0, 0, 0, 0)",
        plot_bgcolor="rgba(0, 0, 0, 0)",
        showlegend=bool(figure.series),
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hovermode="closest",
        dragmode=False,
        scattermode="group",
        xaxis=axis
        | {"title": {"text": figure.x.replace("_", " ")}}
        | ({"type": "category", "categoryorder": "category ascending"} if figure.kind == "matrix" else {}),
        yaxis=axis
        | {"title": {"text": "" if is_category else figure.y.replace("_", " ")}}
        | ({"type": "category", "autorange": "reversed"} if is_category else {}),
    )
    return dict(layout.to_plotly_json())


def _series(figure: Figure, rows: pl.DataFrame, name: Any, symbol: str) -> Any:
    import plotly.graph_objects as go

    x, y = rows.get_column(figure.x).to_list(), rows.get_column(figure.y).to_list()
    bars = None
    if figure.kind == "intervals":
        bounds = list(zip(x, rows.get_column(figure.low), rows.get_column(figure.high), strict=True))
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [0.0 if high is None else high - value for value, _, high in bounds],
            "arrayminus": [0.0 if low is None else value - low for value, low, _ in bounds],
            "color": POINT_COLOUR,
        }
    names = rows.get_column("encoder_id").to_list() if "encoder_id" in rows.columns else [name or ""] * len(x)
    return go.Scatter(
        x=x,
        y=y,
        error_x=bars,
        customdata=names,
        mode="markers",
        name="" if name is None else str(name),
        marker={"color": POINT_COLOUR, "size": 8, "symbol": symbol},
        hovertemplate="%{customdata}<br>%{x}, %{y}<extra></extra>",
    )
