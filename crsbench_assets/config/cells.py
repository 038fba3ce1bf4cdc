"""Cells: which encoder is measured on which dataset, and how many numbers follow.

What lives here: applicability with its reason, and the arithmetic of the grid (protocol section 1).
What stays out: what of it is already there (``planning``).
"""

from __future__ import annotations

from dataclasses import dataclass

from crsbench_assets.config.cards import IMAGE_KINDS, DatasetCard, EncoderCard
from crsbench_assets.config.registry import Registry, without_retired


@dataclass(frozen=True)
class Cell:
    """One encoder on one dataset. ``reason`` says why it is not applicable, else it is None."""

    encoder_id: str
    dataset_id: str
    reason: str | None = None

    @property
    def is_applicable(self) -> bool:
        """Whether the cell is measured at all."""
        return self.reason is None


@dataclass(frozen=True)
class GridCounts:
    """How many cells, fits and rows a registry spans."""

    n_cells: int
    n_applicable: int
    n_fits: int
    n_records: int
    n_aggregates: int


def inapplicability(encoder: EncoderCard, dataset: DatasetCard) -> str | None:
    """Return the reason code why ``encoder`` has no cell on ``dataset``, or None where it has one."""
    if dataset.id in encoder.not_applicable:
        return "excluded_by_card"
    if encoder.kind == "precomputed":
        return None if dataset.id in encoder.vectors else "no_vectors"
    if encoder.kind == "synthetic":
        return None if dataset.id in encoder.cells else "not_synthetic"
    if encoder.kind in IMAGE_KINDS and not dataset.source.has_images:
        return "no_images"
    return None


def cells(registry: Registry) -> list[Cell]:
    """Return every cell of the active, not retired cards, sorted by dataset and encoder."""
    registry = without_retired(registry)
    return [
        Cell(encoder.id, dataset.id, inapplicability(encoder, dataset))
        for dataset in registry.datasets.values()
        for encoder in registry.encoders.values()
    ]


@dataclass(frozen=True)
class ScoredEncoder:
    """An active, not retired encoder and the datasets it has a cell on, sorted."""

    encoder_id: str
    role: str
    dataset_ids: tuple[str, ...]


def scored_encoders(registry: Registry) -> list[ScoredEncoder]:
    """Return who is scored on what, sorted by id."""
    registry = without_retired(registry)
    datasets: dict[str, list[str]] = {encoder_id: [] for encoder_id in registry.encoders}
    for cell in cells(registry):
        if cell.is_applicable:
            datasets[cell.encoder_id].append(cell.dataset_id)
    return [
        ScoredEncoder(encoder_id, registry.encoders[encoder_id].role, tuple(sorted(ids)))
        for encoder_id, ids in sorted(datasets.items())
    ]


def grid_counts(registry: Registry) -> GridCounts:
    """Return the counts of the grid (protocol section 1).

    For the paper's panel: 45 cells, 43 applicable, 1,075 fits, 17,575 run records, 3,515 aggregate rows.
    """
    protocol = registry.protocol
    all_cells = cells(registry)
    applicable = [cell for cell in all_cells if cell.is_applicable]
    n_fractions, n_seeds = len(protocol.label_fractions), len(protocol.seeds)
    n_aggregates = 0
    for cell in applicable:
        shift = registry.datasets[cell.dataset_id].shift
        n_aggregates += n_fractions * len(protocol.conditions(shift.id if shift else None))
    return GridCounts(
        n_cells=len(all_cells),
        n_applicable=len(applicable),
        n_fits=len(applicable) * n_fractions * n_seeds,
        n_records=n_aggregates * n_seeds,
        n_aggregates=n_aggregates,
    )
