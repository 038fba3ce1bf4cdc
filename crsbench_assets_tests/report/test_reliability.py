from __future__ import annotations

from dataclasses import replace

import polars as pl
import pytest

from crsbench_assets.report.figures.reliability import (
    DatasetDiagrams,
    Diagram,
    explain,
    reliability_diagrams,
    reliability_layouts,
    reliability_traces,
)
from crsbench_assets.report.frames import ReportFrames, read_frames
from crsbench_assets.storage.layout import HomeLayout


@pytest.fixture(scope="module")
def frames(reported_home: HomeLayout) -> ReportFrames:
    return read_frames(reported_home)


def diagrams_of(part: DatasetDiagrams) -> dict[tuple[str, str], Diagram]:
    return {(p.encoder["encoder_id"], d.condition_id): d for p in part.panels for d in p.diagrams}


@pytest.mark.parametrize(
    ("reason", "said"),
    [
        ("no_positive", "no positive image among the test images (no_positive)"),
        ("probe: not_converged", "a probe did not reach the certified gap (probe: not_converged)"),
        (
            "no_labels, no_positive",
            "no known label among the images; no positive image among the test images (no_labels, no_positive)",
        ),
        ("extract: the disk is full: free space", "extract: the disk is full: free space"),
        ("", "no reason is recorded"),
        (None, "no reason is recorded"),
    ],
)
def test_reasons_are_said_in_words(reason: str | None, said: str) -> None:
    assert explain(reason) == said


def test_every_cell_has_a_panel_in_the_order_of_the_leaderboard(frames: ReportFrames) -> None:
    chest, skin = reliability_diagrams(frames)
    for part in (chest, skin):
        assert [panel.encoder["encoder_id"] for panel in part.panels] == ["alpha", "beta", "broken", "floor"]
    assert (chest.conditions, skin.conditions) == (("clean", "shift_ward"), ("clean",))
    assert (chest.n_seeds, skin.n_seeds) == (2, 2)


def test_a_cell_without_result_says_why(frames: ReportFrames) -> None:
    chest, skin = map(diagrams_of, reliability_diagrams(frames))
    reasons = {key: diagram.reason for key, diagram in (chest | skin).items() if diagram.plot_id is None}
    assert reasons == {
        ("broken", "clean"): "the encoder has no usable vector for at least one image of the support "
        "(extract: incomplete_support)",
        ("broken", "shift_ward"): "the encoder's card names no vectors for this dataset or condition (no_vectors)",
        ("beta", "clean"): "the encoder's card says that it has no cell on this dataset (excluded_by_card)",
    }
    statuses = [[panel.status for panel in part.panels] for part in reliability_diagrams(frames)]
    assert statuses == [[None, None, "not_applicable", None], [None, "not_applicable", "failed", None]]


def test_a_record_without_bins_says_the_reason_of_the_record(frames: ReportFrames) -> None:
    lost = (pl.col("encoder_id") == "alpha") & (pl.col("condition_id") == "shift_ward")
    changed = replace(
        frames,
        reliability=frames.reliability.filter(~lost),
        calibration=frames.calibration.with_columns(
            ece=pl.when(~lost).then("ece"), reason=pl.when(lost).then(pl.lit("no_access"))
        ),
    )
    diagram = diagrams_of(reliability_diagrams(changed)[0])["alpha", "shift_ward"]
    assert diagram.plot_id is None
    assert diagram.reason == "the dataset needs an agreement that crsbench.yaml does not record (no_access)"


def test_a_cell_that_is_well_but_lacks_a_record_says_so(frames: ReportFrames) -> None:
    empty = replace(frames, reliability=frames.reliability.clear(), calibration=frames.calibration.clear())
    chest = reliability_diagrams(empty)[0]
    assert diagrams_of(chest)["alpha", "clean"].reason == "no record of this condition is published"
    assert chest.n_seeds == 0
    assert (reliability_traces(empty), reliability_layouts(empty)) == ({}, {})


def test_every_diagram_has_its_traces_and_no_trace_is_left_over(frames: ReportFrames) -> None:
    parts = reliability_diagrams(frames)
    drawn = {d.plot_id for part in parts for d in diagrams_of(part).values() if d.plot_id is not None}
    assert drawn == reliability_traces(frames).keys()
    assert "chest/alpha/shift_ward" in drawn
    assert reliability_layouts(frames).keys() == {"chest", "skin"}


def test_lines_are_told_apart_without_colour(frames: ReportFrames) -> None:
    for diagonal, points, counts in reliability_traces(frames).values():
        assert (diagonal["x"], diagonal["y"]) == ([0, 1], [0, 1])
        assert (diagonal["line"]["dash"], diagonal["mode"]) == ("dash", "lines")
        assert points["mode"] == "lines+markers" and "dash" not in points["line"]
        assert (counts["type"], counts["yaxis"]) == ("bar", "y2")


def test_every_count_lies_on_the_axis_that_its_dataset_shares(frames: ReportFrames) -> None:
    layouts = reliability_layouts(frames)
    for plot_id, (_, _, counts) in reliability_traces(frames).items():
        low, high = layouts[plot_id.split("/")[0]]["yaxis2"]["range"]
        assert 10**low < min(counts["y"]) <= max(counts["y"]) < 10**high


def test_labels_stand_in_the_order_of_the_card(frames: ReportFrames) -> None:
    chest, skin = reliability_diagrams(frames)
    assert skin.labels == ()
    assert [encoder["encoder_id"] for encoder, _ in chest.labels] == ["alpha", "beta", "floor"]
    for _, rows in chest.labels:
        assert [row["class_name"] for row in rows] == ["edema", "rare", "<i>effusion</i>"]
