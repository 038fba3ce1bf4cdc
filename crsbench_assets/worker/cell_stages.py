"""Stages of a cell: extract vectors, fit probes, measure, aggregate, derive the axes.

What lives here: aligning tables into arrays and handing them to the pure functions below. What stays out: those
functions (``embeddings``, ``probes``, ``metrics``, ``aggregates``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench_assets.aggregates.axes import cell_axes
from crsbench_assets.aggregates.seeds import seed_aggregates
from crsbench_assets.config.cards import PRIMARY
from crsbench_assets.config.ids import CLEAN, VALIDATION_CONDITION, shift_condition
from crsbench_assets.config.machine import exact_device, one_thread
from crsbench_assets.config.pace import Pace
from crsbench_assets.data.splits import TEST, TRAIN, VALIDATION, fraction_size
from crsbench_assets.embeddings.extract import extract as extract_vectors
from crsbench_assets.encoders.source import Machine, vector_source
from crsbench_assets.metrics.records import Record, measure_records
from crsbench_assets.probes.fit import ProbeInputs, fit_cell, prediction_rows, raw_probes
from crsbench_assets.worker.cohort_stages import LEFT_OUT
from crsbench_assets.worker.context import StageContext, StageOutput

NO_EFFECT = "no_effect"
NO_ACCESS = "no_access"
UNCHANGED_SHARE = 0.01


def extract(context: StageContext) -> StageOutput:
    """Return the vectors of a cell, or the failure of the whole cell."""
    scratch = context.project.layout.scratch(context.inputs_hash)
    return extract_cell(context, context.read("images"), context.read("splits", ["image_id", "split"]), scratch)


def extract_cell(
    context: StageContext, images: pl.DataFrame, splits: pl.DataFrame, scratch: Path | None = None
) -> StageOutput:
    """Return the vectors of a cell whose dataset was indexed and split as given; ``scratch`` keeps finished parts."""
    settings = context.project.registry.settings
    machine = Machine(settings.device, settings.batch_size, context.n_threads, scratch)
    support = splits.filter(pl.col("split") != LEFT_OUT).get_column("image_id").unique()
    images = images.filter((pl.col("source_id") != PRIMARY) | pl.col("image_id").is_in(support.to_list()))
    extraction = extract_vectors(
        vector_source(context.encoder, context.dataset, machine),
        images.sort("image_id"),
        _test_ids(splits),
        context.protocol.corruption_conditions,
        context.shift_id,
        context.progress,
    )
    frames = {
        "embedding_failures": extraction.failures,
        "shift_embeddings": extraction.shift_embeddings,
        "embeddings": extraction.embeddings,
    }
    return StageOutput(frames, extraction.reason, extraction.detail, scratch)


def probe(context: StageContext) -> StageOutput:
    """Return every fit and prediction of a cell."""
    inputs = probe_inputs(context)
    n_fits = len(inputs.fraction_sizes)
    done: list[tuple[int, float]] = []
    pace = Pace()

    def on_fit(seed: int, fraction: float) -> None:
        done.append((seed, fraction))
        if pace.is_due(len(done), n_fits):
            context.progress(f"{len(done)} of {n_fits} fits")

    with one_thread():
        fitted = fit_cell(inputs, on_fit=on_fit)
    is_kept = pl.col("condition_id").is_in([CLEAN, VALIDATION_CONDITION, *_shift_conditions(context)])
    keeps_all = context.project.registry.settings.predictions == "all"
    predictions = fitted.predictions if keeps_all else fitted.predictions.filter(is_kept)
    return StageOutput(
        {"probe_fits": fitted.probe_fits, "probe_weights": fitted.probe_weights, "predictions": predictions}
    )


def probe_inputs(context: StageContext) -> ProbeInputs:
    """Return what the probes of a cell see: vectors aligned with labels, and the rows of every split."""
    protocol, card = context.protocol, context.dataset
    columns = ("condition_id", "image_id", "vector")
    embeddings, shift = context.read("embeddings", columns), context.read("shift_embeddings", columns)
    images, splits = context.read("images").sort("image_id"), context.read("splits")
    by_condition = pl.concat([embeddings, shift]).partition_by("condition_id", as_dict=True)
    clean = by_condition[CLEAN,].sort("image_id")
    ids = clean.get_column("image_id")
    primary = images.filter(pl.col("source_id") == PRIMARY).filter(pl.col("image_id").is_in(ids.to_list()))
    labels = label_matrix(primary)
    row_of = pl.DataFrame({"image_id": ids, "row": np.arange(len(ids))})
    train = {seed: _split_rows(splits, row_of, seed, TRAIN) for seed in protocol.seeds}
    feasible = set(json.loads(context.read("dataset_statistics").get_column("feasible_fractions")[0]))
    test_ids = set(_test_ids(splits))
    vectors = {str(name): part for (name,), part in by_condition.items()}
    vectors[CLEAN] = clean.filter(pl.col("image_id").is_in(list(test_ids)))
    return ProbeInputs(
        task=card.task,
        classes=card.classes,
        image_ids=ids.to_list(),
        features=vector_matrix(clean),
        labels=labels,
        train=train,
        validation={seed: _split_rows(splits, row_of, seed, VALIDATION) for seed in protocol.seeds},
        fraction_sizes={
            (seed, f): fraction_size(len(rows), f) if f in feasible else None
            for seed, rows in train.items()
            for f in protocol.label_fractions
        },
        test={
            name: (part.get_column("image_id").to_list(), vector_matrix(part))
            for name, part in sorted((name, part.sort("image_id")) for name, part in vectors.items())
        },
        c=protocol.probe.c,
        gap=protocol.probe.relative_gap,
        sd_floor=protocol.probe.sd_floor,
        device=exact_device(context.project.registry.settings.device),
    )


def measure(context: StageContext) -> StageOutput:
    """Return the metrics of every record of a cell, also of those that cannot be."""
    protocol, card = context.protocol, context.dataset
    with one_thread():
        records = measure_records(
            cell_records(context),
            dataset_id=card.id,
            task=card.task,
            classes=card.classes,
            n_bins=protocol.metrics.ece_bins,
            n_replicates=protocol.metrics.test_replicates,
            encoder_id=context.encoder.id,
        )
    return StageOutput(
        {
            "reliability_bins": records.reliability_bins,
            "label_metrics": records.label_metrics,
            "run_records": records.run_records,
        }
    )


def aggregate(context: StageContext) -> StageOutput:
    """Return mean and spread over the seeds."""
    return StageOutput({"seed_aggregates": seed_aggregates(context.read("run_records"), context.protocol.seeds)})


def derive_axes(context: StageContext) -> StageOutput:
    """Return the axes of a cell, all variants."""
    axes = cell_axes(
        context.read("label_metrics"),
        context.read("run_records"),
        protocol=context.protocol,
        shift_id=context.shift_id,
    )
    return StageOutput({"cell_axes": axes})


def cell_records(context: StageContext) -> Iterator[Record]:
    """Yield every record that the protocol asks for: its logits, or the reason why there are none."""
    protocol, card = context.protocol, context.dataset
    images = context.read("images").sort("image_id")
    record = ("seed", "label_fraction", "condition_id")
    by_record = _all_predictions(context).sort(*record, "image_id").partition_by(record, as_dict=True)
    fits = context.read("probe_fits").filter(pl.col("reason") == "infeasible_fraction")
    infeasible = set(fits.get_column("label_fraction").to_list())
    idle = _conditions_without_effect(context.read("embeddings", ["condition_id", "is_unchanged"]))
    truth: dict[tuple[str, int], tuple[NDArray[np.int8], NDArray[np.int64]]] = {}
    for seed in protocol.seeds:
        for fraction in protocol.label_fractions:
            for condition in protocol.conditions(context.shift_id):
                part = by_record.get((seed, fraction, condition))
                flag = NO_EFFECT if condition in idle else None
                source = context.source_of(condition)
                if part is None:
                    reason = "infeasible_fraction" if fraction in infeasible else why_no_vectors(images, source)
                    yield Record(seed, fraction, condition, reason=reason)
                    continue
                name = (source, part.height)
                if name not in truth:
                    truth[name] = labels_and_groups(images, source, part.get_column("image_id"))
                labels, groups = truth[name]
                logits = logits_matrix(part, len(card.classes))
                yield Record(seed, fraction, condition, logits, labels, groups, source, flag=flag)


def _all_predictions(context: StageContext) -> pl.DataFrame:
    """Return the predictions of a cell; those that were not kept are made again, bit by bit as they were."""
    predictions = context.read("predictions")
    if context.project.registry.settings.predictions == "all":
        return predictions
    weights = context.read("probe_weights")
    vectors = context.read("embeddings", ["condition_id", "image_id", "vector"])
    kept = predictions.get_column("condition_id").unique().to_list()
    parts = [predictions.drop("encoder_id", "dataset_id")]
    others = vectors.filter(~pl.col("condition_id").is_in(kept)).partition_by("condition_id", as_dict=True)
    for (condition,), rows in others.items():
        ordered = rows.sort("image_id")
        matrix = vector_matrix(ordered)
        for seed in context.protocol.seeds:
            probes = raw_probes(weights, seed, context.dataset.classes, matrix.shape[1])
            ids = ordered.get_column("image_id").to_list()
            parts.append(prediction_rows(seed, str(condition), ids, probes, matrix))
    return pl.concat(parts)


def _shift_conditions(context: StageContext) -> list[str]:
    return [shift_condition(context.shift_id)] if context.shift_id else []


def _conditions_without_effect(embeddings: pl.DataFrame) -> set[str]:
    """Return the conditions that left more than 1 % of the test images as they were (protocol section 3)."""
    share = embeddings.group_by("condition_id").agg(pl.col("is_unchanged").mean())
    return set(share.filter(pl.col("is_unchanged") > UNCHANGED_SHARE).get_column("condition_id"))


def why_no_vectors(images: pl.DataFrame, source_id: str) -> str:
    """Return why a condition has no vector at all.

    Args:
        images: rows of table ``images``. A source that was read has at least one; one without was not, because its
            agreement is not recorded.
        source_id: the source of the condition's images.
    """
    return "no_vectors" if (images.get_column("source_id") == source_id).any() else NO_ACCESS


def rows_of_images(images: pl.DataFrame, source_id: str, ids: Sequence[str] | pl.Series) -> pl.DataFrame:
    """Return the rows of images of one source, in the order of the ids."""
    wanted = pl.DataFrame({"image_id": ids}, schema={"image_id": pl.String})
    of_source = images.filter(pl.col("source_id") == source_id)
    return wanted.join(of_source, on="image_id", how="left", maintain_order="left")


def labels_and_groups(
    images: pl.DataFrame, source_id: str, ids: Sequence[str] | pl.Series
) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """Return labels (n, k), -1 where unknown, and groups (n,), numbered from 0, of images in the order of the ids."""
    rows = rows_of_images(images, source_id, ids)
    _, groups = np.unique(rows.get_column("group_index").to_numpy(), return_inverse=True)
    return label_matrix(rows), groups


def _test_ids(splits: pl.DataFrame) -> list[str]:
    return splits.filter(pl.col("split") == TEST).get_column("image_id").unique().sort().to_list()


def _split_rows(splits: pl.DataFrame, row_of: pl.DataFrame, seed: int, split: str) -> NDArray[np.int64]:
    """Return the row numbers of a split; those of the training split in the order of its label fractions."""
    chosen = splits.filter((pl.col("seed") == seed) & (pl.col("split") == split)).sort("position", "image_id")
    return chosen.join(row_of, on="image_id", how="inner", maintain_order="left").get_column("row").to_numpy()


def vector_matrix(rows: pl.DataFrame) -> NDArray[np.float32]:
    """Return column ``vector`` as float32 (n, d)."""
    vectors = rows.get_column("vector")
    width = int(vectors.list.len()[0]) if rows.height else 0
    flat: NDArray[np.float32] = vectors.explode().to_numpy()
    return flat.reshape(rows.height, width)


def label_matrix(rows: pl.DataFrame) -> NDArray[np.int8]:
    """Return column ``labels`` as int8 (n, k) with -1 where unknown."""
    labels: Any = rows.get_column("labels")
    flat: NDArray[np.int8] = labels.explode().fill_null(-1).to_numpy()
    return flat.reshape(rows.height, -1).astype(np.int8)


def logits_matrix(rows: pl.DataFrame, k: int) -> NDArray[np.float32]:
    """Return column ``logits`` as float32 (n, k) with NaN where a class was not fitted."""
    flat: NDArray[np.float32] = rows.get_column("logits").explode().to_numpy()
    return flat.reshape(rows.height, k)
