"""Charts of a section's rows: intervals, points, lines, bars, boxes, and matrices with their numbers.

What lives here: what a chart is of, and its Plotly traces and layout. What stays out: which charts there are
(``sections``), the rows (``frames``), the page (``html``), reliability diagrams (``figures.reliability``).
Source: protocol page, sections 6 to 8. Series differ in marker, dash or pattern and not in colour alone (WCAG 2.2,
success criterion 1.4.1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from crsbench_assets.report.figures.reliability import GRID_COLOUR, PLOT_LAYOUT, RULE_COLOUR
from crsbench_assets.report.words import heading, spoken

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    import polars as pl

COLOURS = ("#3578c6", "#c4561a", "#2e8b57", "#9a5fb8", "#a8741a", "#0e8a8a")
"""Mid-tones: at least 3:1 against the page's white and against its dark."""

_SYMBOLS = {"circle": "●", "square-open": "□", "diamond": "◆", "x": "✖", "triangle-up-open": "△", "cross": "✚"}
_DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
_PATTERNS = {"": "■", "/": "▨", "x": "▩", "-": "▤", "+": "▦", "|": "▥"}
_SINGLE_TICKS = 16
"""Widest range of whole numbers with a tick at each."""

_SHORT = 20
"""Characters of a category's label: more would leave no room for the plot on a phone. Its ends are kept."""


@dataclass(frozen=True)
class Figure:
    """What is drawn of a section's rows.

    An encoder that is a control is a dotted reference line among ``intervals``, and a small grey marker among
    ``points``.

    Args:
        kind: ``intervals`` (x with ``low`` and ``high``, one line per y), ``points`` (y against x), ``lines`` (the
            same, joined; y may hold names), ``bars`` (x, one line per y), ``box`` (distribution of x, one line per y)
            or ``matrix`` (``value`` in row y and column x).
        x, y: columns.
        low, high: columns of the bounds: of x among ``intervals``, of y else; empty for none.
        value: column of the numbers of ``matrix``.
        series: column whose values are drawn with markers of their own; empty for one series.
        panel: columns whose values are drawn in a plot each, all with the same range of numbers.
        block: column whose values fold their plots together; empty for no folding.
        where: values that rows must have to be drawn.
        query: of the rows; empty where they are those of the section.
        is_compared: draw the line on which x and y are equal.
        is_log_x: x on a logarithmic axis.
    """

    kind: Literal["intervals", "points", "lines", "bars", "box", "matrix"]
    x: str
    y: str
    low: str = ""
    high: str = ""
    value: str = ""
    series: str = ""
    panel: tuple[str, ...] = ()
    block: str = ""
    where: dict[str, Any] = field(default_factory=dict)
    query: str = ""
    is_compared: bool = False
    is_log_x: bool = False


@dataclass(frozen=True)
class Chart:
    """One plot.

    Args:
        plot_id: key of its traces and its layout.
        title: values of its panel; empty where the figure has one plot.
        block: value of its block; empty for no folding.
        traces: of Plotly. ``customdata`` holds, per point, what x, y and value do not say; ``meta.row`` a reference
            line's row.
        layout: of Plotly. ``meta.columns`` names x, y, value and the parts of ``customdata``.
        min_width: in CSS pixels, under which it is scrolled rather than squeezed.
    """

    plot_id: str
    title: str
    block: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    min_width: int


def drawn_rows(figure: Figure, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the rows that a figure shows: those it is of, with a value for each of its quantities.

    Example:
        >>> import polars as pl
        >>> drawn_rows(Figure("points", "a", "b"), pl.DataFrame({"a": [1, None], "b": [2, 3]})).height
        1
    """
    import polars as pl

    needed = [name for name in (figure.x, figure.y, figure.value) if name]
    return rows.filter(*(pl.col(name) == value for name, value in figure.where.items())).drop_nulls(needed)


def figure_title(figure: Figure, rows: pl.DataFrame) -> str:
    """Return what the rows of ``drawn_rows`` show against what."""
    shown, by = (figure.x, figure.y) if _is_named(rows, figure.y) else (figure.y, figure.x)
    named = heading(by)
    return f"{heading(figure.value or shown)} by {named[0].lower() + named[1:] if named[1:2].islower() else named}"


def series_key(figure: Figure, rows: pl.DataFrame, controls: AbstractSet[str]) -> list[tuple[str, str, str]]:
    """Return marker, colour and name of every series and reference line of the rows of ``drawn_rows``."""
    glyphs = list(_PATTERNS.values() if figure.kind == "bars" else _SYMBOLS.values())
    key = [
        (glyphs[place % len(glyphs)], COLOURS[place % len(COLOURS)], spoken(figure.series, name))
        for place, name in enumerate(_values(rows, figure.series) if figure.series else [])
    ]
    if figure.kind == "intervals" and "encoder_id" in rows.columns:
        lined = [encoder_id for encoder_id in _values(rows, "encoder_id") if encoder_id in controls]
        key += [(("⋯", "-·-", "— —")[place % 3], "currentColor", f"control {name}") for place, name in enumerate(lined)]
    return key


def charts(figure: Figure, rows: pl.DataFrame, prefix: str, controls: AbstractSet[str]) -> list[Chart]:
    """Return the plots of the rows of ``drawn_rows``, in order of their first rows; none for no row.

    Args:
        figure: what is drawn.
        rows: its rows.
        prefix: begins the ids of the plots.
        controls: ids of the encoders that are controls.
    """
    if rows.is_empty():
        return []
    parts = [((), rows)] if not figure.panel else list(rows.group_by(*_panels(figure), maintain_order=True))
    found = []
    for place, (key, part) in enumerate(parts):
        values = dict(zip(_panels(figure), key, strict=True)) if figure.panel else {}
        layout = _layout(figure, part, rows)
        found.append(
            Chart(
                plot_id=f"{prefix}/{place}",
                title=", ".join(spoken(name, values[name]) for name in figure.panel),
                block=str(values.get(figure.block, "")),
                traces=_traces(figure, part, _values(rows, figure.series), controls),
                layout=layout,
                min_width=110 + 16 * len(_columns(figure, part)) if figure.kind == "matrix" else 0,
            )
        )
    return found


def _is_named(rows: pl.DataFrame, column: str) -> bool:
    """Return whether a column holds names rather than numbers."""
    return not rows.get_column(column).dtype.is_numeric()


def _panels(figure: Figure) -> list[str]:
    return [*figure.panel, *([figure.block] if figure.block and figure.block not in figure.panel else [])]


def _values(rows: pl.DataFrame, column: str) -> list[Any]:
    """Return the values of a column in order of first appearance; one None for no column."""
    return rows.get_column(column).unique(maintain_order=True).to_list() if column else [None]


def _told(figure: Figure, rows: pl.DataFrame) -> list[str]:
    """Return the columns that tell one point from another, besides those that are drawn."""
    names = ("encoder_id", *_panels(figure), figure.series, figure.low, figure.high)
    drawn = (figure.x, figure.y, figure.value)
    return [name for name in dict.fromkeys(names) if name in rows.columns and name not in drawn]


def _traces(figure: Figure, rows: pl.DataFrame, series: list[Any], controls: AbstractSet[str]) -> list[dict[str, Any]]:
    """Return the traces of one plot; a series looks the same in every plot, whether or not it stands in all."""
    import polars as pl

    if figure.kind == "matrix":
        return [_matrix(figure, rows)]
    traces = []
    if figure.is_compared:
        numbers = [*rows.get_column(figure.x), *rows.get_column(figure.y)]
        traces.append(_rule([min(numbers), max(numbers)], [min(numbers), max(numbers)], dash="dash", hoverinfo="skip"))
    lined = rows.clear()
    if figure.kind == "intervals" and "encoder_id" in rows.columns:
        is_control = pl.col("encoder_id").is_in(list(controls))
        lined, rows = rows.filter(is_control), rows.filter(~is_control)
    for place, name in enumerate(series):
        part = rows.filter(pl.col(figure.series).eq_missing(pl.lit(name))) if figure.series else rows
        if not part.is_empty():
            traces.append(_series(figure, part, place, name, controls))
    for place, row in enumerate(lined.iter_rows(named=True)):
        traces.append(
            _rule(
                [row[figure.x]] * 2,
                [0, 1],
                yaxis="y2",
                offsetgroup="controls",  # of one group, or Plotly would set them side by side
                dash=("dot", "dashdot", "longdash")[place % 3],
                name=f"control {row['encoder_id']}",
                meta={"row": [row[figure.x], row[figure.y], *(row[column] for column in _told(figure, lined))]},
                hovertemplate=f"control {row['encoder_id']}<br>%{{x}}<extra></extra>",
            )
        )
    return traces


def _rule(x: list[Any], y: list[Any], dash: str, **more: Any) -> dict[str, Any]:
    line = {"color": RULE_COLOUR, "dash": dash, "width": 1.5}
    return {"type": "scatter", "x": x, "y": y, "mode": "lines", "line": line, "showlegend": "name" in more, **more}


def _matrix(figure: Figure, rows: pl.DataFrame) -> dict[str, Any]:
    import plotly.graph_objects as go

    names = _columns(figure, rows)
    cells = {(row[figure.y], row[figure.x]): row[figure.value] for row in rows.iter_rows(named=True)}
    values = [[cells.get((y, x)) for x in names] for y in names]
    trace = go.Heatmap(
        x=names,
        y=names,
        z=values,
        # hundredths: three characters fit where "0.98" would not
        text=[["" if value is None else f"{100 * value:.0f}" for value in line] for line in values],
        texttemplate="%{text}",
        textfont={"color": "#1c2127", "size": 9},
        # light throughout, so that the dark numbers stay readable
        colorscale=[[0, "#f7c9a3"], [0.5, "#ffffff"], [1, "#9cc3ee"]],
        zmin=-1,
        zmax=1,
        showscale=False,
        hovertemplate="%{y}, %{x}: %{z:.3f}<extra></extra>",
    )
    return dict(trace.to_plotly_json())


def _columns(figure: Figure, rows: pl.DataFrame) -> list[Any]:
    """Return the names of a matrix, its rows first."""
    return list(dict.fromkeys([*_values(rows, figure.y), *_values(rows, figure.x)]))


def _series(figure: Figure, rows: pl.DataFrame, place: int, name: Any, controls: AbstractSet[str]) -> dict[str, Any]:
    import plotly.graph_objects as go

    x, y = rows.get_column(figure.x).to_list(), rows.get_column(figure.y).to_list()
    told = _told(figure, rows)
    colour = COLOURS[place % len(COLOURS)]
    common: dict[str, Any] = {
        "x": x,
        "y": y,
        "customdata": [[row[column] for column in told] for row in rows.iter_rows(named=True)],
        "name": spoken(figure.series, name) if figure.series else "",
        "hovertemplate": "".join(f"%{{customdata[{i}]}}<br>" for i in range(len(told)) if told[i] == "encoder_id")
        + (f"{spoken(figure.series, name)}<br>" if figure.series else "")
        + "%{x}, %{y}<extra></extra>",
    }
    if figure.kind == "bars":
        pattern = {
            "shape": list(_PATTERNS)[place % len(_PATTERNS)], "fillmode": "overlay", "fgcolor": "#ffffff", "size": 6,
        }  # fmt: skip
        # with an edge, so that a bar of 0 shows
        marker: dict[str, Any] = {"color": colour, "pattern": pattern, "line": {"color": colour, "width": 1.5}}
        return dict(go.Bar(orientation="h", marker=marker, **common).to_plotly_json())
    if figure.kind == "box":
        marker, line = {"color": colour, "size": 4}, {"width": 1.5}
        return dict(go.Box(orientation="h", marker=marker, line=line, boxpoints="outliers", **common).to_plotly_json())
    is_control = [encoder_id in controls for encoder_id in rows["encoder_id"]] if "encoder_id" in rows.columns else []
    symbols = list(_SYMBOLS)
    marker = {"color": colour, "size": 8 if figure.kind != "lines" else 6, "symbol": symbols[place % len(symbols)]}
    if figure.kind == "points" and any(is_control):
        marker["color"] = [RULE_COLOUR if control else colour for control in is_control]
        marker["size"] = [5 if control else 8 for control in is_control]
    if figure.low and rows[figure.low].count() + rows[figure.high].count():
        bounds = list(zip(x if figure.kind == "intervals" else y, rows[figure.low], rows[figure.high], strict=True))
        common["error_x" if figure.kind == "intervals" else "error_y"] = {
            "type": "data",
            "symmetric": False,
            "array": [None if high is None else high - value for value, _, high in bounds],
            "arrayminus": [None if low is None else value - low for value, low, _ in bounds],
            "color": colour,
            "thickness": 1.2,
            "width": 3,
        }
    if figure.kind == "lines":
        common |= {"mode": "lines+markers", "line": {"color": colour, "width": 1.5, "dash": _DASHES[place % 6]}}
    else:
        common |= {"mode": "markers", "orientation": "h" if figure.kind == "intervals" else "v"}
    return dict(go.Scatter(marker=marker, **common).to_plotly_json())


def _layout(figure: Figure, rows: pl.DataFrame, all_rows: pl.DataFrame) -> dict[str, Any]:
    """Return the layout of one plot, with the range of numbers of all."""
    import plotly.graph_objects as go

    axis: dict[str, Any] = {
        "fixedrange": True, "zeroline": False, "gridcolor": GRID_COLOUR, "automargin": True,
    }  # fmt: skip
    is_named = _is_named(rows, figure.y)
    n_series = len(_values(all_rows, figure.series)) if figure.kind in ("bars", "intervals") else 1
    xaxis = axis | {"title": {"text": heading(figure.x), "standoff": 6}}
    yaxis = axis | {"title": {"text": "" if is_named else heading(figure.y), "standoff": 6}}
    if is_named:
        names = _columns(figure, rows) if figure.kind == "matrix" else _values(rows, figure.y)
        yaxis |= {"type": "category", "autorange": "reversed"}
        yaxis |= _named(figure.y, names, numbered=figure.kind == "matrix")
        height = 86 + len(names) * max(24, 13 * n_series)
    else:
        height = 250 if figure.panel else 380
        yaxis["range"] = _range(all_rows, figure.y, figure.low, figure.high)
    if figure.kind == "matrix":
        # columns in the order of the rows, named by their number, so that they stay readable on a phone
        xaxis |= {"type": "category", "tickangle": 0} | _named(figure.x, names)
        xaxis |= {"ticktext": [str(place + 1) for place in range(len(names))]}
        xaxis |= {"title": {"text": f"{heading(figure.x)}, by number of the row", "standoff": 6}}
    elif figure.is_log_x:
        ticks = sorted(_values(all_rows, figure.x))
        xaxis |= {"type": "log", "tickvals": ticks, "ticktext": _apart(ticks), "tickangle": 0}
        xaxis["range"] = [math.log10(ticks[0]) - 0.15, math.log10(ticks[-1]) + 0.15]
    else:
        bounds = (figure.low, figure.high) if is_named else ("", "")
        xaxis["range"] = _range(all_rows, figure.x, *bounds, zero=figure.kind == "bars")
        if all_rows.get_column(figure.x).dtype.is_integer() and xaxis["range"][1] - xaxis["range"][0] <= _SINGLE_TICKS:
            xaxis["dtick"] = 1  # no rank 1.5
    layout = go.Layout(
        **PLOT_LAYOUT,
        height=height,
        margin={"l": 48, "r": 12, "t": 8, "b": 44},
        scattermode="group" if figure.kind == "intervals" else "overlay",
        xaxis=xaxis,
        yaxis=yaxis,
        # reference lines run over the whole height, whatever the categories are
        yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        meta={
            "columns": [name for name in (figure.x, figure.y, figure.value) if name] + _told(figure, rows),
            "has_legend": bool(figure.series) or figure.kind == "intervals",
        },
    )
    return dict(layout.to_plotly_json())


def _named(column: str, names: list[Any], numbered: bool = False) -> dict[str, Any]:
    """Return the ticks of an axis of names, in their order."""
    labels = [spoken(column, name) for name in names]
    labels = [text if len(text) <= _SHORT else f"{text[: _SHORT // 2 - 1]}…{text[-_SHORT // 2 :]}" for text in labels]
    if numbered:
        labels = [f"{label} {i + 1}" for i, label in enumerate(labels)]
    return {"categoryorder": "array", "categoryarray": names, "tickvals": names, "ticktext": labels}


def _apart(ticks: list[float]) -> list[str]:
    """Return labels of ticks on a logarithmic axis; one too near to the last would run into it in a small plot."""
    shown: list[float] = []
    for tick in ticks:
        if not shown or math.log10(tick / shown[-1]) > 0.35:
            shown.append(tick)
    return [f"{tick:g}" if tick in shown else "" for tick in ticks]


def _range(rows: pl.DataFrame, *columns: str, zero: bool = False) -> list[float]:
    """Return where an axis of numbers ends that shows all values of some columns."""
    values = [float(value) for name in columns if name for value in rows.get_column(name).drop_nulls()]
    values += [0.0] if zero else []
    low, high = min(values), max(values)
    room = 0.05 * (high - low) or 0.05
    return [low - room, high + room]
