"""A published home with everything that the report must show: labels, a shift target, a control, cells without result.

chest    multi-label, 3 labels, shift target ``ward``; ``rare`` has no positive test image
skin     single-label, 3 classes

alpha    candidate, both datasets; named <b>x</b>; saw ward, for non-commercial use
beta     candidate, chest only: its card excludes skin; the same encoder as alpha, by alpha's card
broken   candidate: a vector of skin is missing, so its cell failed, and it has no vectors of chest
floor    control, both datasets
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pytest

from crsbench_assets.operations.homes import dagster_yaml
from crsbench_assets.planning.plan import plan
from crsbench_assets.report.html import write_report
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import create_home, open_project
from crsbench_assets.storage.warehouse import publish
from crsbench_assets_tests.fixtures import SETTINGS, compute, write_card, write_protocol
from crsbench_assets_tests.report.pages import Element, parse

Rows = Callable[[str], list[dict[str, Any]]]

MARKUP = '<b>x</b> & "y" </script>'
"""A name that is text, whatever it looks like."""


def synthetic_dataset(
    dataset_id: str, name: str, task: str, prevalence: dict[str, float], **more: Any
) -> dict[str, Any]:
    cohort = {"n_images": 160, "mean_group_size": 2.0, "prevalence": list(prevalence.values())}
    return {
        "id": dataset_id,
        "name": name,
        "modality": "other",
        "task": task,
        "classes": list(prevalence),
        "is_synthetic": True,
        "source": {"layout": "synthetic", "synthetic": cohort},
        **more,
    }


def synthetic_encoder(encoder_id: str, signal: float, datasets: tuple[str, ...], **more: Any) -> dict[str, Any]:
    cell = {"signal": signal, "n_nuisance": 2, "norm_spread": 0.3, "fragility": 0.4}
    return {
        "id": encoder_id,
        "name": encoder_id.title(),
        "kind": "synthetic",
        "category": "generalist",
        "cells": dict.fromkeys(datasets, cell),
        **more,
    }


@pytest.fixture(scope="session")
def reported_home(tmp_path_factory: pytest.TempPathFactory) -> HomeLayout:
    layout = HomeLayout(tmp_path_factory.mktemp("reported") / "home")
    create_home(layout, dagster_yaml())
    layout.settings.write_text(SETTINGS, encoding="utf-8")
    write_protocol(layout.root)
    labels = {"edema": 0.4, "rare": 0.001, "<i>effusion</i>": 0.3}
    ward = synthetic_dataset("ward", "Ward", "multi_label", labels)
    shift = {name: ward[name] for name in ("id", "name", "source")}
    chest = synthetic_dataset("chest", "Chest", "multi_label", labels, shift=shift)
    skin = synthetic_dataset("skin", "Skin", "single_label", {"naevus": 0.5, "melanoma": 0.3, "keratosis": 0.2})
    for card in (chest, skin):
        write_card(layout.root, "datasets", card)
    both = ("chest", "skin")
    (layout.root / "files").mkdir()
    pl.DataFrame({"image_id": ["absent"], "condition_id": ["clean"], "vector": [[0.5, 0.5]]}).write_parquet(
        layout.root / "files" / "broken.parquet"
    )
    broken = {"kind": "precomputed", "category": "specialty", "vectors": {"skin": ["../files/broken.parquet"]}}
    for card in (
        synthetic_encoder(
            "alpha",
            2.5,
            both,
            name=MARKUP,
            family="vit",
            same_encoder_as=["beta"],
            exposure={"chest": "not_seen", "ward": "seen", "skin": "unknown"},
            non_commercial=True,
        ),
        synthetic_encoder(
            "beta",
            1.5,
            ("chest",),
            not_applicable={"skin": "reads radiographs alone"},
            family="vit",
            exposure={"chest": "seen", "elsewhere": "seen"},
            weights={"loader": "timm", "gated": True},
        ),
        {"id": "broken", "name": "Broken", **broken},  # says nothing of what it saw
        synthetic_encoder("floor", 0.1, both, role="control"),
    ):
        write_card(layout.root, "encoders", card)
    project = open_project(layout.root)
    compute(project)
    publish(project, plan(project).cells)
    return layout


@pytest.fixture(scope="session")
def warehouse(reported_home: HomeLayout) -> Iterator[Rows]:
    """Answers of a plain DuckDB reader."""
    with closing(duckdb.connect(str(reported_home.warehouse), read_only=True)) as connection:

        def rows(sql: str) -> list[dict[str, Any]]:
            return list(pl.DataFrame(pl.from_arrow(connection.sql(sql).to_arrow_table())).iter_rows(named=True))

        yield rows


@pytest.fixture(scope="session")
def report(reported_home: HomeLayout) -> Path:
    return write_report(reported_home)


@pytest.fixture(scope="session")
def page(report: Path) -> Element:
    return parse(report.read_text(encoding="utf-8"))
