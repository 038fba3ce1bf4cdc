"""What a check says when it cannot look."""

from __future__ import annotations

import dagster as dg
import pytest

from crsbench_assets.orchestration.instance import environment
from crsbench_assets.orchestration.resources import REGISTRY_TAG
from crsbench_assets.storage.layout import HomeLayout
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
