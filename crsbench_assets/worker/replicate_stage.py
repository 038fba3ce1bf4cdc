"""Stage of a cell: its axes under resampled test groups.

What lives here: handing the cell's records and axes to the pure function. What stays out: that function
(``aggregates.replicates``), and where the records come from (``worker.cell_stages``).
"""

from __future__ import annotations

from crsbench_assets.aggregates.replicates import axis_replicates
from crsbench_assets.config.machine import one_thread
from crsbench_assets.worker.cell_stages import cell_records
from crsbench_assets.worker.context import StageContext, StageOutput


def replicate(context: StageContext) -> StageOutput:
    """Return the axes of a cell, seed by seed, under the group weights of its dataset."""
    with one_thread():
        replicates = axis_replicates(
            cell_records(context),
            context.read("cell_axes"),
            dataset_id=context.dataset.id,
            task=context.dataset.task,
            protocol=context.protocol,
            shift_id=context.shift_id,
        )
    return StageOutput({"axis_replicates": replicates})
