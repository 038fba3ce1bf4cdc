"""Vectors that a cell needs, and what is said of those that it cannot use."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from crsbench_assets.config.cards import DatasetCard, EncoderCard
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.embeddings.extract import Extraction, extract
from crsbench_assets.encoders.precomputed import PrecomputedVectors
from crsbench_assets.tables.reasons import REASONS
from crsbench_assets_tests.fixtures import dataset_card, encoder_card

IMAGES = pl.DataFrame(
    {"source_id": ["primary"] * 3 + ["far"], "image_id": ["a", "b", "c", "d"], "labels": [[1, 0]] * 4},
    schema={"source_id": pl.String, "image_id": pl.String, "labels": pl.List(pl.Int8)},
)
CLEAN = [("a", "clean", [1.0, 2.0]), ("b", "clean", [3.0, 4.0]), ("c", "clean", [5.0, 6.0])]
BLURRED, SHIFTED = [("c", "blur-s1", [5.0, 5.0])], [("d", "shift_far", [7.0, 8.0])]

Row = tuple[str, str, list[float] | None]


def extraction(folder: Path, rows: list[Row], shift_id: str | None = "far") -> Extraction:
    """Return what three images, of which ``c`` is the test split, and a shift target of one image give."""
    path = folder / "vectors.parquet"
    schema = {"image_id": pl.String, "condition_id": pl.String, "vector": pl.List(pl.Float32)}
    pl.DataFrame(rows, schema=schema, orient="row").write_parquet(path)
    encoder = EncoderCard.model_validate(encoder_card("alpha", vectors={"tiny": [str(path)]}))
    source = PrecomputedVectors(encoder, DatasetCard.model_validate(dataset_card()))
    return extract(source, IMAGES, ["c"], ["blur-s1", "blur-s3"], shift_id)


def test_clean_of_all_images_and_corruptions_of_the_test_images(tmp_path: Path) -> None:
    found = extraction(tmp_path, [*CLEAN, *BLURRED, ("a", "blur-s1", [0.0, 0.0]), *SHIFTED])
    assert (found.reason, found.detail, found.failures.height) == (None, None, 0)
    own = [(image_id, condition, vector) for condition, image_id, vector, _ in found.embeddings.rows()]
    assert own == [*CLEAN, *BLURRED]
    assert found.shift_embeddings.rows() == [("shift_far", "d", [7.0, 8.0])]


@pytest.mark.parametrize(
    ("shift_id", "unknown"), [("far", "'blur_s3', 'clear'"), (None, "'blur_s3', 'clear', 'shift_far'")]
)
def test_an_unknown_condition_is_refused_with_the_known_ones(
    tmp_path: Path, shift_id: str | None, unknown: str
) -> None:
    rows = [*CLEAN, *SHIFTED, ("c", "blur_s3", [0.0, 0.0]), ("c", "clear", [0.0, 0.0])]
    with pytest.raises(ConfigError) as raised:
        extraction(tmp_path, rows, shift_id)
    known = "clean, blur-s1, blur-s3" + (", shift_far" if shift_id else "")
    assert str(raised.value) == (
        f"vectors of encoder 'alpha' for 'tiny': unknown condition(s) {unknown}; the protocol has {known}. "
        "Rename or remove their rows."
    )


@pytest.mark.parametrize("vector", [[1.0], [1.0, 2.0, 3.0], []])
@pytest.mark.parametrize(
    ("image_id", "condition", "rest"),
    [
        ("a", "clean", [*CLEAN[1:], *BLURRED, *SHIFTED]),
        ("c", "blur-s1", [*CLEAN, *SHIFTED]),
        ("d", "shift_far", [*CLEAN, *BLURRED]),
    ],
)
def test_a_vector_of_another_width_fails_the_cell_by_its_image(
    tmp_path: Path, vector: list[float], image_id: str, condition: str, rest: list[Row]
) -> None:
    found = extraction(tmp_path, [(image_id, condition, vector), *rest])
    assert found.failures.rows() == [(condition, image_id, "wrong_width")]
    assert found.reason == "incomplete_support"
    assert f"of image {image_id!r} under {condition!r} (wrong_width)" in str(found.detail)
    assert (found.embeddings.height, found.shift_embeddings.height) == (0, 0)


def test_a_vector_that_no_cell_needs_may_have_any_width(tmp_path: Path) -> None:
    found = extraction(tmp_path, [*CLEAN, *BLURRED, *SHIFTED, ("a", "blur-s1", [1.0]), ("z", "clean", [1.0, 2.0, 3.0])])
    assert found.reason is None


def test_every_reason_is_in_the_closed_list(tmp_path: Path) -> None:
    nan, infinite = float("nan"), float("inf")
    rows: list[Row] = [("a", "clean", None), ("b", "clean", [1.0, infinite]), ("c", "clean", [1.0])]
    found = extraction(tmp_path, [*rows, ("c", "blur-s1", [nan, 1.0]), *SHIFTED])
    assert [row[2] for row in found.failures.rows()] == ["missing", "not_finite", "wrong_width", "not_finite"]
    assert {row[2] for row in found.failures.rows()} <= REASONS.keys()


@pytest.mark.parametrize("vector", [None, []])
def test_files_without_any_vector_are_one_sentence(tmp_path: Path, vector: list[float] | None) -> None:
    with pytest.raises(ConfigError, match=r"vectors\.parquet hold no vector"):
        extraction(tmp_path, [("a", "clean", vector)])
