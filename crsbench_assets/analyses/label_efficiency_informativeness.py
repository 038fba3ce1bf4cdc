"""Whether label efficiency says something that full-label AUROC does not.

What lives here: the rows of ``label_efficiency_informativeness``. What stays out: retention and the area under the
label curve (``aggregates.axes``), and correlations among the axes (``axis_correlations``).
Source: protocol page, section 8. Retention divides by the full-label value and may repeat little of it; the area under
the curve contains that value and repeats much: the correlation of each with full-label AUROC shows it.
"""

from __future__ import annotations

import polars as pl

from crsbench_assets.aggregates.axes import AULC, PRIMARY
from crsbench_assets.analyses.inference import Correlation, correlation
from crsbench_assets.analyses.population import (
    CENTRINGS,
    LEVELS,
    Cell,
    analysis_frame,
    member_cells,
    unit_values,
)
from crsbench_assets.scores.panel import Panel

QUANTITIES = {"retention": PRIMARY, "aulc": AULC}
"""Quantity -> variant of the axis label_efficiency."""


def label_efficiency_informativeness(cell_axes: pl.DataFrame, panel: Panel) -> pl.DataFrame:
    """Return the correlation of retention and of AULC with full-label macro AUROC over a panel's members.

    Values are those of the axes, not positions between anchors, which AULC does not have. At encoder level a unit is
    the mean over the encoder's datasets, at cell level every cell is one; ``within_dataset`` takes the dataset's mean
    off first.

    Args:
        cell_axes: rows of the table ``cell_axes`` of any cells; only the members' count.
        panel: frozen or provisional.

    Returns:
        Eight rows: quantity (retention, aulc) by level (encoder, cell) by centring (raw, within_dataset). ``n_units``
        counts the units whose values are all there; where that is not all of them the correlations are NULL
        (``incomplete``), because those of a part are not the panel's. ``too_few_units`` below three units,
        ``no_spread`` where all agree on one of the two.
    """
    found = {
        (encoder, dataset, axis, variant): value
        for encoder, dataset, axis, variant, value in cell_axes.select(
            "encoder_id", "dataset_id", "axis", "variant", "value"
        ).iter_rows()
        if value is not None
    }
    cells = member_cells(panel)
    rows = []
    for quantity, variant in QUANTITIES.items():
        efficiency: dict[Cell, float] = {}
        auroc: dict[Cell, float] = {}
        for cell in cells:
            values = found.get((*cell, "label_efficiency", variant)), found.get((*cell, "discrimination", PRIMARY))
            if values[0] is not None and values[1] is not None:
                efficiency[cell], auroc[cell] = values[0], values[1]
        lacking = {cell[0] for cell in cells if cell not in auroc}
        for level in LEVELS:
            n_units = len(auroc) if level == "cell" else len(set(panel.members) - lacking)
            for centring in CENTRINGS:
                result = Correlation(None, None, "incomplete")
                if not lacking:
                    result = correlation(unit_values(efficiency, level, centring), unit_values(auroc, level, centring))
                row = {"panel_id": panel.panel_id, "quantity": quantity, "level": level, "centring": centring}
                rows.append(row | {"n_units": n_units} | result._asdict())
    return analysis_frame("label_efficiency_informativeness", rows)
