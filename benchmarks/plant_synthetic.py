"""Plants the truth of the panel ``synthetic15``: the expected axis values of every cell, by simulation.

What lives here: one cell simulated from cohort to axes in memory, that simulation repeated in independent universes,
and the cards' ``planted`` (mean over universes) and ``planted_se`` (standard deviation of one universe, which is the
standard error of the one cell that a demo measures). What stays out: the generator (``encoders.synthetic``), its
settings (the cards) and the comparison of a measured panel with these values (the integration tests).

A universe is a fresh draw of everything: it adds a suffix to the dataset's id, by which cohort, splits and vectors
are keyed. All encoders of a universe share its cohort, as they do in a demo, so scores can be formed within it.
Definitions: protocol page, sections 2 to 7.

The values in the cards come from the 14 universes of this command (about a quarter of an hour of one core)::

    nice python -m benchmarks.plant_synthetic --write
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from crsbench_assets.aggregates.axes import PRIMARY as PRIMARY_VARIANT
from crsbench_assets.aggregates.axes import cell_axes
from crsbench_assets.config.cards import PRIMARY, DatasetCard, EncoderCard
from crsbench_assets.config.ids import CLEAN, shift_condition
from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.config.registry import CATALOG, load_protocol, read_card
from crsbench_assets.data.cohort import Cohort, group_index, read_cohorts
from crsbench_assets.data.splits import TEST, TRAIN, draw_splits, fraction_size, is_feasible
from crsbench_assets.encoders.synthetic import SyntheticVectors
from crsbench_assets.metrics.records import Record, measure_records
from crsbench_assets.probes.fit import ProbeInputs, fit_cell
from crsbench_assets.scores.crs import crs_scores
from crsbench_assets.scores.panel import PanelConditions, freeze
from crsbench_assets.scores.profile import AXIS_VALUES_SCHEMA, ENCODERS_SCHEMA
from crsbench_assets.worker.cell_stages import logits_matrix

PANEL = CATALOG / "panels" / "synthetic15"

DRAWS_SCHEMA: dict[str, pl.DataType] = {"universe": pl.Int64(), **AXIS_VALUES_SCHEMA}

Truth = tuple[NDArray[np.int8], NDArray[np.int64]]
"""Labels (n, k) and group numbers (n,) of the images that a record is measured on."""


@dataclass(frozen=True)
class SplitCohort:
    """A synthetic dataset, drawn and split.

    Args:
        card: the dataset; its id keys every draw.
        cohorts: ``primary`` and the shift target.
        test: row numbers of the test images.
        train: seed -> row numbers of train, in the order whose prefixes are the label fractions.
        fraction_sizes: (seed, fraction) -> images, None where infeasible.
    """

    card: DatasetCard
    cohorts: Mapping[str, Cohort]
    test: NDArray[np.int64]
    train: Mapping[int, NDArray[np.int64]]
    fraction_sizes: Mapping[tuple[int, float], int | None]


def in_universe(encoder: EncoderCard, dataset: DatasetCard, universe: int) -> tuple[EncoderCard, DatasetCard]:
    """Return both cards with the dataset renamed, so that all that is keyed by its id is drawn afresh."""
    renamed = f"{dataset.id}-u{universe}"
    return (
        encoder.model_copy(update={"cells": {renamed: encoder.cells[dataset.id]}}),
        dataset.model_copy(update={"id": renamed}),
    )


def split_cohort(card: DatasetCard, protocol: Protocol) -> SplitCohort:
    """Return the cohort of a synthetic dataset with its splits, as the stages of a dataset draw them."""
    cohorts = read_cohorts(card, "u_zeros")
    own = cohorts[PRIMARY]
    frame = draw_splits(
        own.image_ids,
        own.groups,
        own.labels,
        own.declared_split,
        dataset_id=card.id,
        seeds=protocol.seeds,
        test_fraction=protocol.splits.test_fraction,
        validation_fraction=protocol.splits.validation_fraction,
    ).frame
    row_of = {image_id: row for row, image_id in enumerate(own.image_ids)}

    def rows(part: pl.DataFrame) -> NDArray[np.int64]:
        return np.array([row_of[image_id] for image_id in part.get_column("image_id")], dtype=np.int64)

    def of_seed(seed: int, split: str) -> pl.DataFrame:
        return frame.filter((pl.col("seed") == seed) & (pl.col("split") == split))

    train = {seed: rows(of_seed(seed, TRAIN).sort("position")) for seed in protocol.seeds}
    feasible = {
        fraction: is_feasible(frame, own.image_ids, own.labels, fraction, is_multi_label=card.task == "multi_label")
        for fraction in protocol.label_fractions
    }
    return SplitCohort(
        card=card,
        cohorts=cohorts,
        test=rows(of_seed(protocol.seeds[0], TEST).sort("image_id")),
        train=train,
        fraction_sizes={
            (seed, fraction): fraction_size(len(of_train), fraction) if feasible[fraction] else None
            for seed, of_train in train.items()
            for fraction in protocol.label_fractions
        },
    )


def simulated_axes(encoder: EncoderCard, drawn: SplitCohort, protocol: Protocol) -> dict[str, float]:
    """Return the four axis values of one cell, in memory and without what no axis needs.

    Those of the stages, up to rounding: left out are intervals, and corrupted conditions below all labels.

    Args:
        encoder: a synthetic encoder with a cell on the dataset.
        drawn: the dataset.
        protocol: as of the demo.

    Raises:
        ValueError: an axis is undefined, so its expectation cannot be planted.
    """
    card = drawn.card
    shift_id = card.shift.id if card.shift else None
    own = drawn.cohorts[PRIMARY]
    source = SyntheticVectors(encoder, card)
    clean = source.vectors(CLEAN, own.image_ids, own.labels)
    test_ids = [own.image_ids[row] for row in drawn.test]
    test = {CLEAN: (test_ids, clean[drawn.test])}
    for condition in protocol.corruption_conditions:
        test[condition] = (test_ids, source.vectors(condition, test_ids, own.labels[drawn.test]))
    if shift_id is not None:
        shifted = drawn.cohorts[shift_id]
        condition = shift_condition(shift_id)
        test[condition] = (shifted.image_ids, source.vectors(condition, shifted.image_ids, shifted.labels))
    inputs = ProbeInputs(
        task=card.task,
        classes=card.classes,
        image_ids=own.image_ids,
        features=clean,
        labels=own.labels,
        train=drawn.train,
        validation=dict.fromkeys(drawn.train, np.empty(0, dtype=np.int64)),
        fraction_sizes={key: size for key, size in drawn.fraction_sizes.items() if key[1] == 1.0},
        test=test,
        c=protocol.probe.c,
        gap=protocol.probe.relative_gap,
        sd_floor=protocol.probe.sd_floor,
    )
    scarce = {key: size for key, size in drawn.fraction_sizes.items() if key[1] < 1.0}
    at_all_labels = fit_cell(inputs).predictions
    at_fractions = fit_cell(replace(inputs, fraction_sizes=scarce, test={CLEAN: test[CLEAN]})).predictions
    rows = measure_records(
        _records(drawn, pl.concat([at_all_labels, at_fractions])),
        dataset_id=card.id,
        task=card.task,
        classes=card.classes,
        n_bins=protocol.metrics.ece_bins,
        n_replicates=0,
        encoder_id=encoder.id,
    )
    axes = cell_axes(rows.label_metrics, rows.run_records, protocol=protocol, shift_id=shift_id)
    primary = axes.filter(pl.col("variant") == PRIMARY_VARIANT)
    values = dict(primary.select("axis", "value").iter_rows())
    if any(values[axis] is None for axis in AXES):
        raise ValueError(f"cell {encoder.id} on {card.id}: undefined axes among {values}")
    return {axis: values[axis] for axis in AXES}


def _records(drawn: SplitCohort, predictions: pl.DataFrame) -> Iterator[Record]:
    truths: dict[str, Truth] = {}
    for source_id, cohort in drawn.cohorts.items():
        rows = drawn.test if source_id == PRIMARY else np.arange(len(cohort.image_ids))
        _, groups = np.unique(group_index(cohort.groups)[rows], return_inverse=True)
        truths[source_id] = (cohort.labels[rows], groups)
    source_of = {shift_condition(source_id): source_id for source_id in drawn.cohorts}
    by_record = predictions.partition_by("seed", "label_fraction", "condition_id", as_dict=True)
    for (seed, fraction, condition), part in by_record.items():
        source_id = source_of.get(str(condition), PRIMARY)
        labels, groups = truths[source_id]
        logits = logits_matrix(part, len(drawn.card.classes))
        yield Record(int(seed), float(fraction), str(condition), logits, labels, groups, source_id)


def panel_scores(values: pl.DataFrame, encoders: pl.DataFrame, protocol: Protocol) -> dict[str, float]:
    """Return the Clinical Reliability Score of every encoder against the panel of them all.

    Args:
        values: rows as ``scores.profile.axis_values`` makes them, complete for every encoder.
        encoders: (encoder_id, role, dataset_ids).
        protocol: whose weights are used.
    """
    datasets = sorted(set(values.get_column("dataset_id")))
    conditions = PanelConditions(
        protocol_id=f"{protocol.id}@{protocol.hash[:12]}",
        protocol_hash=protocol.hash,
        arm="main",
        label_policy="u_zeros",
        robustness_variant="shift",
        canonical_px=1,  # there are no images; every encoder is under the same conditions
        caps={},
        test_set_hash=dict.fromkeys(datasets, ""),
        feasible_fractions=dict.fromkeys(datasets, protocol.label_fractions),
        code_versions={},
    )
    panel, _ = freeze("planted", values, encoders, conditions)
    scores, _ = crs_scores(values, encoders, panel, protocol, code_version=1)
    return dict(scores.select("encoder_id", "crs").iter_rows())


def panel_cards() -> tuple[dict[str, EncoderCard], dict[str, DatasetCard]]:
    """Return the cards of the panel by id."""
    return (
        {path.stem: read_card(EncoderCard, path) for path in sorted((PANEL / "encoders").glob("*.yaml"))},
        {path.stem: read_card(DatasetCard, path) for path in sorted((PANEL / "datasets").glob("*.yaml"))},
    )


def encoders_frame(encoders: Mapping[str, EncoderCard]) -> pl.DataFrame:
    """Return the encoders as the scores read them: (encoder_id, role, dataset_ids)."""
    rows = [(card.id, card.role, sorted(card.cells)) for card in encoders.values()]
    return pl.DataFrame(rows, schema=ENCODERS_SCHEMA, orient="row")


def draws_of(task: tuple[int, str]) -> pl.DataFrame:
    """Return the axis values of every cell of one dataset in one universe."""
    universe, dataset_id = task
    encoders, datasets = panel_cards()
    protocol = load_protocol("crs-1", Path())
    rows = []
    drawn: SplitCohort | None = None
    for encoder in encoders.values():
        if dataset_id not in encoder.cells:
            continue
        renamed, dataset = in_universe(encoder, datasets[dataset_id], universe)
        drawn = drawn or split_cohort(dataset, protocol)
        values = simulated_axes(renamed, drawn, protocol)
        rows += [(universe, encoder.id, dataset_id, axis, values[axis], None) for axis in AXES]
    return pl.DataFrame(rows, schema=DRAWS_SCHEMA, orient="row")


def simulate(n_universes: int, n_processes: int) -> pl.DataFrame:
    """Return the axis values of every cell in every universe (universe, encoder_id, dataset_id, axis, value)."""
    _, datasets = panel_cards()
    tasks = [(universe, dataset_id) for universe in range(n_universes) for dataset_id in datasets]
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the processes share the cores
    parts = []
    with multiprocessing.get_context("spawn").Pool(n_processes) as pool, Progress() as progress:
        bar = progress.add_task("datasets simulated", total=len(tasks))
        for part in pool.imap_unordered(draws_of, tasks):
            parts.append(part)
            progress.advance(bar)
    return pl.concat(parts)


def planted_values(draws: pl.DataFrame) -> pl.DataFrame:
    """Return mean and standard deviation (ddof 1) over the universes (encoder_id, dataset_id, axis, value, se)."""
    return (
        draws.group_by("encoder_id", "dataset_id", "axis")
        .agg(value=pl.col("value").mean(), se=pl.col("value").std(), reason=pl.lit(None, dtype=pl.String))
        .sort("encoder_id", "dataset_id", "axis")
    )


def planted_scores(draws: pl.DataFrame, protocol: Protocol) -> pl.DataFrame:
    """Return the planted CRS, best first, the standard deviation of one universe's, and the gap to the next.

    Returns:
        (encoder_id, crs, se, gap, gap_se): ``gap`` is to the next encoder, ``gap_se`` counts it in standard
        deviations of one universe's difference between the two, which share a cohort; both NULL in the last row.
    """
    encoders, _ = panel_cards()
    frame = encoders_frame(encoders)
    planted = panel_scores(planted_values(draws).select(AXIS_VALUES_SCHEMA.keys()), frame, protocol)
    of_universes = [
        panel_scores(part.select(AXIS_VALUES_SCHEMA.keys()), frame, protocol) for part in draws.partition_by("universe")
    ]
    drawn = {encoder: np.array([scores[encoder] for scores in of_universes]) for encoder in planted}
    order = sorted(planted, key=lambda encoder: -planted[encoder])
    rows = []
    for encoder, following in zip(order, [*order[1:], None], strict=True):
        row = {"encoder_id": encoder, "crs": planted[encoder], "se": float(drawn[encoder].std(ddof=1))}
        if following is not None:
            gap = planted[encoder] - planted[following]
            row |= {"gap": gap, "gap_se": gap / float((drawn[encoder] - drawn[following]).std(ddof=1))}
        rows.append(row)
    numbers = dict.fromkeys(("crs", "se", "gap", "gap_se"), pl.Float64())
    schema: dict[str, pl.DataType] = {"encoder_id": pl.String(), **numbers}
    return pl.DataFrame(rows, schema=schema)


def write_planted(values: pl.DataFrame) -> None:
    """Write the planted values and their standard errors into the cards, whose comments and order stay."""
    from ruamel.yaml import YAML

    round_trip = YAML()
    round_trip.width = 118
    for (encoder_id,), of_encoder in values.partition_by("encoder_id", as_dict=True).items():
        path = PANEL / "encoders" / f"{encoder_id}.yaml"
        card = round_trip.load(path.read_text(encoding="utf-8"))
        for (dataset_id,), of_cell in of_encoder.partition_by("dataset_id", as_dict=True).items():
            by_axis = {axis: (value, se) for axis, value, se in of_cell.select("axis", "value", "se").iter_rows()}
            cell = card["cells"][dataset_id]
            cell["planted"] = {axis: round(by_axis[axis][0], 5) for axis in AXES}
            cell["planted_se"] = {axis: round(by_axis[axis][1], 5) for axis in AXES}
        temporary = path.with_suffix(".yaml.tmp")
        with temporary.open("w", encoding="utf-8") as file:
            round_trip.dump(card, file)
        os.replace(temporary, path)


def main() -> None:
    """Simulate the panel, show its planted scores, and write the planted values on request."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--universes", type=int, default=14, help="independent simulations of every cell")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--write", action="store_true", help="store the planted values in the cards")
    arguments = parser.parse_args()
    draws = simulate(arguments.universes, arguments.processes)
    table = Table("encoder", "planted CRS", "SE", "gap to next", "gap in SE")
    for row in planted_scores(draws, load_protocol("crs-1", Path())).iter_rows():
        table.add_row(*[cell if isinstance(cell, str) else "" if cell is None else f"{cell:.4f}" for cell in row])
    Console().print(table)
    if arguments.write:
        write_planted(planted_values(draws))


if __name__ == "__main__":
    main()
