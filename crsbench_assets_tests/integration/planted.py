"""What a measured panel of synthetic encoders should show: the planted values and the planted order.

What lives here: the comparison of measured axes with the cards' planted values. What stays out: how the values were
planted (``benchmarks.plant_synthetic``). Definitions of axes and scores: protocol page, sections 6 and 7.
"""

from __future__ import annotations

import polars as pl

from benchmarks.plant_synthetic import encoders_frame, panel_scores
from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.config.registry import Registry
from crsbench_assets.scores.profile import AXIS_VALUES_SCHEMA, axis_values


def planted_deviations(registry: Registry, cell_axes: pl.DataFrame) -> pl.DataFrame:
    """Return how far every measured axis value lies from its planted one.

    Args:
        registry: whose synthetic encoders carry planted values.
        cell_axes: rows of the table ``cell_axes``.

    Returns:
        One row per planted cell and axis, sorted (encoder_id, dataset_id, axis, value, planted, se, deviation_se):
        ``deviation_se`` is (value - planted) / se. A cell that was not measured, or an undefined axis, has a NULL
        value and deviation, so that it cannot pass for agreement.
    """
    measured = axis_values(cell_axes, "shift").drop("reason")
    return (
        _planted(registry)
        .join(measured, on=["encoder_id", "dataset_id", "axis"], how="left")
        .with_columns(deviation_se=(pl.col("value") - pl.col("planted")) / pl.col("se"))
        .select("encoder_id", "dataset_id", "axis", "value", "planted", "se", "deviation_se")
        .sort("encoder_id", "dataset_id", "axis")
    )


def planted_order(registry: Registry, protocol: Protocol) -> list[str]:
    """Return the ids of the synthetic encoders by their planted Clinical Reliability Score, best first.

    Args:
        registry: whose synthetic encoders carry planted values on all their cells.
        protocol: whose weights are used.
    """
    planted = _planted(registry)
    values = planted.select(
        "encoder_id", "dataset_id", "axis", value="planted", reason=pl.lit(None, dtype=AXIS_VALUES_SCHEMA["reason"])
    )
    members = set(planted.get_column("encoder_id"))
    encoders = encoders_frame({key: card for key, card in registry.encoders.items() if key in members})
    scores = panel_scores(values, encoders, protocol)
    return sorted(scores, key=lambda encoder_id: -scores[encoder_id])


def _planted(registry: Registry) -> pl.DataFrame:
    rows = [
        (encoder.id, dataset_id, axis, cell.planted[axis], cell.planted_se[axis])
        for encoder in registry.encoders.values()
        for dataset_id, cell in encoder.cells.items()
        if cell.planted is not None and cell.planted_se is not None
        for axis in AXES
    ]
    schema = {"encoder_id": pl.String, "dataset_id": pl.String, "axis": pl.String}
    return pl.DataFrame(rows, schema={**schema, "planted": pl.Float64, "se": pl.Float64}, orient="row")
