from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from crsbench_assets.analyses.renormalisation import renormalised_crs, shared_reason, with_variants
from crsbench_assets.config.protocol import AXES
from crsbench_assets.scores.ensemble import members_of
from crsbench_assets_tests.analyses.plain_score import RULES, panel_from, plain_crs, random_cells
from crsbench_assets_tests.scores.conftest import MEMBERS


def test_score_by_hand() -> None:
    # The table of crsbench_assets_tests/scores/conftest.py: alpha .649481, beta .503489, gamma .083333
    panel = panel_from(MEMBERS)  # type: ignore[arg-type]
    found = renormalised_crs(members_of(panel).values, RULES)
    assert found.tolist() == pytest.approx([0.649481, 0.503489, 0.083333], abs=1e-6)


@pytest.mark.parametrize("seed", range(20))
def test_score_agrees_with_plain_python(seed: int) -> None:
    cells = random_cells(seed)
    found = renormalised_crs(members_of(panel_from(cells)).values, RULES)
    assert found.tolist() == pytest.approx(list(plain_crs(cells).values()), abs=1e-12)


def test_a_dataset_of_nobody_moves_nothing() -> None:
    values = members_of(panel_from(random_cells(0))).values
    nobody = np.full((len(values), 1, 4), np.nan)
    assert (renormalised_crs(np.concatenate([values, nobody], axis=1), RULES) == renormalised_crs(values, RULES)).all()


def axes_frame(rows: list[tuple[str, str, str, str, float | None, str | None]]) -> pl.DataFrame:
    names = ("encoder_id", "dataset_id", "axis", "variant", "value", "reason")
    schema = dict.fromkeys(names, pl.String) | {"value": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


CELLS = {"a": {"near": [0.1, 0.2, 0.3, 0.4], "far": [0.5, 0.6, 0.7, 0.8]}, "b": {"near": [0.2, 0.3, 0.4, 0.5]}}


def variant_rows(value_of_b: float | None = 0.33, reason: str | None = None) -> pl.DataFrame:
    return axes_frame(
        [
            ("a", "near", "calibration", "brier", 0.11, None),
            ("a", "far", "calibration", "brier", 0.22, None),
            ("b", "near", "calibration", "brier", value_of_b, reason),
            ("b", "far", "calibration", "brier", 0.99, None),  # no cell of the panel
            ("late", "near", "calibration", "brier", 0.99, None),
            ("a", "near", "calibration", "primary", 0.99, None),
            ("a", "near", "robustness", "brier", 0.99, None),
        ]
    )


def test_an_axis_in_another_variant() -> None:
    cohort = members_of(panel_from(CELLS))
    assert cohort.datasets == ("far", "near")
    before = cohort.values.copy()
    found = with_variants(cohort, variant_rows(), {"calibration": "brier"})
    assert not isinstance(found, str)
    expected = before.copy()
    expected[:, :, AXES.index("calibration")] = [[0.22, 0.11], [np.nan, 0.33]]
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.array_equal(cohort.values, before, equal_nan=True)  # what was frozen stays


def test_why_a_variant_is_missing() -> None:
    cohort = members_of(panel_from(CELLS))
    flagged = variant_rows(None, "near_chance")
    assert with_variants(cohort, flagged, {"calibration": "brier"}) == "near_chance"
    assert with_variants(cohort, variant_rows(), {"calibration": "adaptive_ece"}) == "incomplete"
    assert with_variants(cohort, axes_frame([]), {"calibration": "brier"}) == "incomplete"
    assert shared_reason({"near_chance", "missing_seed"}) == "incomplete"
