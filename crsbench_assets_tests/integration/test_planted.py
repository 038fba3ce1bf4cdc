"""The panel ``synthetic15`` measures what was planted in it, and each setting of the generator does what it says.

Single cells are simulated from cohort to axes by the pure functions; the whole panel is compared where a demo runs.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from benchmarks.plant_synthetic import SplitCohort, panel_cards, simulated_axes, split_cohort
from crsbench_assets.config.cards import EncoderCard, SyntheticCell
from crsbench_assets.config.cells import cells
from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.config.registry import Registry, load_protocol
from crsbench_assets.config.settings import Settings
from crsbench_assets.encoders.synthetic import SyntheticVectors
from crsbench_assets_tests.integration.planted import planted_deviations, planted_order

BASE = {"signal": 1.6, "n_nuisance": 6, "norm_spread": 0.4, "fragility": 0.4}


@pytest.fixture(scope="module")
def protocol() -> Protocol:
    return load_protocol("crs-1", Path())


@pytest.fixture(scope="module")
def registry(protocol: Protocol) -> Registry:
    encoders, datasets = panel_cards()
    return Registry(protocol=protocol, settings=Settings(group_salt="salt"), encoders=encoders, datasets=datasets)


@pytest.fixture(scope="module")
def fundus(registry: Registry, protocol: Protocol) -> SplitCohort:
    return split_cohort(registry.dataset("synth-fundus"), protocol)


def fundus_axes(fundus: SplitCohort, protocol: Protocol, **settings: float) -> dict[str, float]:
    cell = SyntheticCell.model_validate({**BASE, **settings})
    encoder = EncoderCard(id="synth-01", name="any", kind="synthetic", cells={"synth-fundus": cell})
    return simulated_axes(encoder, fundus, protocol)


@pytest.fixture(scope="module")
def base_axes(fundus: SplitCohort, protocol: Protocol) -> dict[str, float]:
    return fundus_axes(fundus, protocol)


def cell_axes_frame(values: dict[tuple[str, str], dict[str, float]]) -> pl.DataFrame:
    rows = [
        (encoder_id, dataset_id, axis, "primary", value, None)
        for (encoder_id, dataset_id), of_cell in values.items()
        for axis, value in of_cell.items()
    ]
    names = ("encoder_id", "dataset_id", "axis", "variant", "value", "reason")
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String) | {"value": pl.Float64}, orient="row")


def test_panel_has_the_papers_grid(registry: Registry) -> None:
    assert Counter(card.category for card in registry.encoders.values()) == {
        "generalist": 6,
        "broad_medical": 4,
        "specialty": 5,
    }
    applicable = [cell for cell in cells(registry) if cell.is_applicable]
    assert len(applicable) == 43
    missing = {(cell.encoder_id, cell.dataset_id) for cell in cells(registry) if not cell.is_applicable}
    assert {dataset_id for _, dataset_id in missing} == {"synth-fundus"}
    assert {registry.encoders[encoder_id].category for encoder_id, _ in missing} == {"specialty"}
    assert all(card.is_synthetic and not card.source.has_images for card in registry.datasets.values())


def test_every_cell_has_four_planted_values(registry: Registry) -> None:
    planted = planted_deviations(registry, cell_axes_frame({}))
    assert planted.height == 43 * 4
    assert planted.get_column("se").min() > 0  # type: ignore[operator]  # a mean of floats
    assert planted.get_column("planted").is_between(0.5, 1.0).all()
    assert planted.get_column("deviation_se").is_null().all(), "nothing was measured"


@pytest.mark.parametrize(
    ("encoder_id", "dataset_id"), [("synth-01", "synth-derm"), ("synth-08", "synth-fundus"), ("synth-13", "synth-cxr")]
)
def test_measured_cell_lies_within_four_standard_errors(
    registry: Registry, protocol: Protocol, encoder_id: str, dataset_id: str
) -> None:
    drawn = split_cohort(registry.dataset(dataset_id), protocol)
    assert None not in drawn.fraction_sizes.values(), "every label fraction is feasible"
    values = simulated_axes(registry.encoder(encoder_id), drawn, protocol)
    measured = planted_deviations(registry, cell_axes_frame({(encoder_id, dataset_id): values})).drop_nulls()
    assert measured.get_column("axis").sort().to_list() == sorted(AXES)
    assert measured.filter(pl.col("deviation_se").abs() > 4.0).is_empty(), measured


@pytest.mark.parametrize(
    ("setting", "more", "axis", "sign"),
    [
        ("signal", 2.2, "discrimination", 1),
        ("n_nuisance", 24, "label_efficiency", -1),
        ("norm_spread", 1.2, "calibration", -1),
        ("fragility", 0.8, "robustness", -1),
    ],
)
def test_each_setting_moves_its_axis(
    fundus: SplitCohort,
    protocol: Protocol,
    base_axes: dict[str, float],
    setting: str,
    more: float,
    axis: str,
    sign: int,
) -> None:
    moved = fundus_axes(fundus, protocol, **{setting: more})
    assert sign * (moved[axis] - base_axes[axis]) > 0.02


def test_fragility_touches_robustness_alone(
    fundus: SplitCohort, protocol: Protocol, base_axes: dict[str, float]
) -> None:
    moved = fundus_axes(fundus, protocol, fragility=0.0)
    assert {axis for axis in AXES if moved[axis] != base_axes[axis]} == {"robustness"}
    # without fragility corrupted images are the clean ones, so nothing is lost
    assert moved["robustness"] == 1.0


def test_vector_of_an_image_depends_on_no_other(registry: Registry, fundus: SplitCohort) -> None:
    encoder, cohort = registry.encoder("synth-01"), fundus.cohorts["primary"]
    ids, labels = cohort.image_ids[:6], cohort.labels[:6]
    for condition in ("clean", "gaussian_noise-s3", "blur-s5"):
        together = SyntheticVectors(encoder, fundus.card).vectors(condition, ids, labels)
        again = SyntheticVectors(encoder, fundus.card)
        again.vectors("clean", ids[::-1], labels[::-1])
        alone = [again.vectors(condition, [ids[i]], labels[i : i + 1])[0] for i in range(6)]
        np.testing.assert_allclose(together, alone, rtol=1e-6, atol=1e-6)


def test_encoders_share_most_of_the_noise(fundus: SplitCohort, registry: Registry) -> None:
    # without signal, rotation undone by distances: images far apart for one encoder are far apart for another
    cohort = fundus.cohorts["primary"]
    cell = SyntheticCell(signal=0.0, n_nuisance=4, norm_spread=0.0, fragility=0.0)
    distances = []
    for encoder_id in ("synth-01", "synth-02"):
        encoder = EncoderCard(id=encoder_id, name="any", kind="synthetic", cells={"synth-fundus": cell})
        x = SyntheticVectors(encoder, fundus.card).vectors("clean", cohort.image_ids[:200], cohort.labels[:200])
        distances.append(np.linalg.norm(x[::2] - x[1::2], axis=1))
    assert np.corrcoef(*distances)[0, 1] > 0.8


def test_deviation_counts_standard_errors(registry: Registry) -> None:
    cell = registry.encoder("synth-01").cells["synth-derm"]
    assert cell.planted is not None
    assert cell.planted_se is not None
    values = {axis: cell.planted[axis] + 2 * cell.planted_se[axis] for axis in AXES}
    measured = planted_deviations(registry, cell_axes_frame({("synth-01", "synth-derm"): values})).drop_nulls()
    assert measured.get_column("deviation_se").to_list() == pytest.approx([2.0] * 4)


def test_planted_order_follows_the_planted_values(registry: Registry, protocol: Protocol) -> None:
    order = planted_order(registry, protocol)
    assert sorted(order) == sorted(registry.encoders)
    best, worst = (registry.encoder(encoder_id) for encoder_id in (order[0], order[-1]))
    assert set(best.cells) == set(worst.cells), "both have all datasets, so they can change places"
    swapped = {
        **registry.encoders,
        best.id: best.model_copy(update={"cells": worst.cells}),
        worst.id: worst.model_copy(update={"cells": best.cells}),
    }
    reordered = planted_order(replace(registry, encoders=swapped), protocol)
    assert reordered == [worst.id, *order[1:-1], best.id]
