"""What a stage may see: its cards, and the tables that it declared.

What lives here: the guarded access to the lake. What stays out: the computation (``cohort_stages``, ``cell_stages``,
``pooled_stages``) and the bookkeeping around it (``run``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from crsbench_assets.config.cards import PRIMARY, DatasetCard, EncoderCard
from crsbench_assets.config.errors import StorageError
from crsbench_assets.config.ids import shift_condition
from crsbench_assets.config.protocol import Protocol
from crsbench_assets.planning.inputs import split_key
from crsbench_assets.planning.plan import PointerLookup, pointers_for, upstream_key, upstream_results
from crsbench_assets.planning.stages import STAGE_OF_TABLE, StageSpec
from crsbench_assets.storage.layout import PartitionKey
from crsbench_assets.storage.project import Project

if TYPE_CHECKING:
    import polars as pl

Progress = Callable[[str], None]


@dataclass(frozen=True)
class StageOutput:
    """What a stage computed: rows by table, without constant columns.

    ``reason`` and ``detail`` mark a failure that is a property of the data; its rows are kept where they explain it.
    """

    frames: dict[str, pl.DataFrame]
    reason: str | None = None
    detail: str | None = None
    scratch: Path | None = None
    """Folder of finished parts that the commit makes needless."""


@dataclass(frozen=True)
class StageContext:
    """One stage of one partition at work."""

    project: Project
    stage: StageSpec
    key: PartitionKey
    inputs_hash: str
    pointer_of: PointerLookup | None = None
    """Which partitions a pooled stage reads."""
    progress: Progress = field(default=lambda message: None)

    @property
    def n_threads(self) -> int:
        """Threads of this process, so that all of a home's processes together use the machine once."""
        return max(1, (os.cpu_count() or 1) // self.project.registry.settings.workers)

    @property
    def protocol(self) -> Protocol:
        """The protocol of the home."""
        return self.project.registry.protocol

    @property
    def protocol_id(self) -> str:
        """Protocol as it stands in rows: id and first 12 digits of its hash."""
        return self.protocol.label

    @cached_property
    def encoder(self) -> EncoderCard:
        """Card of the partition's encoder."""
        return self.project.registry.encoder(str(split_key(self.stage, self.key)[0]))

    @cached_property
    def dataset(self) -> DatasetCard:
        """Card of the partition's dataset."""
        return self.project.registry.dataset(str(split_key(self.stage, self.key)[1]))

    @property
    def shift_id(self) -> str | None:
        """Id of the dataset's shift target."""
        return self.dataset.shift.id if self.dataset.shift else None

    def source_of(self, condition_id: str) -> str:
        """Return the source that the images of a condition are of: the shift target, or the primary one."""
        is_shift = self.shift_id is not None and condition_id == shift_condition(self.shift_id)
        return self.shift_id if is_shift and self.shift_id else PRIMARY

    def read(self, table: str, columns: Iterable[str] | None = None) -> pl.DataFrame:
        """Return the upstream partition that this one reads.

        Raises:
            StorageError: it is absent or failed.
            ValueError: the stage did not declare the table, so lineage would lie; a programming error.
        """
        self._check_declared(table)
        key = upstream_key(self.stage, STAGE_OF_TABLE[table], self.key)
        return self.project.lake.read(table, key, columns)

    def read_all(self, table: str, columns: Iterable[str] | None = None, where: pl.Expr | None = None) -> pl.DataFrame:
        """Return all partitions of an upstream table that have results, for pooled stages.

        Args:
            table: name of the table; a whole one is read once, however often a stage asks.
            columns: those wanted; None for all of them.
            where: which rows; None for all of them.

        Raises:
            StorageError: a file of one is gone.
            ValueError: the stage did not declare the table, so lineage would lie; a programming error.
        """
        self._check_declared(table)
        is_whole = columns is None and where is None
        if is_whole and table in self._whole_tables:
            return self._whole_tables[table]
        pointer_of = self.pointer_of or pointers_for(self.project, self.stage)
        parts = upstream_results(self.project, self.stage, table, self.key, pointer_of)
        rows = self.project.lake.read_all(table, [part for part, _ in parts], columns, where)
        if is_whole:
            self._whole_tables[table] = rows
        return rows

    @cached_property
    def _whole_tables(self) -> dict[str, pl.DataFrame]:
        return {}

    def _check_declared(self, table: str) -> None:
        if table not in self.stage.reads:
            raise ValueError(f"stage {self.stage.name} reads {table}, which is not among its inputs")


def require_source_unchanged(
    context: StageContext, images: pl.DataFrame, quarantine: pl.DataFrame, image_ids: list[str]
) -> None:
    """Check that the cohort read now has the images that were indexed or left out.

    Raises:
        StorageError: the files changed in between.
    """
    indexed, left_out = set(images.get_column("image_id")), set(quarantine.get_column("image_id"))
    if not indexed <= set(image_ids) <= indexed | left_out:
        raise StorageError(
            f"The files of dataset {context.dataset.id!r} changed since its images were indexed: run "
            "`crsbench materialize` again, which indexes them first."
        )
