"""A panel small enough to score by hand, and how a cohort of any values becomes a panel.

Axis values (D discrimination, C calibration, L label efficiency, R robustness); "-" is no cell:

             near                    far
             D    C    L    R        D     C     L     R
    alpha    1    .5   1    .5       .75   .5    .75   .625
    beta     .5   1    .5   1        .5    .25   .25   .625
    gamma    0    0    0    0        -
    delta    1.5  .5   .5   1        .75   .5    .25   .5       scored, not a member

Members are alpha, beta, gamma. Anchors on near: 0 and 1 on every axis; on far: .5 to .75, .25 to .5, .25 to .75, and
R is degenerate. So z_raw on near are the values themselves, and on far:

    alpha    1 1 1 .5       beta    0 0 0 .5       delta    1 1 0 .5

Profiles x_raw (x where clipped differs), and the score:

             D           C      L     R     P              B                   W     CRS = .5 P + .3 B + .2 W
    alpha    1           .75    1     .5    (1 + 1/3) / 2  1 - sqrt(.078125)   .5    .649481
    beta     .25         .5     .25   .75   (1 + 1/3) / 2  1 - sqrt(.359375)   .25   .503489
    gamma    0           0      0     0     (1 - 2/3) / 2  0                   0     .083333
    delta    1.25 (1)    .75    .25   .75   (1 + 2/3) / 2  1 - sqrt(.171875)   .25   .642293

alpha and beta each dominate gamma and not each other; delta dominates beta and gamma.
"""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from crsbench_assets.config.protocol import AXES, Protocol
from crsbench_assets.config.registry import load_protocol
from crsbench_assets.scores.panel import Panel, PanelConditions, freeze
from crsbench_assets.scores.profile import AXIS_VALUES_SCHEMA, ENCODERS_SCHEMA

Cohort = dict[str, dict[str, tuple[float | None, ...]]]
"""Encoder -> dataset -> its four axis values."""

MEMBERS: Cohort = {
    "alpha": {"near": (1.0, 0.5, 1.0, 0.5), "far": (0.75, 0.5, 0.75, 0.625)},
    "beta": {"near": (0.5, 1.0, 0.5, 1.0), "far": (0.5, 0.25, 0.25, 0.625)},
    "gamma": {"near": (0.0, 0.0, 0.0, 0.0)},
}
DELTA: Cohort = {"delta": {"near": (1.5, 0.5, 0.5, 1.0), "far": (0.75, 0.5, 0.25, 0.5)}}


def values_frame(cohort: Cohort) -> pl.DataFrame:
    rows = [
        (encoder, dataset, axis, value, "undefined_term" if value is None else None)
        for encoder, cells in cohort.items()
        for dataset, of_cell in cells.items()
        for axis, value in zip(AXES, of_cell, strict=True)
    ]
    return pl.DataFrame(rows, schema=AXIS_VALUES_SCHEMA, orient="row")


def encoders_frame(cohort: Cohort, controls: tuple[str, ...] = ()) -> pl.DataFrame:
    rows = [
        (encoder, "control" if encoder in controls else "candidate", sorted(cells)) for encoder, cells in cohort.items()
    ]
    return pl.DataFrame(rows, schema=ENCODERS_SCHEMA, orient="row")


def conditions_of(protocol: Protocol) -> PanelConditions:
    datasets = ("near", "far", "new")
    return PanelConditions(
        protocol_id=protocol.label,
        protocol_hash=protocol.hash,
        arm="main",
        label_policy="u_zeros",
        robustness_variant="shift",
        canonical_px=448,
        caps={"near": 100},
        test_set_hash={dataset: f"hash-of-{dataset}" for dataset in datasets},
        feasible_fractions=dict.fromkeys(datasets, (0.1, 1.0)),
        code_versions={"run_records": 1, "cell_axes": 2},
    )


def freeze_cohort(cohort: Cohort, protocol: Protocol, controls: tuple[str, ...] = ()) -> Panel:
    panel, _ = freeze("demo", values_frame(cohort), encoders_frame(cohort, controls), conditions_of(protocol))
    return panel


@pytest.fixture(scope="session")
def protocol() -> Protocol:
    return load_protocol("crs-1", Path())


@pytest.fixture
def conditions(protocol: Protocol) -> PanelConditions:
    return conditions_of(protocol)


@pytest.fixture(scope="session")
def panel(protocol: Protocol) -> Panel:
    return freeze_cohort(MEMBERS, protocol)
