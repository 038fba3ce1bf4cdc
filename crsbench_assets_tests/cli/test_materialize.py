"""What a command computes after something went wrong, and what its child says when it does."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import pytest

from crsbench_assets.cli import child, materialize
from crsbench_assets.cli.materialize import Outcome, Selection, Unit, without_failed_datasets
from crsbench_assets.orchestration.execution import Executor
from crsbench_assets.orchestration.instance import environment
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import open_project
from crsbench_assets_tests.fixtures import DATASET


def test_cells_of_a_dataset_that_failed_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    cells = [Unit("cell", (encoder_id, dataset_id), ()) for encoder_id in "ab" for dataset_id in ("good", "leaky")]
    assert [unit.label for unit in without_failed_datasets(cells, ["leaky"])] == ["a x good", "b x good"]
    assert capsys.readouterr().out == "not computed: 2 cell(s) of leaky, because the dataset failed.\n"
    assert without_failed_datasets(cells, []) == cells


def test_a_dataset_that_fails_is_not_followed_by_its_cells(
    tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: dict[str, list[str]] = {}

    class Pool:
        """Computes nothing: the dataset fails its check, the rest goes well."""

        def compute(self, units: list[Unit], _: str, __: bool, outcome: Outcome, title: str) -> None:
            computed[title] = [unit.label for unit in units]
            if title == "datasets":
                outcome.failed.append((DATASET, "check no_leakage failed"))

    monkeypatch.setattr(materialize, "workers", lambda *_: nullcontext(Pool()))
    outcome = materialize.materialize(open_project(tiny_home.root), Selection())
    assert computed == {"datasets": [DATASET], "cells": [], "scores": ["scores"]}
    assert outcome.failed == [(DATASET, "check no_leakage failed")]


def test_a_table_is_computed_with_everything_that_it_is_computed_from() -> None:
    wanted = Selection(tables=frozenset({"institutional_shift_test"}))
    assert [stage.name for stage in wanted.stages("dataset")] == ["index", "split"]
    cells = ["extract", "probe", "measure", "derive_axes"]
    assert [stage.name for stage in wanted.stages("cell")] == cells, "no calibration, no replicates"
    pooled = [stage.name for stage in wanted.stages("whole")]
    assert pooled == ["describe", "institutional_shift", "institutional_shift_test"]
    on_request = Selection(tables=frozenset({"estimator_dependence"}))
    assert "estimate" in [stage.name for stage in on_request.stages("cell")]


def test_an_unexpected_error_is_an_answer_that_names_the_log(
    tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Ended(BaseException):
        """Stands for the end of the parent."""

    said: list[dict[str, Any]] = []

    def answer(_: object, value: dict[str, Any]) -> None:
        said.append(value)
        if "done" in value:
            raise Ended

    def fail(*_: object) -> None:
        raise ZeroDivisionError("division\nby zero")

    for name, value in environment(tiny_home).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(Executor, "serve", fail)
    monkeypatch.setattr(child, "_answer", answer)
    monkeypatch.setattr(child, "_listen", lambda requests: requests.put({"do": "reap"}))
    monkeypatch.setattr(os, "dup2", lambda *_: None)
    with pytest.raises(Ended):
        child.main(str(tiny_home.root), "child.log")
    assert said == [
        {"ready": True},
        {"done": True, "error": "ZeroDivisionError: division by zero; child.log says where."},
    ]
    assert "Traceback" in capfd.readouterr().err
