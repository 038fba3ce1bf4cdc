"""The grid: which cells there are, why some are not, and how many numbers follow (protocol section 1)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crsbench_assets.config.cards import DatasetCard, EncoderCard
from crsbench_assets.config.cells import GridCounts, cells, grid_counts, inapplicability
from crsbench_assets.config.registry import CATALOG, Registry, catalog_ids, load_protocol, read_card
from crsbench_assets.config.settings import Settings
from crsbench_assets.config.yaml_files import parse_model
from crsbench_assets_tests.fixtures import dataset_card, encoder_card


@pytest.fixture(scope="module")
def paper() -> Registry:
    """The 15 encoders and 3 datasets of the catalogue."""
    return Registry(
        protocol=load_protocol("crs-1", Path()),
        settings=Settings(group_salt="s"),
        encoders={i: read_card(EncoderCard, CATALOG / "encoders" / f"{i}.yaml") for i in catalog_ids("encoders")},
        datasets={i: read_card(DatasetCard, CATALOG / "datasets" / f"{i}.yaml") for i in catalog_ids("datasets")},
    )


def test_counts_of_the_paper(paper: Registry) -> None:
    # 43 x 5 x 16 + 15 x 5 = 3,515 aggregate rows; x 5 seeds = 17,575 records; 43 x 5 x 5 = 1,075 fits
    assert grid_counts(paper) == GridCounts(
        n_cells=45, n_applicable=43, n_fits=1075, n_records=17575, n_aggregates=3515
    )


def test_the_two_cells_that_the_paper_leaves_out(paper: Registry) -> None:
    left_out = {(c.encoder_id, c.dataset_id, c.reason) for c in cells(paper) if not c.is_applicable}
    assert left_out == {
        ("biovil", "aptos2019", "excluded_by_card"),
        ("chexzero", "aptos2019", "excluded_by_card"),
    }


def test_cells_are_sorted_by_dataset_and_encoder(paper: Registry) -> None:
    keys = [(cell.dataset_id, cell.encoder_id) for cell in cells(paper)]
    assert keys == sorted(keys)


def test_a_retired_encoder_takes_its_cells_with_it(paper: Registry) -> None:
    counts = grid_counts(replace(paper, settings=Settings(group_salt="s", retired=("biovil",))))
    # 2 applicable cells less: isic2019 (16 conditions) and chexpert (17), 5 fractions each
    assert (counts.n_cells, counts.n_applicable) == (42, 41)
    assert counts.n_aggregates == 3515 - 5 * 16 - 5 * 17


def test_an_empty_home_has_no_grid(paper: Registry) -> None:
    assert grid_counts(replace(paper, encoders={})) == GridCounts(0, 0, 0, 0, 0)


SYNTHETIC = {"signal": 1.0, "n_nuisance": 0, "norm_spread": 0.0, "fragility": 0.0}


@pytest.mark.parametrize(
    ("encoder", "path_column", "reason"),
    [
        ({}, None, None),
        ({"vectors": {"other": ["x.parquet"]}}, None, "no_vectors"),
        ({"not_applicable": {"tiny": "licence"}}, None, "excluded_by_card"),
        ({"kind": "synthetic", "vectors": {}, "cells": {"tiny": SYNTHETIC}}, None, None),
        ({"kind": "synthetic", "vectors": {}, "cells": {"other": SYNTHETIC}}, None, "not_synthetic"),
        ({"kind": "timm", "vectors": {}}, None, "no_images"),
        ({"kind": "timm", "vectors": {}}, "file", None),
    ],
)
def test_why_a_cell_is_not_applicable(encoder: dict[str, Any], path_column: str | None, reason: str | None) -> None:
    source = dataset_card()["source"] | {"columns": {"class_column": "label", "path": path_column}}
    dataset = parse_model(DatasetCard, dataset_card(source=source), "x")
    assert inapplicability(parse_model(EncoderCard, encoder_card("alpha", **encoder), "x"), dataset) == reason
