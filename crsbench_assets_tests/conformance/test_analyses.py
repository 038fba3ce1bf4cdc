"""The analyses against their second implementation, on made-up panels, and on panels whose truth is planted.

What lives here: panels of close encoders with absent cells and with duplicates, number by number; a planted leading
tier, a panel of equals, planted duplicates. What stays out: a whole home (``compare_analyses.check_analyses``, run
where a home is made); the statistics of ``plain_statistics`` against SciPy, which stand in ``test_plain_statistics``.
Source: protocol page, sections 7 and 8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from crsbench_assets.analyses.axis_correlations import axis_correlations
from crsbench_assets.analyses.axis_reliability import axis_reliability
from crsbench_assets.analyses.bootstrap_ranks import bootstrap_ranks
from crsbench_assets.analyses.dominance import dominance
from crsbench_assets.analyses.insertion_trials import insertion_trials
from crsbench_assets.analyses.lodo_transfer import lodo_transfer
from crsbench_assets.analyses.panel_perturbations import panel_perturbations
from crsbench_assets.analyses.rank_agreement import rank_agreement
from crsbench_assets.analyses.rank_displacement import rank_displacement
from crsbench_assets.analyses.selection_regret import selection_regret
from crsbench_assets.analyses.weight_perturbations import weight_perturbations
from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.config.registry import load_protocol
from crsbench_assets.scores.crs import crs_scores
from crsbench_assets.scores.panel import Panel, reference_panels
from crsbench_assets.scores.profile import axis_values
from crsbench_assets.scores.ranks import ranks
from crsbench_assets.scores.resampling import resampled_scores
from crsbench_assets_tests.conformance import plain_analyses as analyses
from crsbench_assets_tests.conformance.compare import Rows, largest_deviation
from crsbench_assets_tests.conformance.compare_analyses import ANALYSIS_KEYS, add_replicates
from crsbench_assets_tests.scores.replicates import (
    Cell,
    cell_axes_frame,
    encoders_of,
    freeze_cells,
    protocol_of,
    replicates_frame,
)

TOLERANCE = 1e-12
N_SEEDS, N_REPLICATES = 3, 80
DATASETS = ("far", "near", "new")
WEIGHTS = (0.4, 0.3, 0.2, 0.1)

Arrays = dict[Cell, NDArray[np.float64]]


class Benchmark(NamedTuple):
    """A frozen panel with all that the analyses read."""

    panel: Panel
    protocol: Protocol
    cell_axes: pl.DataFrame
    axis_replicates: pl.DataFrame
    encoders: pl.DataFrame
    crs_scores: pl.DataFrame

    def bootstrap_ranks(self) -> pl.DataFrame:
        return bootstrap_ranks(self.cell_axes, self.axis_replicates, self.encoders, self.panel, self.protocol)

    def ranks(self) -> pl.DataFrame:
        sources = self.cell_axes, self.axis_replicates, self.encoders
        resampled = resampled_scores("seed_test", *sources, self.panel, self.protocol)
        return ranks(self.crs_scores, self.encoders, {self.panel.panel_id: resampled})


def benchmark(seed_values: Mapping[Cell, Any], noise: float = 0.0) -> Benchmark:
    """Freeze encoders with seed values (k, s); replicates are these with noise that the encoders of a dataset share.

    A part of the noise, half as large, is an encoder's own; equal encoders share it too.
    """
    values = {cell: np.asarray(own, dtype=np.float64) for cell, own in seed_values.items()}
    (n_seeds,) = {own.shape[1] for own in values.values()}
    replicates: Arrays = {}
    for (encoder, dataset), own in values.items():
        key = own.tobytes().hex()
        shared = keyed_generator("shared", dataset).normal(size=(N_REPLICATES, len(AXES), n_seeds))
        alone = keyed_generator("own", key).normal(size=(N_REPLICATES, len(AXES), n_seeds))
        replicates[encoder, dataset] = own + noise * (shared + alone / 2)
    protocol = protocol_of(load_protocol("crs-1", Path()), n_seeds)
    panel, encoders, axes = freeze_cells(values, protocol), encoders_of(values), cell_axes_frame(values)
    scores, _ = crs_scores(axis_values(axes, "corruption_only"), encoders, panel, protocol, code_version=1)
    return Benchmark(panel, protocol, axes, replicates_frame(replicates), encoders, scores)


def close_encoders(trial: int) -> Arrays:
    """Draw eleven close encoders: two lack a dataset, the last two are one encoder under two names."""
    generator = keyed_generator("close encoders", trial)
    values: Arrays = {}
    for i in range(10):
        quality = generator.uniform(0.62, 0.68)
        for dataset in DATASETS:
            if (i, dataset) in {(2, "far"), (5, "new")}:
                continue
            level = quality + generator.normal(0, 0.03, (len(AXES), 1))
            values[f"e{i:02}", dataset] = level + generator.normal(0, 0.03, (len(AXES), N_SEEDS))
    return values | {("e10", dataset): values["e09", dataset] for dataset in DATASETS}


@pytest.fixture(scope="module", params=(2, 3))
def close(request: pytest.FixtureRequest) -> Benchmark:
    return benchmark(close_encoders(request.param), noise=0.01)


@pytest.fixture(scope="module")
def found(close: Benchmark) -> dict[str, pl.DataFrame]:
    """All tables, by the implementation."""
    panel, protocol, rules = close.panel, close.protocol, close.protocol.scores
    sources = close.cell_axes, close.axis_replicates, close.encoders
    resampled = resampled_scores("seed_test", *sources, panel, protocol)
    return {
        "panel_perturbations": panel_perturbations(panel, rules),
        "insertion_trials": insertion_trials(panel, protocol),
        "weight_perturbations": weight_perturbations(panel, rules),
        "rank_agreement": rank_agreement(panel, resampled, rules),
        "rank_displacement": rank_displacement(panel, rules),
        "selection_regret": selection_regret(panel, resampled, rules, dict(zip(AXES, WEIGHTS, strict=True))),
        "axis_correlations": axis_correlations(panel),
        "lodo_transfer": lodo_transfer(panel, rules),
        "dominance": dominance(*sources, panel, protocol),
        "bootstrap_ranks": close.bootstrap_ranks(),
        "ranks": close.ranks(),
        "axis_reliability": axis_reliability(panel, resampled),
    }


@pytest.fixture(scope="module")
def right(close: Benchmark, found: dict[str, pl.DataFrame]) -> dict[str, Rows]:
    """The same tables, in plain Python."""
    rows = {name: frame.to_dicts() for name, frame in found.items()} | {"cell_axes": close.cell_axes.to_dicts()}
    anchors = reference_panels(close.panel, close.protocol.scores).to_dicts()
    panel = analyses.panel_of(close.panel.panel_id, close.crs_scores.to_dicts(), anchors, rows["cell_axes"])
    answers = {
        "panel_perturbations": analyses.panel_perturbations(panel, rows["panel_perturbations"]),
        "insertion_trials": analyses.insertion_trials(panel, rows["insertion_trials"]),
        "weight_perturbations": analyses.weight_perturbations(panel, rows["weight_perturbations"]),
        "rank_agreement": analyses.rank_agreement(panel),
        "rank_displacement": analyses.rank_displacement(panel),
        "selection_regret": analyses.selection_regret(panel, WEIGHTS),
        "axis_correlations": analyses.axis_correlations(panel),
        "lodo_transfer": analyses.lodo_transfer(panel),
        "dominance": analyses.dominance(panel),
    }
    replicates: dict[tuple[Cell, str], list[list[float]]] = {}
    for row in close.axis_replicates.sort("replicate").iter_rows(named=True):
        if row["variant"] == ("corruption_only" if row["axis"] == "robustness" else "primary"):
            replicates.setdefault(((row["encoder_id"], row["dataset_id"]), row["axis"]), []).append(row["seed_values"])
    add_replicates(answers, panel, rows, replicates)
    return answers


COMPARED = (
    "panel_perturbations",
    "insertion_trials",
    "weight_perturbations",
    "rank_agreement",
    "rank_displacement",
    "selection_regret",
    "axis_correlations",
    "lodo_transfer",
    "dominance",
    "bootstrap_ranks",
    "ranks",
    "axis_reliability",
)


@pytest.mark.parametrize("table", COMPARED)
def test_the_implementation_gives_the_right_rows(
    table: str, found: dict[str, pl.DataFrame], right: dict[str, Rows]
) -> None:
    assert largest_deviation(right[table], found[table].to_dicts(), ANALYSIS_KEYS[table]) <= TOLERANCE


def test_the_made_up_panels_are_no_formality(found: dict[str, pl.DataFrame]) -> None:
    """Where every statistic is 0 or 1 two implementations agree too easily."""
    assert found["panel_perturbations"].get_column("tau_b").n_unique() > 10
    assert found["weight_perturbations"].get_column("tau_b").n_unique() >= 5
    assert found["weight_perturbations"].get_column("is_top_3_unchanged").n_unique() == 2
    assert found["dominance"].get_column("p_dominates").n_unique() > 10
    assert found["bootstrap_ranks"].get_column("p_best_enumerated").drop_nulls().is_between(0.01, 0.99).any()
    assert found["rank_agreement"].get_column("n_resolved_reversed").n_unique() > 1
    assert found["ranks"].get_column("tie_group").n_unique() > 1


# --- planted truth ---------------------------------------------------------------------------------------------------


def flat(*of_seeds: float) -> list[list[float]]:
    """Return the same seed values on all four axes."""
    return [list(of_seeds)] * len(AXES)


def on_all(encoders: Mapping[str, Sequence[float]]) -> dict[Cell, list[list[float]]]:
    """Return cells that have an encoder's seed values on all axes of all datasets."""
    return {(encoder, dataset): flat(*own) for encoder, own in encoders.items() for dataset in DATASETS}


LEADERS = {"l1": (0.90, 0.86, 0.82), "l2": (0.86, 0.82, 0.90), "l3": (0.82, 0.90, 0.86)}
"""Each leads under one seed and is third under another."""
FIELD = {f"f{i}": (0.5 + i / 100, 0.52 - i / 100, 0.5 + i / 200) for i in range(5)}
CONSTANT_WINNER = {"winner": (0.9, 0.9, 0.9)} | {f"e{i}": (0.6, 0.6, 0.6) for i in range(5)}


def tier(of: Benchmark, anchors: str) -> tuple[set[int | None], set[str], set[str | None]]:
    """Return the size of the leading tier, its encoders and the reason why there is none."""
    rows = of.bootstrap_ranks().filter((pl.col("resampling") == "seed") & (pl.col("anchors") == anchors))
    inside = rows.filter(pl.col("is_in_tier")).get_column("encoder_id")
    return set(rows.get_column("n_tier")), set(inside), set(rows.get_column("enumeration_reason"))


@pytest.mark.parametrize("anchors", ["frozen", "recomputed"])
def test_three_planted_leaders_are_the_leading_tier(anchors: str) -> None:
    assert tier(benchmark(on_all(LEADERS | FIELD)), anchors) == ({3}, set(LEADERS), {None})


def test_planted_leaders_share_the_first_three_places_and_nobody_else_has_one() -> None:
    rows = benchmark(on_all(LEADERS | FIELD)).bootstrap_ranks().filter(pl.col("resampling") == "seed")
    leads = pl.col("encoder_id").is_in(list(LEADERS))
    assert set(rows.filter(leads).get_column("p_top_3_enumerated")) == {1.0}
    assert set(rows.filter(~leads).get_column("p_top_3_enumerated")) == {0.0}
    best = rows.filter(leads & (pl.col("anchors") == "frozen")).get_column("p_best_enumerated")
    # Turning the seeds turns the leaders, so each has the same third.
    assert best.to_list() == pytest.approx([1 / 3] * 3, abs=1e-12)


@pytest.mark.parametrize("anchors", ["frozen", "recomputed"])
def test_a_panel_of_equals_has_no_tier(anchors: str) -> None:
    equal = benchmark(on_all({f"e{i}": (0.6, 0.7, 0.8) for i in range(6)}))
    assert tier(equal, anchors) == ({None}, set(), {"no_tier"})


def test_encoders_that_differ_by_their_seeds_alone_have_no_tier() -> None:
    seeds = (0.60, 0.65, 0.70, 0.62)
    turned = {f"e{i}": seeds[i:] + seeds[:i] for i in range(4)}
    assert tier(benchmark(on_all(turned)), "frozen") == ({None}, set(), {"no_tier"})


def test_a_constant_winner_is_a_tier_of_one_and_without_it_there_is_none() -> None:
    assert tier(benchmark(on_all(CONSTANT_WINNER)), "frozen") == ({1}, {"winner"}, {None})
    rest = {encoder: own for encoder, own in CONSTANT_WINNER.items() if encoder != "winner"}
    assert tier(benchmark(on_all(rest)), "frozen") == ({None}, set(), {"no_tier"})


def test_equals_share_the_first_rank_one_tie_group_and_the_first_place() -> None:
    rows = benchmark(on_all({f"e{i}": (0.6, 0.7, 0.8) for i in range(5)}), noise=0.02).ranks()
    assert rows.select("rank", "rank_lo", "rank_hi", "tie_group").unique().rows() == [(1, 1, 1, 1)]
    assert rows.get_column("p_best").to_list() == pytest.approx([1 / 5] * 5, abs=1e-12)


def test_planted_duplicates_share_rank_interval_and_tie_group() -> None:
    values = close_encoders(7)
    twins = {("twin", dataset): values["e04", dataset] for dataset in DATASETS}
    rows = benchmark(values | twins, noise=0.01).ranks().sort("encoder_id").to_dicts()
    row_of = {row["encoder_id"]: {name: row[name] for name in row if name != "encoder_id"} for row in rows}
    assert row_of["e04"] == row_of["twin"]
    assert row_of["e09"] == row_of["e10"]
    assert len({row["tie_group"] for row in rows}) > 1


def test_planted_leaders_are_one_tie_group_above_the_field() -> None:
    rows = benchmark(on_all(LEADERS | FIELD), noise=0.002).ranks().to_dicts()
    group = {row["encoder_id"]: row["tie_group"] for row in rows}
    assert {group[encoder] for encoder in LEADERS} == {1}
    assert 1 not in {group[encoder] for encoder in FIELD}


def test_names_of_encoders_decide_nothing() -> None:
    """Renamed in reverse order: where no seed is drawn, whose draws hang on the panel's id, every row is the same."""
    values = close_encoders(8)
    name_of = {f"e{i:02}": f"z{99 - i}" for i in range(11)}
    renamed = {(name_of[encoder], dataset): own for (encoder, dataset), own in values.items()}
    before, after = (
        benchmark(cells, noise=0.01)
        .bootstrap_ranks()
        .filter(pl.col("resampling") == "test")
        .with_columns(pl.col("encoder_id").replace(name_of))
        .drop("panel_id")
        .sort("anchors", "encoder_id")
        for cells in (values, renamed)
    )
    assert before.rows() == after.rows()
