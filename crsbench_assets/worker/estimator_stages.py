"""The stage that repeats a cell under other estimators.

What lives here: which records it makes, and the rows of ``estimator_fits``, ``estimator_records`` and
``estimator_axes``. What stays out: the estimators (``probes.estimators``), the metrics (``metrics``), the definition of
the axes (``aggregates.axes``), and the scores under each estimator, which an analysis derives from these tables.
Source: protocol page, section 8, ``estimator_dependence``.

An axis reads clean records at every label fraction and every condition at all labels, so no others are made. The unit
of reproduction is (cell, seed, estimator).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from crsbench_assets.aggregates.axes import CHANCE_CORRECTED, cell_axes
from crsbench_assets.config.cards import PRIMARY
from crsbench_assets.config.ids import CLEAN
from crsbench_assets.config.machine import one_thread
from crsbench_assets.config.pace import Pace
from crsbench_assets.metrics.compute import record_metrics
from crsbench_assets.metrics.records import METRIC_NAMES
from crsbench_assets.probes.estimators.interface import Estimator, FittedEstimator, LinearModel
from crsbench_assets.probes.estimators.neighbours import NearestNeighbours
from crsbench_assets.probes.estimators.perceptron import PerceptronHead
from crsbench_assets.probes.estimators.ridge import Ridge
from crsbench_assets.probes.estimators.tuned_logistic import TunedLogistic
from crsbench_assets.probes.fit import ProbeInputs, Standardisation, standardisation
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.worker.cell_stages import labels_and_groups, probe_inputs, rows_of_images, why_no_vectors
from crsbench_assets.worker.context import StageContext, StageOutput

Models = dict[tuple[str, float], FittedEstimator | None]
"""(estimator, label fraction) -> model, None where the fraction is infeasible."""


def estimators_of(inputs: ProbeInputs) -> tuple[Estimator, ...]:
    """Return the estimators that a cell is repeated under, with the protocol's constants where they have them."""
    return (
        TunedLogistic(inputs.c, inputs.gap, inputs.device),
        NearestNeighbours(),
        PerceptronHead(inputs.device),
        Ridge(),
    )


def estimate(context: StageContext) -> StageOutput:
    """Return fits, records and axes of a cell under every other estimator."""
    cell = _Cell(context, probe_inputs(context))
    with one_thread():
        for seed in cell.inputs.train:
            cell.add_seed(seed)
    return StageOutput(
        {
            "estimator_fits": TABLES["estimator_fits"].computed(cell.fits),
            "estimator_records": TABLES["estimator_records"].computed(cell.records),
            "estimator_axes": cell.axes(),
        }
    )


class _Cell:
    """A cell under the estimators, and its rows so far."""

    def __init__(self, context: StageContext, inputs: ProbeInputs) -> None:
        self.context, self.inputs = context, inputs
        self.fits: list[dict[str, Any]] = []
        self.records: list[dict[str, Any]] = []
        self.labels: list[dict[str, Any]] = []
        self._images = context.read("images", ["image_id", "source_id", "group_index", "labels"])
        self._pace = Pace()

    def add_seed(self, seed: int) -> None:
        """Fit every estimator on every fraction of a seed, then measure one condition after the other."""
        train = self.inputs.features[self.inputs.train[seed]]
        z = standardisation(train, self.inputs.sd_floor)
        models = self._models(seed, z.apply(train))
        for condition in self.context.protocol.conditions(self.context.shift_id):
            # an axis reads all fractions of clean images only
            wanted = {key: model for key, model in models.items() if condition == CLEAN or key[1] == 1.0}
            self._measure(seed, condition, z, wanted)

    def axes(self) -> pl.DataFrame:
        """Return the axes under every estimator; without intervals the near-chance flag stays with the probe's axes."""
        records = TABLES["estimator_records"].computed(self.records)
        key = {name: records.schema[name] for name in ("estimator", "seed", "label_fraction", "condition_id")}
        labels = pl.DataFrame(self.labels, schema=key | {"class_name": pl.String(), "auroc": pl.Float64()})
        parts = [
            cell_axes(
                labels.filter(pl.col("estimator") == name),
                records.filter(pl.col("estimator") == name),
                protocol=self.context.protocol,
                shift_id=self.context.shift_id,
            ).with_columns(estimator=pl.lit(name))
            for name in records.get_column("estimator").unique(maintain_order=True)
        ]
        kept = pl.concat(parts).filter(pl.col("variant") != CHANCE_CORRECTED)
        return kept.select(list(TABLES["estimator_axes"].computed_schema()))

    def _models(self, seed: int, features: NDArray[np.float32]) -> Models:
        """Return the models of a seed; an infeasible fraction has none."""
        inputs, models = self.inputs, Models()
        train = inputs.train[seed]
        labels = inputs.labels[train]
        train_ids = [inputs.image_ids[row] for row in train]
        groups = rows_of_images(self._images, PRIMARY, train_ids).get_column("group_index").to_numpy()
        estimators = estimators_of(inputs)
        n_fits = len(inputs.fraction_sizes) * len(estimators)
        names = (self.context.dataset.id, seed)
        for fraction in inputs.fractions(seed):
            n = inputs.fraction_sizes[seed, fraction]
            for estimator in estimators:
                model = None
                if n is not None:
                    model = estimator.fit(features[:n], labels[:n], inputs.task, groups=groups[:n], names=names)
                models[estimator.name, fraction] = model
                key = {"estimator": estimator.name, "seed": seed, "label_fraction": fraction, "n_fit": n or 0}
                self.fits.append(key | _fit_row(model))
                if self._pace.is_due(len(self.fits), n_fits):
                    self.context.progress(f"{len(self.fits)} of {n_fits} fits")
        return models

    def _measure(self, seed: int, condition: str, z: Standardisation, models: Models) -> None:
        """Add the records of one condition."""
        keys = [
            {"estimator": name, "seed": seed, "label_fraction": fraction, "condition_id": condition}
            for name, fraction in models
        ]
        if condition not in self.inputs.test:
            reason = why_no_vectors(self._images, self.context.source_of(condition))
            self.records += [key | _undefined_record(reason) for key in keys]
            return
        ids, vectors = self.inputs.test[condition]
        features = z.apply(vectors)
        labels, groups = labels_and_groups(self._images, self.context.source_of(condition), ids)
        for key, model in zip(keys, models.values(), strict=True):
            if model is None:
                self.records.append(key | _undefined_record("infeasible_fraction"))
                continue
            # rounded as the probe's logits are stored
            logits = model.logits(features).astype(np.float32)
            n_bins = self.context.protocol.metrics.ece_bins
            metrics = record_metrics(logits, labels, self.inputs.task, groups=groups, n_bins=n_bins)
            values = {metric: getattr(metrics, metric) for metric in METRIC_NAMES}
            self.records.append(key | values | {"n": metrics.n, "reason": metrics.reason})
            self.labels += [
                key | {"class_name": self.inputs.classes[row.index], "auroc": row.auroc} for row in metrics.labels
            ]


def _fit_row(model: FittedEstimator | None) -> dict[str, Any]:
    if model is None:
        nothing: dict[str, Any] = dict.fromkeys(("setting", "held_out_loss", "relative_gap"))
        return nothing | {"n_folds": 0, "reason": "infeasible_fraction"}
    selection = model.selection
    return {
        "setting": selection.setting,
        "n_folds": selection.n_folds,
        "held_out_loss": selection.loss,
        "relative_gap": model.relative_gap if isinstance(model, LinearModel) else None,
        "reason": "one_class_train" if selection.setting is None else None,
    }


def _undefined_record(reason: str) -> dict[str, Any]:
    return dict.fromkeys(METRIC_NAMES) | {"n": 0, "reason": reason}
