"""Whether the pipeline tells the truth: encoders of known reliability through real splits, probes and scores.

What lives here: the simulation behind ``crsbench bench validity`` and its three questions. Are equal encoders left
unseparated? Do 95 % intervals cover what is true? Are planted gaps found? What stays out: the vectors
(``encoders.synthetic``) and all that is under test, which is called as the stages call it, without Dagster and lake.
Source: protocol page, section 8, which sets the bars.

A universe is a fresh draw of everything: two cohorts, their splits, the noise of their images. The encoders of a
universe see the same images, so most of their noise is common, as in a real benchmark. Equal encoders have the same
settings, hence the same distribution of vectors, and no vector in common.

What is true, and how it is known:

- AUROC and ECE of a record: those of the same probe on further images of the same distribution.
- An axis: its mean over the universes, measured on the further images. Test images, seeds and the pool that the probes
  were trained on are averaged out. The mean of what the test images gave would not do: an ECE is biased upward on few.
- A score: that of the true axes against a panel of two members with stated values, which are not measured, so that no
  anchor is uncertain.
- A planted gap in standard errors: mean over standard deviation, over the universes, of the difference of two scores.

Run from a clone: ``crsbench bench validity``, or ``python -m benchmarks.validity``.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import Progress

from benchmarks.plant_synthetic import SplitCohort, split_cohort
from crsbench_assets.aggregates.axes import cell_axes
from crsbench_assets.aggregates.replicates import axis_replicates
from crsbench_assets.config.cards import PRIMARY, DatasetCard, EncoderCard
from crsbench_assets.config.ids import CLEAN
from crsbench_assets.config.machine import one_thread
from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.config.registry import load_protocol
from crsbench_assets.data.cohort import group_index
from crsbench_assets.data.sources.synthetic import draw_cohort
from crsbench_assets.encoders.synthetic import SyntheticVectors
from crsbench_assets.metrics.records import Record, measure_records
from crsbench_assets.metrics.replicates import LEVEL, ece_interval, percentile_interval
from crsbench_assets.probes.fit import ProbeInputs, fit_cell
from crsbench_assets.scores.crs import crs_scores
from crsbench_assets.scores.panel import Panel, PanelConditions, freeze, provisional_panel
from crsbench_assets.scores.profile import AXIS_VALUES_SCHEMA, ENCODERS_SCHEMA, axis_values, is_scored
from crsbench_assets.scores.ranks import SEPARATION
from crsbench_assets.scores.resampling import RESAMPLINGS, resampled_scores
from crsbench_assets.worker.cell_stages import logits_matrix

N_UNIVERSES, N_QUICK = 50, 4
EQUAL_BAR, FOUND_BAR, GAP_SE = 0.075, 0.80, 4.0
COVERAGE_BARS = 0.90, 0.98

N_IMAGES, N_FURTHER = 3_660, 8_000  # 732 test images, as many as aptos2019 has: the smallest of the protocol
DATASETS = {
    "single": {"task": "single_label", "prevalence": [0.4, 0.3, 0.2, 0.1]},
    "multi": {"task": "multi_label", "prevalence": [0.5, 0.3, 0.2, 0.1]},
}

PLAIN = {"signal": 1.8, "n_nuisance": 10, "norm_spread": 0.6, "fragility": 0.6}
LEVELS = {"plain": PLAIN, "better": PLAIN | {"signal": 1.9, "norm_spread": 0.59, "fragility": 0.57}}
"""Settings of the encoders; those of one level are equal, and the two levels are about 4 standard errors apart.

Under these spreads of norms the true ECE lies above what the noise of 732 images makes of a calibrated model. Below it
an interval ends at 0, which nothing can undercut, and covers .97 and more by its nature: at a spread of .4 those of the
calibration axis covered .99.
"""

PANELS = {"equal": ["plain"] * 6, "planted": ["plain"] * 2 + ["better"] * 2}

REFERENCE = {
    "single": {"low": (0.90, 0.93, 0.90, 0.91), "high": (0.96, 0.99, 0.98, 0.97)},
    "multi": {"low": (0.85, 0.93, 0.88, 0.91), "high": (0.92, 0.99, 0.97, 0.97)},
}
"""Axis values, in the order of AXES, of the members that scores of known truth are measured against."""

SCORE = "CRS"
RECORD_QUANTITIES = {"macro_auroc": "AUROC of a record", "ece": "ECE of a record"}

PAIRS_SCHEMA: dict[str, pl.DataType] = {
    "universe": pl.Int64(),
    "first": pl.String(),
    "second": pl.String(),
    "difference": pl.Float64(),
    **dict.fromkeys(RESAMPLINGS, pl.Int64()),
}
"""Two encoders, CRS of the second less that of the first, and by resampling 1 where the second one is separated above
the first one, -1 where below, 0 where the two are not separated."""

INTERVALS_SCHEMA: dict[str, pl.DataType] = {
    "level": pl.String(),
    "dataset_id": pl.String(),
    "quantity": pl.String(),
    **dict.fromkeys(("low", "high", "further"), pl.Float64()),
}
"""A 95 % interval, and the quantity on the further images: NULL for a score, whose truth comes from the true axes."""

console = Console(highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Images:
    """Images to measure on: ids, labels (n, k), group numbers (n,), and vectors (n, d) by condition."""

    ids: Sequence[str]
    labels: NDArray[np.int8]
    groups: NDArray[np.int64]
    vectors: Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Measured:
    """Tables of one cell: ``run_records``, ``cell_axes``, and what ``axis_replicates`` is made of."""

    run_records: pl.DataFrame
    cell_axes: pl.DataFrame
    records: Sequence[Record]


@dataclass(frozen=True)
class Drawn:
    """What one universe gives: rows of PAIRS_SCHEMA and INTERVALS_SCHEMA."""

    kind: str
    pairs: pl.DataFrame
    intervals: pl.DataFrame


def run(quick: bool = False) -> int:
    """Print all figures and their bars; return 1 where a bar is missed, else 0.

    Args:
        quick: few universes, to see that it runs; their figures say little.
    """
    n_universes = N_QUICK if quick else N_UNIVERSES
    console.print(
        f"{n_universes} panels of equal and {n_universes} of planted encoders, 2 datasets each, {N_IMAGES:,} images "
        f"({N_IMAGES // 5} test images in fewer groups) a dataset"
    )
    drawn = simulate(n_universes, os.cpu_count() or 1)
    pairs = {kind: pl.concat([part.pairs for part in drawn if part.kind == kind]) for kind in PANELS}
    intervals = pl.concat([part.intervals for part in drawn])
    met = [separated(pairs["equal"]), *covered(intervals, load_protocol("crs-1", Path())), found(pairs["planted"])]
    console.print(f"validity: {sum(met)} of {len(met)} figures met: {verdict(all(met))}")
    return 0 if all(met) else 1


def main(quick: bool = False) -> int:
    """Run the simulation; see :func:`run`."""
    return run(quick)


def simulate(n_universes: int, n_processes: int) -> list[Drawn]:
    """Return what every universe gives, in any order."""
    tasks = [(kind, universe) for universe in range(n_universes) for kind in PANELS]
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "POLARS_MAX_THREADS"):
        os.environ[variable] = "1"  # the processes share the cores
    drawn = []
    with multiprocessing.get_context("spawn").Pool(n_processes) as pool, Progress(console=console) as progress:
        bar = progress.add_task("universes", total=len(tasks))
        for part in pool.imap_unordered(draw_universe, tasks):
            drawn.append(part)
            progress.advance(bar)
    return drawn


def draw_universe(task: tuple[str, int]) -> Drawn:
    """Return the pairs of a universe's panel, and the intervals of the first encoder of each level.

    Args:
        task: kind of the panel, and number of the universe.
    """
    kind, universe = task
    encoders = {f"{level}-{i}": level for i, level in enumerate(PANELS[kind])}
    protocol = load_protocol("crs-1", Path())
    axes, replicates, intervals = [], [], []
    further_axes: dict[tuple[str, str, str], float] = {}
    with one_thread():
        for dataset_id in DATASETS:
            card = dataset_card(dataset_id, f"{kind}-{universe}")
            drawn = split_cohort(card, protocol)
            for encoder_id, level in encoders.items():
                is_first = f"{level}-{PANELS[kind].index(level)}" == encoder_id
                encoder = encoder_card(encoder_id, level, card)
                own, *further = measured_cell(encoder, drawn, protocol, has_further=is_first)
                cell = {"encoder_id": pl.lit(encoder_id), "dataset_id": pl.lit(dataset_id)}
                axes.append(own.cell_axes.with_columns(**cell))
                replicates.append(replicated(own, card, protocol).with_columns(**cell))
                for truth in further:
                    names = {"level": level, "dataset_id": dataset_id}
                    intervals += [names | row for row in record_intervals(own.run_records, truth.run_records)]
                    values = truth.cell_axes.filter(is_scored("corruption_only")).select("axis", "value")
                    further_axes |= {(encoder_id, dataset_id, axis): value for axis, value in values.iter_rows()}
        tables = pl.concat(axes), pl.concat(replicates), encoders_frame(encoders)
        intervals += score_intervals(*tables, further_axes, protocol)
        pairs = [{"universe": universe} | row for row in scored_pairs(*tables, protocol)]
    return Drawn(kind, pl.DataFrame(pairs, schema=PAIRS_SCHEMA), pl.DataFrame(intervals, schema=INTERVALS_SCHEMA))


def dataset_card(dataset_id: str, universe: str) -> DatasetCard:
    """Return the card of a synthetic dataset, drawn afresh in every universe."""
    settings = DATASETS[dataset_id]
    cohort = {"n_images": N_IMAGES, "mean_group_size": 1.5, "prevalence": settings["prevalence"]}
    return DatasetCard.model_validate(
        {
            "id": f"{dataset_id}-{universe}",
            "name": dataset_id,
            "modality": "other",
            "task": settings["task"],
            "classes": ["a", "b", "c", "d"],
            "is_synthetic": True,
            "source": {"layout": "synthetic", "synthetic": cohort},
        }
    )


def encoder_card(encoder_id: str, level: str, dataset: DatasetCard) -> EncoderCard:
    """Return the card of a synthetic encoder of a level."""
    cells = {dataset.id: LEVELS[level]}
    return EncoderCard.model_validate({"id": encoder_id, "name": encoder_id, "kind": "synthetic", "cells": cells})


def encoders_frame(encoders: Iterable[str]) -> pl.DataFrame:
    """Return candidates with a cell on both datasets, as the scores read them."""
    rows = [(encoder_id, "candidate", sorted(DATASETS)) for encoder_id in encoders]
    return pl.DataFrame(rows, schema=ENCODERS_SCHEMA, orient="row")


def measured_cell(encoder: EncoderCard, drawn: SplitCohort, protocol: Protocol, *, has_further: bool) -> list[Measured]:
    """Return what a cell's probes give on the test images and, ``has_further``, on the further ones."""
    card, own = drawn.card, drawn.cohorts[PRIMARY]
    source = SyntheticVectors(encoder, card)
    clean = source.vectors(CLEAN, own.image_ids, own.labels)
    ids = [own.image_ids[row] for row in drawn.test]
    _, groups = np.unique(group_index(own.groups)[drawn.test], return_inverse=True)
    measured_on = [_seen(source, protocol, ids, own.labels[drawn.test], groups)]
    if has_further:
        assert card.source.synthetic is not None
        settings = card.source.synthetic.model_copy(update={"n_images": N_FURTHER})
        # its ids have the prefix of a second source, so that no image is one of the cohort
        cohort = draw_cohort(card, card.source.model_copy(update={"synthetic": settings}), "further")
        measured_on.append(_seen(source, protocol, cohort.image_ids, cohort.labels, group_index(cohort.groups)))
    inputs = ProbeInputs(
        task=card.task,
        classes=card.classes,
        image_ids=own.image_ids,
        features=clean,
        labels=own.labels,
        train=drawn.train,
        validation=dict.fromkeys(drawn.train, np.empty(0, dtype=np.int64)),
        fraction_sizes=drawn.fraction_sizes,
        test={},
        c=protocol.probe.c,
        gap=protocol.probe.relative_gap,
        sd_floor=protocol.probe.sd_floor,
    )
    # the truth needs no interval
    n_replicates = (protocol.metrics.test_replicates, 0)
    return [
        _measured(encoder.id, inputs, images, card, protocol, b)
        for images, b in zip(measured_on, n_replicates, strict=False)
    ]


def _seen(
    source: SyntheticVectors, protocol: Protocol, ids: Sequence[str], labels: NDArray[np.int8], groups: NDArray[Any]
) -> Images:
    conditions = (CLEAN, *protocol.corruption_conditions)
    return Images(ids, labels, groups, {name: source.vectors(name, ids, labels) for name in conditions})


def _measured(
    encoder_id: str, inputs: ProbeInputs, images: Images, card: DatasetCard, protocol: Protocol, n_replicates: int
) -> Measured:
    """Return the tables of a cell on some images: of the conditions and fractions that an axis is made of."""
    predictions = []
    parts = set(protocol.label_fractions) - {1.0}
    for seen, fractions in ((tuple(images.vectors), {1.0}), ((CLEAN,), parts)):
        wanted = {key: size for key, size in inputs.fraction_sizes.items() if key[1] in fractions}
        test = {name: (images.ids, images.vectors[name]) for name in seen}
        predictions.append(fit_cell(replace(inputs, fraction_sizes=wanted, test=test)).predictions)
    by_record = pl.concat(predictions).partition_by("seed", "label_fraction", "condition_id", as_dict=True)
    records = [
        Record(
            int(seed),
            float(fraction),
            str(condition),
            logits_matrix(part, len(card.classes)),
            images.labels,
            images.groups,
        )
        for (seed, fraction, condition), part in by_record.items()
    ]
    tables = measure_records(
        records,
        dataset_id=card.id,
        task=card.task,
        classes=card.classes,
        n_bins=protocol.metrics.ece_bins,
        n_replicates=n_replicates,
        encoder_id=encoder_id,
    )
    axes = cell_axes(tables.label_metrics, tables.run_records, protocol=protocol, shift_id=None)
    return Measured(tables.run_records, axes, records)


def replicated(measured: Measured, card: DatasetCard, protocol: Protocol) -> pl.DataFrame:
    """Return the rows of ``axis_replicates`` of a cell that a score reads."""
    frame = axis_replicates(
        measured.records,
        measured.cell_axes,
        dataset_id=card.id,
        task=card.task,
        protocol=protocol,
        shift_id=None,
    )
    return frame.filter(is_scored("corruption_only"))


def record_intervals(records: pl.DataFrame, further: pl.DataFrame) -> Iterator[dict[str, Any]]:
    """Yield the intervals of the clean records at all labels, with what the same probes give on further images."""
    key = ("seed", "label_fraction", "condition_id")
    clean = records.filter(pl.col("condition_id") == CLEAN, pl.col("label_fraction") == 1.0)
    for row in clean.join(further, on=key, suffix="_further").iter_rows(named=True):
        for metric, quantity in RECORD_QUANTITIES.items():
            bounds = {"low": row[f"{metric}_ci_low"], "high": row[f"{metric}_ci_high"]}
            yield {"quantity": quantity, **bounds, "further": row[f"{metric}_further"]}


def score_intervals(
    axes: pl.DataFrame,
    replicates: pl.DataFrame,
    encoders: pl.DataFrame,
    further: Mapping[tuple[str, str, str], float],
    protocol: Protocol,
) -> Iterator[dict[str, Any]]:
    """Yield the intervals under ``seed_test`` of the axes, and of the scores against the reference.

    Args:
        axes: rows of ``cell_axes``.
        replicates: rows of ``axis_replicates``.
        encoders: of the panel.
        further: axis values on the further images by encoder, dataset and axis; of the encoders that are wanted.
        protocol: the protocol.
    """
    resampled = resampled_scores("seed_test", axes, replicates, encoders, reference_panel(protocol), protocol)
    if isinstance(resampled, str):
        raise ValueError(f"nothing was resampled: {resampled}")
    scored = axes.filter(is_scored("corruption_only")).select("encoder_id", "dataset_id", "axis", "value")
    points = {tuple(key): value for *key, value in scored.iter_rows()}
    of_score = np.quantile(resampled.scores.crs, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    for i, encoder_id in enumerate(resampled.encoders):
        if (encoder_id, resampled.datasets[0], AXES[0]) not in further:
            continue
        level = encoder_id.rpartition("-")[0]
        for (j, dataset_id), (k, axis) in itertools.product(enumerate(resampled.datasets), enumerate(AXES)):
            cell_axis = (encoder_id, dataset_id, axis)
            low, high = axis_interval(axis, resampled.values[:, i, j, k], points[cell_axis])
            names = {"level": level, "dataset_id": dataset_id, "quantity": axis}
            yield {**names, "low": low, "high": high, "further": further[cell_axis]}
        yield {"level": level, "quantity": SCORE, "low": float(of_score[0, i]), "high": float(of_score[1, i])}


def axis_interval(axis: str, replicates: NDArray[np.float64], point: float) -> tuple[float, float]:
    """Return the interval of an axis of a cell from its replicates (b,): percentile, or of calibration that of an ECE.

    Args:
        axis: its name.
        replicates: as of ``resampled_scores``, which reflects those of calibration at the axis.
        point: the axis.
    """
    if axis != "calibration":
        low, high, reason = percentile_interval(replicates)
        assert low is not None and high is not None, reason
        return low, high
    low, high, reason = ece_interval(1.0 - (2.0 * point - replicates), 1.0 - point)
    assert low is not None and high is not None, reason
    return 1.0 - high, 1.0 - low


def scored_pairs(
    axes: pl.DataFrame, replicates: pl.DataFrame, encoders: pl.DataFrame, protocol: Protocol
) -> Iterator[dict[str, Any]]:
    """Yield all pairs of a panel that scores its own members, as columns of PAIRS_SCHEMA."""
    panel, _ = provisional_panel(axis_values(axes, "corruption_only"), encoders, conditions(protocol))
    assert panel is not None
    above = {}
    for resampling in RESAMPLINGS:
        resampled = resampled_scores(resampling, axes, replicates, encoders, panel, protocol)
        if isinstance(resampled, str):
            raise ValueError(f"nothing was resampled: {resampled}")
        crs, point, ids = resampled.scores.crs, resampled.point.crs[0], resampled.encoders
        is_above = (crs[:, :, None] > crs[:, None, :]).mean(axis=0) >= SEPARATION
        above[resampling] = is_above.astype(np.int64)
    for i, j in itertools.combinations(range(len(ids)), 2):
        signs = {str(resampling): int(one[j, i] - one[i, j]) for resampling, one in above.items()}
        yield {"first": ids[i], "second": ids[j], "difference": float(point[j] - point[i]), **signs}


def conditions(protocol: Protocol) -> PanelConditions:
    """Return the conditions of every panel here; no hash tells two of them apart."""
    return PanelConditions(
        protocol_id=protocol.label,
        protocol_hash=protocol.hash,
        arm="main",
        label_policy="u_zeros",
        robustness_variant="corruption_only",
        canonical_px=1,  # there are no images
        caps={},
        test_set_hash=dict.fromkeys(DATASETS, ""),
        feasible_fractions=dict.fromkeys(DATASETS, protocol.label_fractions),
        code_versions={},
    )


def reference_panel(protocol: Protocol) -> Panel:
    """Return the panel of the two members whose values are stated."""
    rows = [
        (member, dataset_id, axis, value, None)
        for dataset_id, members in REFERENCE.items()
        for member, values in members.items()
        for axis, value in zip(AXES, values, strict=True)
    ]
    values = pl.DataFrame(rows, schema=AXIS_VALUES_SCHEMA, orient="row")
    return freeze("reference", values, encoders_frame(("low", "high")), conditions(protocol))[0]


def separated(pairs: pl.DataFrame) -> bool:
    """Print how many pairs of equal encoders are separated under each resampling; return whether the bar is met."""
    shares = {name: float(np.mean(pairs.get_column(name).to_numpy() != 0)) for name in RESAMPLINGS}
    is_met = shares["seed_test"] <= EQUAL_BAR
    console.print(
        f"equal encoders, {pairs.height} pairs: {shares['seed_test']:.1%} separated under seed_test, bar "
        f"{EQUAL_BAR:.1%}: {verdict(is_met)} ({shares['seed']:.1%} under seed alone, {shares['test']:.1%} under test)"
    )
    return is_met


def found(pairs: pl.DataFrame) -> bool:
    """Print how often a planted gap is found, the right way round; return whether the bar is met."""
    planted = pairs.filter(pl.col("first").str.starts_with("better"), pl.col("second").str.starts_with("plain"))
    gaps = planted.group_by("first", "second").agg(gap=-pl.col("difference").mean(), se=pl.col("difference").std())
    gap, se = (float(np.mean(gaps.get_column(name).to_numpy())) for name in ("gap", "se"))
    share = {name: float(np.mean(planted.get_column(name).to_numpy() < 0)) for name in RESAMPLINGS}
    # a larger gap would be found more easily, so it does not count
    is_met = gap <= (GAP_SE + 0.5) * se and share["seed_test"] >= FOUND_BAR
    console.print(
        f"planted gap of {gap:.3f} CRS, {gap / se:.1f} standard errors (wanted {GAP_SE:g}), {planted.height} pairs: "
        f"{share['seed_test']:.1%} found under seed_test, bar {FOUND_BAR:.0%}: {verdict(is_met)}"
    )
    return is_met


def covered(intervals: pl.DataFrame, protocol: Protocol) -> list[bool]:
    """Print how often 95 % intervals cover what is true; return whether the bars are met, quantity by quantity."""
    of_records = pl.col("quantity").is_in(list(RECORD_QUANTITIES.values()))
    cell = ("level", "dataset_id", "quantity")
    truth = intervals.with_columns(
        truth=pl.when(of_records).then(pl.col("further")).otherwise(pl.col("further").mean().over(cell))
    )
    axes = truth.filter(pl.col("quantity").is_in(AXES)).unique(cell)
    of_scores = true_scores(axes, protocol)
    truth = truth.with_columns(
        truth=pl.when(pl.col("quantity") == SCORE).then(pl.col("level").replace_strict(of_scores)).otherwise("truth")
    )
    is_covered = pl.col("truth").is_between("low", "high")
    low, high = COVERAGE_BARS
    met = []
    for quantity in (*RECORD_QUANTITIES.values(), *AXES, SCORE):
        rows = truth.filter(pl.col("quantity") == quantity)
        by_dataset = rows.group_by("dataset_id").agg(is_covered.mean().alias("share")).sort("dataset_id")
        share = float(np.mean(rows.select(is_covered).to_series().to_numpy()))
        parts = ", ".join(f"{name} {part:.1%}" for name, part in by_dataset.iter_rows() if name is not None)
        met.append(low <= share <= high)
        console.print(
            f"95 % intervals of {quantity}, {rows.height}: cover {share:.1%}, bar {low:.0%} to {high:.0%}: "
            f"{verdict(met[-1])}" + (f" ({parts})" if parts else "")
        )
    return met


def true_scores(axes: pl.DataFrame, protocol: Protocol) -> dict[str, float]:
    """Return by level the score of the true axes (level, dataset_id, quantity, truth) against the reference."""
    values = axes.select(
        "dataset_id", encoder_id="level", axis="quantity", value="truth", reason=pl.lit(None, pl.String)
    )
    encoders = encoders_frame(sorted(set(axes.get_column("level"))))
    scores, _ = crs_scores(
        values.select(AXIS_VALUES_SCHEMA.keys()), encoders, reference_panel(protocol), protocol, code_version=1
    )
    return dict(scores.select("encoder_id", "crs").iter_rows())


def verdict(is_met: bool) -> str:
    """Return the word that stands behind a bar."""
    return "met" if is_met else "MISSED"


if __name__ == "__main__":
    sys.exit(main())
