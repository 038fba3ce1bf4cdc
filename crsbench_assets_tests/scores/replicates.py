"""Frames of the axes of cells, seed by seed and replicate by replicate, from arrays of any numbers; and random ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.scores.panel import Panel, freeze
from crsbench_assets.scores.profile import ENCODERS_SCHEMA, axis_values
from crsbench_assets.scores.resampling import Resampled, Resampling, resampled_scores
from crsbench_assets_tests.analyses.plain_score import plain_crs
from crsbench_assets_tests.scores.conftest import conditions_of

Cell = tuple[str, str]
"""Encoder id, dataset id."""

CELL_AXES_SCHEMA = {
    "encoder_id": pl.String(),
    "dataset_id": pl.String(),
    "axis": pl.String(),
    "variant": pl.String(),
    "value": pl.Float64(),
    "seed_values": pl.List(pl.Float64()),
    "reason": pl.String(),
}
REPLICATES_SCHEMA = {
    "encoder_id": pl.String(),
    "dataset_id": pl.String(),
    "axis": pl.String(),
    "variant": pl.String(),
    "replicate": pl.Int64(),
    "seed_values": pl.List(pl.Float64()),
}


def protocol_of(protocol: Protocol, n_seeds: int) -> Protocol:
    return Protocol.model_validate(protocol.model_dump() | {"seeds": tuple(range(n_seeds))})


def every_axis(*of_seeds: float) -> list[list[float]]:
    """Return the same seed values on all four axes, (k, s)."""
    return [list(of_seeds)] * len(AXES)


def cell_axes_frame(cells: Mapping[Cell, ArrayLike]) -> pl.DataFrame:
    """Return rows of ``cell_axes`` from seed values (k, s) of cells; NaN on an axis makes it undefined.

    Robustness with the shift term is a row that a panel without it must not read.
    """
    rows: list[Any] = []
    for (encoder, dataset), values in cells.items():
        for axis, own in zip(AXES, np.asarray(values, dtype=np.float64).tolist(), strict=True):
            variants = {"primary": own}
            if axis == "robustness":
                variants = {"corruption_only": own, "primary": [value / 2 for value in own]}
            for variant, of_seeds in variants.items():
                mean = sum(of_seeds) / len(of_seeds)
                is_defined = mean == mean
                rows.append(
                    (
                        encoder,
                        dataset,
                        axis,
                        variant,
                        mean if is_defined else None,
                        of_seeds if is_defined else [None] * len(of_seeds),
                        None if is_defined else "undefined_term",
                    )
                )
    return pl.DataFrame(rows, schema=CELL_AXES_SCHEMA, orient="row")


def replicates_frame(cells: Mapping[Cell, ArrayLike]) -> pl.DataFrame:
    """Return rows of ``axis_replicates`` from values (b, k, s) of cells; NaN is undefined."""
    rows: list[Any] = []
    for (encoder, dataset), values in cells.items():
        for replicate, of_axes in enumerate(np.asarray(values, dtype=np.float64).tolist()):
            for axis, own in zip(AXES, of_axes, strict=True):
                variant = "corruption_only" if axis == "robustness" else "primary"
                of_seeds = [None if value != value else value for value in own]
                rows.append((encoder, dataset, axis, variant, replicate, of_seeds))
                rows.append((encoder, dataset, axis, "chance_corrected", replicate, [0.0] * len(own)))
    return pl.DataFrame(rows, schema=REPLICATES_SCHEMA, orient="row")


def encoders_of(cells: Mapping[Cell, Any], controls: Sequence[str] = ()) -> pl.DataFrame:
    own: dict[str, list[str]] = {}
    for encoder, dataset in cells:
        own.setdefault(encoder, []).append(dataset)
    rows = [(encoder, "control" if encoder in controls else "candidate", sorted(ids)) for encoder, ids in own.items()]
    return pl.DataFrame(rows, schema=ENCODERS_SCHEMA, orient="row")


def freeze_cells(cells: Mapping[Cell, ArrayLike], protocol: Protocol) -> Panel:
    """Return the panel of these cells, robustness without the shift term."""
    conditions = conditions_of(protocol).model_copy(update={"robustness_variant": "corruption_only"})
    values = axis_values(cell_axes_frame(cells), "corruption_only")
    panel, _ = freeze("demo", values, encoders_of(cells), conditions)
    return panel


N_REPLICATES = 40


class Case:
    """Seed values (k, s) and replicates (b, k, s) of members, of one that joined and of two that are gone."""

    def __init__(self, seed: int, protocol: Protocol) -> None:
        rng = np.random.default_rng(seed)
        n_seeds = len(protocol.seeds)
        datasets = ["far", "near", "new"][: rng.integers(1, 4)]
        ids = [f"e{i}" for i in range(rng.integers(4, 8))]
        self.cells: dict[Cell, NDArray[np.float64]] = {}
        for encoder in ids:
            for dataset in [d for d in datasets if rng.random() < 0.8] or datasets[:1]:
                level = rng.uniform(0.5, 0.9, (4, 1))
                self.cells[encoder, dataset] = level + rng.normal(0, 0.03, (4, n_seeds))
        noise = {dataset: rng.normal(0, 0.03, (N_REPLICATES, 4, n_seeds)) for dataset in datasets}
        self.replicates = {
            cell: values + noise[cell[1]] + rng.normal(0, 0.02, (N_REPLICATES, 4, n_seeds))
            for cell, values in self.cells.items()
        }
        # e0 joined after the freeze, e1 has gone since, e2 is a control now and was a member
        members = {cell: values for cell, values in self.cells.items() if cell[0] != "e0"}
        self.panel = freeze_cells(members, protocol)
        self.protocol = protocol
        self.active = {
            cell: values for cell, values in self.cells.items() if cell[0] != "e1" and cell[1] in self.panel.values
        }

    def resampled(self, resampling: Resampling) -> Resampled:
        found = resampled_scores(
            resampling,
            cell_axes_frame(self.cells),
            replicates_frame(self.replicates),
            encoders_of(self.active, controls=("e2",)),
            self.panel,
            self.protocol,
            n_replicates=N_REPLICATES,
        )
        assert isinstance(found, Resampled)
        return found

    def draws(self, resampling: Resampling) -> list[list[int]]:
        """Return the seeds of every replicate."""
        if resampling == "test":
            return [list(range(len(self.protocol.seeds)))] * N_REPLICATES
        s = len(self.protocol.seeds)
        generator = keyed_generator("seed_draws", resampling, self.panel.panel_id)
        return [row.tolist() for row in generator.integers(s, size=(N_REPLICATES, s))]

    def plain(self, resampling: str, r: int, drawn: list[int], *, is_recomputed: bool) -> dict[str, float]:
        """Return the score of every candidate in one replicate."""
        cells: dict[str, dict[str, list[float]]] = {}
        for (encoder, dataset), of_seeds in self.active.items():
            if encoder == "e2":
                continue
            own = cells.setdefault(encoder, {}).setdefault(dataset, [])
            for k, axis in enumerate(AXES):
                values = []
                for seed in drawn:
                    value = float(of_seeds[k, seed])
                    if resampling != "seed":
                        replicate = float(self.replicates[encoder, dataset][r, k, seed])
                        value = 2 * value - replicate if axis == "calibration" else replicate
                    values.append(value)
                mean = sum(values) / len(values)
                own.append(min(max(mean, 0.0), 1.0) if axis == "calibration" else mean)
        gone = {
            member: {d: [of[member][axis] for axis in AXES] for d, of in self.panel.values.items() if member in of}
            for member in self.panel.members
            if member not in cells
        }
        compared = cells | gone
        of_members = {member: compared[member] for member in self.panel.members}
        anchors = {
            (dataset, k): (anchor[axis].low, anchor[axis].high)
            for dataset, anchor in self.panel.anchors.items()
            for k, axis in enumerate(AXES)
        }
        if is_recomputed:
            for dataset, k in anchors:
                column = [own[dataset][k] for own in of_members.values() if dataset in own]
                anchors[dataset, k] = (min(column), max(column))
        scores = plain_crs(compared, anchors, self.panel.members)
        return {encoder: score for encoder, score in scores.items() if encoder not in gone}
