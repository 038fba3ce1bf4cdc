"""Partition definitions, keys and mappings.

What lives here: the two dynamic dimensions, filled from active cards, and how partitions of one grain depend on those
of another. What stays out: which cells exist (``config.cells``). Two dimensions are Dagster's maximum and
combinations cannot be excluded, so an inapplicable cell is a status, not an absent key.
https://docs.dagster.io/guides/build/partitions-and-backfills
"""

from __future__ import annotations

import dagster as dg

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.storage.layout import PartitionKey
from crsbench_assets.tables.schema import Grain

DATASETS = dg.DynamicPartitionsDefinition(name="dataset")
ENCODERS = dg.DynamicPartitionsDefinition(name="encoder")
CELLS = dg.MultiPartitionsDefinition({"dataset": DATASETS, "encoder": ENCODERS})

PARTITIONS: dict[Grain, dg.PartitionsDefinition | None] = {"whole": None, "dataset": DATASETS, "cell": CELLS}


def dagster_key(grain: Grain, key: PartitionKey) -> str | None:
    """Return Dagster's partition key of one of our partitions."""
    if grain == "cell":
        return dg.MultiPartitionKey({"encoder": key[0], "dataset": key[1]})
    return key[0] if grain == "dataset" else None


def partition_of(context: dg.AssetExecutionContext | dg.AssetCheckExecutionContext, grain: Grain) -> PartitionKey:
    """Return our partition that a run works on.

    Raises:
        ConfigError: the run was started without a partition.
    """
    if grain == "whole":
        return ()
    if not context.has_partition_key:
        raise ConfigError("This asset is partitioned: choose a dataset, or an encoder and a dataset, and launch again.")
    if grain == "dataset":
        return (context.partition_key,)
    dimensions = cell_dimensions(context.partition_key)
    return dimensions["encoder"], dimensions["dataset"]


def cell_dimensions(key: str) -> dict[str, str]:
    """Return {"encoder": ..., "dataset": ...} of a cell's partition key."""
    if isinstance(key, dg.MultiPartitionKey):
        return dict(key.keys_by_dimension)
    # runs hand over their own class; an event's key is a plain string, dimensions in the order of their names
    dataset_id, encoder_id = key.split("|")
    return {"dataset": dataset_id, "encoder": encoder_id}


def mapping(grain: Grain, upstream: Grain) -> dg.PartitionMapping | None:
    """Return how partitions of ``grain`` read partitions of ``upstream``; Dagster's defaults are never relied on."""
    if upstream == "whole":
        return None
    if grain == "whole":
        return dg.AllPartitionMapping()
    if grain == upstream:
        return dg.IdentityPartitionMapping()
    return dg.MultiToSingleDimensionPartitionMapping("dataset")
