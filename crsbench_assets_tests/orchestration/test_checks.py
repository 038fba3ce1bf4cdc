"""What a check says when it cannot look."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import dagster as dg
import polars as pl
import pytest

from crsbench_assets.orchestration.checks import RULES, shape_rule
from crsbench_assets.orchestration.instance import environment
from crsbench_assets.orchestration.resources import REGISTRY_TAG
from crsbench_assets.storage.lake import Lake
from crsbench_assets.storage.layout import HomeLayout, PartitionKey
from crsbench_assets.storage.project import Project
from crsbench_assets_tests.fixtures import DATASET
from crsbench_assets_tests.orchestration.checks import run_check


@pytest.mark.parametrize(
    ("table", "check"),
    [
        ("reference_panels", "shape"),
        ("crs_scores", "frozen_scores_unchanged"),
        ("warehouse", "published_rows_match"),
    ],
)
def test_a_check_that_cannot_open_the_home_is_one_sentence(
    tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch, table: str, check: str
) -> None:
    for name, value in environment(tiny_home).items():
        monkeypatch.setenv(name, value)
    with dg.DagsterInstance.ephemeral() as instance:
        result = run_check(instance, table, check, {REGISTRY_TAG: "gone"})
    (failure,) = (event.step_failure_data for event in result.all_events if event.is_step_failure)
    assert failure.user_failure_data is not None and failure.user_failure_data.description is not None
    assert failure.user_failure_data.description.startswith("The registry snapshot gone is not in ")


class Altered(Lake):
    """A lake whose rows somebody changed after they were committed."""

    def __init__(self, layout: HomeLayout, change: pl.Expr) -> None:
        super().__init__(layout)
        self._change = change

    def read(self, table: str, key: PartitionKey, columns: Iterable[str] | None = None) -> pl.DataFrame:
        return super().read(table, key, columns).with_columns(self._change)


def with_rows(project: Project, change: pl.Expr) -> Project:
    return replace(project, lake=Altered(project.layout, change))


def test_a_broken_shape_is_told_with_its_rows(computed: Project) -> None:
    key = ("alpha", DATASET)
    sound = shape_rule("run_records")(computed, key)
    assert sound.holds and sound.failing is None
    broken = pl.when(pl.col("seed") == pl.col("seed").max()).then(-1.0).otherwise("brier").alias("brier")
    altered = with_rows(computed, broken)
    finding = shape_rule("run_records")(altered, key)
    assert not finding.holds and "brier is below 0" in finding.sentence
    assert finding.failing is not None
    expected = altered.lake.read("run_records", key).filter(pl.col("brier") == -1.0)
    assert not expected.is_empty() and finding.failing.equals(expected)


def test_fits_that_did_not_converge_are_told(computed: Project) -> None:
    key = ("alpha", DATASET)
    rule = RULES["probe_fits"]["converged"]
    assert rule(computed, key).holds
    finding = rule(with_rows(computed, (pl.col("seed") != 0).alias("is_converged")), key)
    assert not finding.holds and finding.failing is not None
    assert finding.failing.get_column("seed").unique().to_list() == [0]


def test_a_component_above_half_a_percent_is_told_with_all_its_ids(computed: Project) -> None:
    rule = RULES["images"]["component_size"]
    assert rule(computed, (DATASET,)).holds
    finding = rule(with_rows(computed, pl.lit(11, dtype=pl.Int64).alias("n_groups_joined")), (DATASET,))
    assert not finding.holds and finding.failing is not None
    ids = computed.lake.read("images", (DATASET,)).get_column("image_id")
    # each group of the tiny cohort holds more than 0.5 % of its images
    assert all(image_id in finding.sentence for image_id in ids)
    assert set(finding.failing.get_column("image_id")) == set(ids)
    assert "path" not in finding.failing.columns, "Dagster keeps the failing rows, and a path may name a patient"


def test_counts_that_differ_from_the_card_are_told(computed: Project) -> None:
    rule = RULES["images"]["expected_counts"]
    assert rule(computed, (DATASET,)).sentence == "as the card expects, or it expects nothing"
    card = computed.registry.dataset(DATASET).model_copy(update={"expected_n_images": 7})
    registry = replace(computed.registry, datasets={**computed.registry.datasets, DATASET: card})
    finding = rule(replace(computed, registry=registry), (DATASET,))
    assert not finding.holds and finding.sentence.endswith("images found, 7 expected by the card")
