from __future__ import annotations

import json
import random
from collections.abc import Collection, Mapping
from typing import Any

import polars as pl
import pytest

from crsbench_assets.analyses.crs_variants import crs_variants
from crsbench_assets.config.protocol import AXES
from crsbench_assets.scores.panel import Panel
from crsbench_assets_tests.analyses.plain_score import RULES, Cells, panel_from, plain_crs, random_cells
from crsbench_assets_tests.tables.rows import written

DATASETS = pl.DataFrame({"dataset_id": ["d0", "d1", "d2"], "shift_id": [None, None, "other"]})


def shift_panel(cells: Cells) -> Panel:
    panel = panel_from(cells)
    return panel.model_copy(update={"conditions": panel.conditions.model_copy(update={"robustness_variant": "shift"})})


def analyse(
    panel: Panel,
    primary: Mapping[str, Mapping[str, Any]],
    seen: Collection[str] = (),
    roles: Mapping[str, str] | None = None,
    lacking: Collection[tuple[str, str]] = (),
) -> dict[tuple[str, str], dict[str, Any]]:
    rows = []
    for encoder, own in primary.items():
        for dataset, values in own.items():
            rows += [(encoder, dataset, axis, "primary", value) for axis, value in zip(AXES, values, strict=True)]
            without_shift = None if (encoder, dataset) in lacking else corrupted(encoder, dataset, values[3])
            rows.append((encoder, dataset, "robustness", "corruption_only", without_shift))
    random.Random(0).shuffle(rows)
    columns = ("encoder_id", "dataset_id", "axis", "variant", "value")
    axes = pl.DataFrame(rows, schema=dict.fromkeys(columns, pl.String) | {"value": pl.Float64}, orient="row")
    axes = axes.with_columns(reason=pl.when(pl.col("value").is_null()).then(pl.lit("undefined_term")))
    ids = sorted(primary, reverse=True)
    scored = pl.DataFrame(
        {
            "encoder_id": ids,
            "role": [(roles or {}).get(encoder, "candidate") for encoder in ids],
            "dataset_ids": [list(primary[encoder]) for encoder in ids],
        }
    )
    exposure = [json.dumps({"other": "seen" if encoder in seen else "unknown"}) for encoder in ids]
    encoders = pl.DataFrame({"encoder_id": ids, "exposure": exposure})
    found = crs_variants(axes, scored, encoders, DATASETS, panel, RULES)
    written(found, "crs_variants")
    return {(row["variant"], row["encoder_id"]): row for row in found.iter_rows(named=True)}


def corrupted(encoder: str, dataset: str, robustness: float) -> float:
    """Another robustness of a cell, by the encoder's and the dataset's name."""
    return robustness * (0.5 + 0.07 * (sum(map(ord, encoder + dataset)) % 7))


def replaced(cells: Cells, of: Collection[tuple[str, str]]) -> Cells:
    return {
        e: {d: [*v[:3], corrupted(e, d, v[3]) if (e, d) in of else v[3]] for d, v in own.items()}
        for e, own in cells.items()
    }


@pytest.mark.parametrize("seed", range(5))
def test_scores_are_those_of_the_replaced_axis(seed: int) -> None:
    cells = random_cells(seed, 6)
    seen = {"e00", "e03"}
    found = analyse(shift_panel(cells), cells, seen)
    everywhere = {(e, d) for e, own in cells.items() for d in own}
    for variant, of in (("corruption_only", everywhere), ("without_exposed", {(e, "d2") for e in seen})):
        expected = plain_crs(replaced(cells, of))
        assert {e: found[variant, e]["crs"] for e in cells} == pytest.approx(expected, abs=1e-12)
        ranks = {e: 1 + sum(other > expected[e] + 1e-12 for other in expected.values()) for e in expected}
        assert {e: found[variant, e]["rank"] for e in cells} == ranks
    assert len(found) == 12


def test_nobody_exposed_leaves_the_primary_score() -> None:
    cells = random_cells(3, 5)
    found = analyse(shift_panel(cells), cells)
    assert {e: found["without_exposed", e]["crs"] for e in cells} == pytest.approx(plain_crs(cells), abs=1e-12)


def test_a_panel_without_the_shift_term_has_the_same_score_twice() -> None:
    cells = random_cells(3, 5)
    panel = panel_from(cells)
    without = panel.conditions.model_copy(update={"robustness_variant": "corruption_only"})
    found = analyse(panel.model_copy(update={"conditions": without}), cells, seen={"e01"})
    assert {e: found["without_exposed", e]["crs"] for e in cells} == {
        e: found["corruption_only", e]["crs"] for e in cells
    }


def test_who_joins_later_is_scored_against_the_members_and_moves_none() -> None:
    cells = random_cells(4, 5)
    panel = shift_panel(cells)
    before = analyse(panel, cells)
    best = {d: [9.0] * 4 for d in ("d0", "d1", "d2")}
    after = analyse(panel, cells | {"zz": best, "aa": {"d1": [0.9, 0.1, 0.2, 0.3]}})
    assert all(after[key]["crs"] == row["crs"] for key, row in before.items())
    assert (after["without_exposed", "zz"]["crs"], after["without_exposed", "zz"]["rank"]) == (1.0, 1)
    assert after["corruption_only", "aa"]["crs"] is not None


def test_controls_have_no_row_and_undefined_ones_a_reason() -> None:
    cells = random_cells(5, 5)
    panel = shift_panel(cells)
    joined: dict[str, Any] = dict(cells)
    joined |= {"control": {"d0": [0.5] * 4}, "far": {"elsewhere": [0.5] * 4}, "half": {"d0": [0.5, 0.5, None, 0.5]}}
    found = analyse(panel, joined, roles={"control": "control"})
    assert not any(encoder == "control" for _, encoder in found)
    assert found["corruption_only", "far"]["reason"] == "no_anchor"
    assert found["corruption_only", "half"]["reason"] == "incomplete"
    # a member lacks the variant: whom would the others be compared with?
    dataset = next(iter(cells["e00"]))
    found = analyse(panel, joined, roles={"control": "control"}, lacking={("e00", dataset)})
    assert {row["reason"] for (variant, _), row in found.items() if variant == "corruption_only"} == {"incomplete"}
    assert found["without_exposed", "e00"]["crs"] is not None


def test_a_retired_member_counts_and_has_no_row() -> None:
    cells = random_cells(6, 5)
    panel = shift_panel(cells)
    before = analyse(panel, cells)
    found = analyse(panel, cells, roles={"e00": "control"})
    assert {k: row["crs"] for k, row in found.items()} == {k: row["crs"] for k, row in before.items() if k[1] != "e00"}
