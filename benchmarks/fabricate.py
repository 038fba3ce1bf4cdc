"""A home filled at once: m encoders by n datasets whose every partition the planner finds current.

What lives here: cards of synthetic encoders and cohorts, and rows of every cell that have the right shape, are drawn
and not measured, and carry the inputs hashes that the planner computes. What stays out: measuring anything
(``worker``), and what is done with such a home (``benchmarks``, the tests of storage, planner and graph).

The catalogue, the cohorts and the scores are computed by their own stages; only the cells are drawn, for the first
datasets, and repeated under the ids of the others: hashing what nobody measured would take most of the time. A drawn
cell's rows depend on its two ids alone. Nothing is flushed to disk: such a home is thrown away.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from crsbench_assets.aggregates.axes import cell_axes
from crsbench_assets.aggregates.replicates import REPLICATED
from crsbench_assets.config.hashes import content_hash
from crsbench_assets.config.ids import CLEAN
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.planning.inputs import InputsHasher
from crsbench_assets.planning.plan import pointers_for, upstream_contents
from crsbench_assets.planning.stages import StageSpec, stage_named, stages_of
from crsbench_assets.probes.calibrate import METHODS
from crsbench_assets.storage.files import replace_json
from crsbench_assets.storage.lake import POINTER_FILE, Provenance, parquet_bytes
from crsbench_assets.storage.layout import HomeLayout, PartitionKey
from crsbench_assets.storage.project import Project, create_home, open_project, write_snapshot
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.worker.run import run_stage, with_constants

N_DRAWN_DATASETS = 3
"""Datasets whose cells are drawn; those of dataset i beyond repeat dataset i modulo this, content hashes drawn."""

N_IMAGES = 60
WIDTH = 4
CLASSES = ("healthy", "ill")
N_REPLICATES = 10
"""Of a cell's axes, where nobody asks for more: readers of a wide home seldom look at them."""

Frames = dict[str, pl.DataFrame]


def fabricate(
    home: Path, n_encoders: int, n_datasets: int, *, processes: int = 1, n_replicates: int = N_REPLICATES
) -> Project:
    """Make and fill a home, and return it opened.

    Args:
        home: an empty or new folder.
        n_encoders: encoders ``encoder-000`` and on; the last one of three or more is a control.
        n_datasets: datasets ``dataset-000`` and on.
        processes: that draw cells at the same time.
        n_replicates: rows of ``axis_replicates`` per cell, axis and variant.
    """
    layout = HomeLayout(home.absolute())
    create_home(layout, "")
    _write_cards(layout, n_encoders, n_datasets)
    project = open_project(home)
    registry_hash = write_snapshot(project)
    encoders, datasets = list(project.registry.encoders), list(project.registry.datasets)
    with _unflushed():
        run_stage(project, stage_named("describe"), ())
        for dataset_id in datasets:
            for stage in stages_of("dataset"):
                run_stage(project, stage, (dataset_id,))
        drawn = [(encoder_id, dataset_id) for encoder_id in encoders for dataset_id in datasets[:N_DRAWN_DATASETS]]
        repeated = [(encoder_id, dataset_id) for encoder_id in encoders for dataset_id in datasets[N_DRAWN_DATASETS:]]
        draw = partial(fabricate_cells, n_replicates=n_replicates)
        for work, keys in ((draw, drawn), (_repeat_cells, repeated)):
            if processes == 1:
                work(layout.root, registry_hash, keys)
            else:
                chunks = [(layout.root, registry_hash, keys[i::processes]) for i in range(processes)]
                with multiprocessing.get_context("spawn").Pool(processes) as pool:
                    pool.starmap(work, chunks)
        for stage in stages_of("whole")[1:]:
            run_stage(project, stage, ())
    return project


def fabricate_cells(
    home: Path,
    registry_hash: str,
    keys: Sequence[PartitionKey],
    *,
    version: int = 0,
    n_replicates: int = N_REPLICATES,
) -> None:
    """Draw the rows of some cells and commit them; another ``version`` gives other values of the same inputs."""
    project = open_project(home, registry_hash=registry_hash)
    hasher = InputsHasher(project)
    drawn = _DRAWN | {"replicate": partial(_replicate, n_replicates=n_replicates)}
    with _unflushed():
        for key in keys:
            for stage in stages_of("cell"):
                _commit(project, hasher, stage, key, drawn[stage.name](project, key, version))


def _repeat_cells(home: Path, registry_hash: str, keys: Sequence[PartitionKey]) -> None:
    """Commit the rows of drawn cells under other datasets' ids."""
    project = open_project(home, registry_hash=registry_hash)
    hasher = InputsHasher(project)
    datasets = list(project.registry.datasets)
    with _unflushed():
        for encoder_id, dataset_id in keys:
            source = (encoder_id, datasets[datasets.index(dataset_id) % N_DRAWN_DATASETS])
            for stage in stages_of("cell"):
                _repeat(project, hasher, stage, source, (encoder_id, dataset_id))


@contextmanager
def _unflushed() -> Iterator[None]:
    """Let commits skip the flush to disk, which would take nearly all of the time."""
    flush = os.fsync
    os.fsync = lambda fd: None
    try:
        yield
    finally:
        os.fsync = flush


def _write_cards(layout: HomeLayout, n_encoders: int, n_datasets: int) -> None:
    datasets = [f"dataset-{i:03d}" for i in range(n_datasets)]
    for dataset_id in datasets:
        source = {"layout": "synthetic"}
        cohort = {"n_images": N_IMAGES, "prevalence": [0.5, 0.5]}
        card = {
            "id": dataset_id,
            "name": f"Fabricated {dataset_id}",
            "modality": "other",
            "task": "single_label",
            "classes": list(CLASSES),
            "is_synthetic": True,
            "source": source | {"synthetic": cohort},
        }
        _write_card(layout.root / "datasets" / f"{dataset_id}.yaml", card)
    for i in range(n_encoders):
        encoder_id = f"encoder-{i:03d}"
        cell = {"signal": 1.0, "n_nuisance": 0, "norm_spread": 0.0, "fragility": 0.5}
        card = {
            "id": encoder_id,
            "name": f"Fabricated {encoder_id}",
            "kind": "synthetic",
            "role": "control" if i == n_encoders - 1 and n_encoders >= 3 else "candidate",
            "cells": dict.fromkeys(datasets, cell),
        }
        _write_card(layout.root / "encoders" / f"{encoder_id}.yaml", card)


def _write_card(path: Path, card: dict[str, object]) -> None:
    path.write_text(json.dumps(card), encoding="utf-8")  # JSON is YAML, and much faster to write


def _commit(project: Project, hasher: InputsHasher, stage: StageSpec, key: PartitionKey, frames: Frames) -> None:
    """Commit the tables of a stage, as a worker does."""
    inputs = hasher.inputs(stage, key, upstream_contents(project, stage, key, pointers_for(project, stage)))
    contents: dict[str, str] = {}
    for name in stage.tables:
        frame = with_constants(project, frames.get(name, TABLES[name].computed()), name, key, inputs.hash)
        provenance = Provenance(inputs.hash, inputs.parts, 0.0, None, dict(contents))
        contents[name] = project.lake.commit(name, key, frame, provenance).content_hash


def _repeat(project: Project, hasher: InputsHasher, stage: StageSpec, source: PartitionKey, key: PartitionKey) -> None:
    inputs = hasher.inputs(stage, key, upstream_contents(project, stage, key, pointers_for(project, stage)))
    constants = {"dataset_id": key[1], "inputs_hash": inputs.hash}
    contents: dict[str, str] = {}
    for name in stage.tables:
        pointer = project.lake.pointer(name, source)
        if pointer is None:
            raise ValueError(f"{name} of {source} was not drawn")
        contents[name] = content_hash([pointer.content_hash, list(key)])
        folder = project.lake.folder(name, key)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"part-{contents[name]}.parquet"
        rows = pq.read_table(project.lake.files(name, source)[0], partitioning=None)
        for column in constants.keys() & set(rows.column_names):
            values = pa.repeat(pa.scalar(constants[column]), rows.num_rows)
            rows = rows.set_column(rows.column_names.index(column), column, values)
        path.write_bytes(parquet_bytes(rows, TABLES[name]))
        copy = replace(
            pointer,
            files=(path.name,),
            inputs_hash=inputs.hash,
            inputs=inputs.parts,
            content_hash=contents[name],
            stage_contents=dict(contents),
            n_bytes=path.stat().st_size,
        )
        replace_json(folder / POINTER_FILE, asdict(copy))


def _extract(project: Project, key: PartitionKey, version: int) -> Frames:
    images = project.lake.read("images", (key[1],), ["image_id"])
    vectors = keyed_generator("fabricated vectors", *key, version).standard_normal((images.height, WIDTH), np.float32)
    frame = images.with_columns(condition_id=pl.lit(CLEAN), vector=_lists(vectors), is_unchanged=pl.lit(False))
    return {"embeddings": frame}


def _probe(project: Project, key: PartitionKey, version: int) -> Frames:
    protocol = project.registry.protocol
    generator = keyed_generator("fabricated fits", *key, version)
    fits = _grid({"seed": protocol.seeds, "label_fraction": protocol.label_fractions}).with_columns(
        problem=pl.lit("softmax"),
        n_fit=(pl.col("label_fraction") * N_IMAGES).ceil().cast(pl.Int64),
        n_val=pl.lit(N_IMAGES // 10, pl.Int64),
        n_dims=pl.lit(WIDTH, pl.Int64),
        n_dims_dropped=pl.lit(0, pl.Int64),
        n_iter=pl.lit(9, pl.Int64),
        is_converged=pl.lit(True),
        objective=pl.lit(1.0),
        grad_norm=pl.lit(0.0),
        relative_gap=pl.lit(0.0),
        solver=pl.lit("fabricated"),
        reason=pl.lit(None, pl.String),
    )
    splits = project.lake.read("splits", (key[1],), ["image_id", "seed", "split"])
    tested = splits.filter(pl.col("split") == "test").select("seed", "image_id").sort("seed", "image_id")
    logits = generator.standard_normal((tested.height, len(CLASSES)), np.float32)
    predictions = tested.with_columns(label_fraction=pl.lit(1.0), condition_id=pl.lit(CLEAN), logits=_lists(logits))
    weights = _grid(
        {"seed": protocol.seeds, "label_fraction": protocol.label_fractions, "class_name": CLASSES}
    ).with_columns(
        weights=pl.lit([0.0] * WIDTH, pl.List(pl.Float64)), intercept=pl.lit(0.0), reason=pl.lit(None, pl.String)
    )
    return {"probe_fits": fits, "probe_weights": weights, "predictions": predictions}


def _calibrate(project: Project, key: PartitionKey, version: int) -> Frames:
    """Draw refused calibrations: their metrics are those of the records."""
    spec = TABLES["calibrated_records"]
    nullable = {c.name: pl.lit(None, spec.polars_schema()[c.name]) for c in spec.columns if c.nullable}
    rows = _grid({"method": METHODS, "seed": project.registry.protocol.seeds, "condition_id": [CLEAN]})
    return {
        "calibrated_records": rows.with_columns(**nullable).with_columns(
            n=pl.lit(N_IMAGES // 5, pl.Int64),
            n_val=pl.lit(N_IMAGES // 10, pl.Int64),
            n_accepted=pl.lit(0, pl.Int64),
            is_accepted=pl.lit(False),
            refusal_reason=pl.lit("no_gain"),
        )
    }


def _measure(project: Project, key: PartitionKey, version: int) -> Frames:
    """Draw records whose AUROC grows with the labels and falls with the severity of a corruption."""
    protocol = project.registry.protocol
    conditions = protocol.conditions(None)
    generator = keyed_generator("fabricated records", *key, version)
    grid = _grid({"seed": protocol.seeds, "label_fraction": protocol.label_fractions, "condition_id": conditions})
    skill = float(keyed_generator("fabricated skill", key[0], version).uniform(0.62, 0.92))
    harm = dict(zip(conditions, [0.0, *generator.uniform(0.0, 0.08, len(conditions) - 1)], strict=True))
    auroc = (
        skill
        + 0.02 * grid.get_column("label_fraction").log().to_numpy()
        - np.array([harm[condition] for condition in grid.get_column("condition_id")])
        + generator.normal(0.0, 0.01, grid.height)
    ).clip(0.5, 1.0)
    error = generator.uniform(0.02, 0.2, grid.height)
    spec = TABLES["run_records"]
    undefined = {c.name: pl.lit(None, spec.polars_schema()[c.name]) for c in spec.columns if c.nullable}
    is_full = pl.col("label_fraction") == 1.0
    records = grid.with_columns(**undefined).with_columns(
        macro_auroc=pl.Series(auroc),
        accuracy=pl.Series(auroc),
        balanced_accuracy=pl.Series(auroc),
        brier=pl.Series(error),
        nll=pl.Series(3 * error),
        **{name: pl.Series(error) for name in ("ece", "adaptive_ece", "classwise_ece", "ece_debiased")},
    )
    records = records.with_columns(
        macro_auroc_ci_low=pl.when(is_full).then(pl.col("macro_auroc") - 0.03),
        macro_auroc_ci_high=pl.when(is_full).then((pl.col("macro_auroc") + 0.03).clip(upper_bound=1.0)),
        ece_ci_low=pl.when(is_full).then(pl.col("ece") - 0.02),
        ece_ci_high=pl.when(is_full).then(pl.col("ece") + 0.02),
        n=pl.lit(N_IMAGES // 5, pl.Int64),
        n_defined_auroc=pl.lit(len(CLASSES), pl.Int64),
        n_defined_calibration=pl.lit(len(CLASSES), pl.Int64),
        ece_definition=pl.lit("fabricated"),
    )
    n_pos = N_IMAGES // 10
    labels = (
        records.select("seed", "label_fraction", "condition_id", "ece", "brier", "reason", auroc="macro_auroc")
        .join(pl.DataFrame({"class_name": CLASSES}), how="cross")
        .with_columns(
            brier=pl.col("brier").clip(upper_bound=1.0),
            **{name: pl.lit(n_pos, pl.Int64) for name in ("n_pos", "n_neg", "n_groups_pos")},
        )
    )
    bins = _grid({"seed": protocol.seeds, "condition_id": conditions, "bin_index": range(15)}).with_columns(
        class_name=pl.lit("top_label"),
        bin_low=pl.col("bin_index") / 15,
        bin_high=(pl.col("bin_index") + 1) / 15,
        n=pl.lit(1, pl.Int64),
        mean_confidence=(pl.col("bin_index") + 0.5) / 15,
        mean_label=(pl.col("bin_index") + 0.5) / 15,
    )
    return {"reliability_bins": bins, "label_metrics": labels, "run_records": records}


def _aggregate(project: Project, key: PartitionKey, version: int) -> Frames:
    """Aggregate by polars: the exact rational sums of the real stage take twenty times as long."""
    records = project.lake.read("run_records", key)
    spec = TABLES["seed_aggregates"]
    metrics = [name.removesuffix("_mean") for name in spec.column_names if name.endswith("_mean")]
    bounds = ("macro_auroc_ci_low", "macro_auroc_ci_high", "ece_ci_low", "ece_ci_high")
    means = [pl.col(name).mean().alias(f"{name}_mean") for name in metrics]
    spreads = [pl.col(name).std().alias(f"{name}_sd") for name in metrics]
    tests = [pl.col(name).mean().alias(name.replace("_ci_", "_ci_test_")) for name in bounds]
    seeds = [pl.col("macro_auroc").count().cast(pl.Int64).alias("n_seeds"), pl.col("n").first()]
    frame = records.group_by("label_fraction", "condition_id", maintain_order=True).agg(
        *means, *spreads, *tests, *seeds
    )
    half = {name: 1.242 * pl.col(f"{name}_sd") for name in metrics}  # t of 5 seeds over the root of 5
    frame = frame.with_columns(
        reason=pl.lit(None, pl.String),
        interval_reason=pl.lit(None, pl.String),
        **{f"{name}_ci_seed_low": pl.col(f"{name}_mean") - half[name] for name in metrics},
        **{f"{name}_ci_seed_high": pl.col(f"{name}_mean") + half[name] for name in metrics},
    )
    return {"seed_aggregates": frame}


def _derive_axes(project: Project, key: PartitionKey, version: int) -> Frames:
    labels, records = (project.lake.read(name, key) for name in ("label_metrics", "run_records"))
    return {"cell_axes": cell_axes(labels, records, protocol=project.registry.protocol, shift_id=None)}


def _replicate(project: Project, key: PartitionKey, version: int, *, n_replicates: int) -> Frames:
    """Draw replicates around the value of every seed, as long as real ones: rounded to float32."""
    axes = project.lake.read("cell_axes", key).select("axis", "variant", "seed_values")
    rows = axes.filter(pl.struct("axis", "variant").is_in([{"axis": a, "variant": v} for a, v in REPLICATED]))
    values = np.array(rows.get_column("seed_values").to_list(), dtype=np.float64)
    noise = keyed_generator("fabricated replicates", *key, version).normal(0.0, 0.01, (n_replicates, *values.shape))
    drawn = (values + noise).astype(np.float32).astype(np.float64).swapaxes(0, 1)
    numbers = pl.DataFrame({"replicate": range(n_replicates)})
    return {
        "axis_replicates": rows.select("axis", "variant")
        .join(numbers, how="cross", maintain_order="left_right")
        .with_columns(
            n_seeds=pl.lit(values.shape[1], pl.Int64),
            seed_values=pl.Series(drawn.reshape(-1, values.shape[1])).arr.to_list(),
            reason=pl.lit(None, pl.String),
        )
    }


_DRAWN: dict[str, Callable[[Project, PartitionKey, int], Frames]] = {
    "extract": _extract,
    "probe": _probe,
    "calibrate": _calibrate,
    "measure": _measure,
    "aggregate": _aggregate,
    "derive_axes": _derive_axes,
}
"""Stage -> what draws its rows; replicates have a number besides (:func:`_replicate`)."""


def _grid(axes: dict[str, Sequence[object]]) -> pl.DataFrame:
    """Return the product of the axes, the last one fastest."""
    frame = pl.DataFrame({"_": [0]})
    for name, values in axes.items():
        frame = frame.join(pl.DataFrame({name: list(values)}), how="cross", maintain_order="left_right")
    return frame.drop("_")


def _lists(rows: NDArray[np.float32]) -> pl.Series:
    return pl.Series(rows).arr.to_list()
