"""From image files to vectors: the same in any company, resumed where it was cut off, and honest about the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray
from PIL import Image

import crsbench_assets.encoders.images as image_vectors
from crsbench_assets.config.cards import DatasetCard
from crsbench_assets.config.errors import StorageError
from crsbench_assets.config.ids import CLEAN
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.data.cohort import Cohort, images_frame
from crsbench_assets.data.integrity import check_images
from crsbench_assets.encoders.images import ImageVectors
from crsbench_assets.encoders.source import Machine
from crsbench_assets_tests.encoders.fixtures import card

SHAPES = {"a": (64, 64, 3), "b": (50, 120, 3), "c": (40, 40), "d": (100, 70, 3), "e": (32, 32), "f": (90, 90, 3)}
CONDITIONS = (CLEAN, "gaussian_noise-s3", "blur-s5", "brightness-s1", "contrast-s3", "jpeg-s5")


def write_images(folder: Path, shapes: dict[str, tuple[int, ...]] = SHAPES) -> None:
    folder.mkdir(exist_ok=True)
    for name, shape in shapes.items():
        coarse = keyed_generator("image", name).integers(30, 220, (5, 5, *shape[2:]), dtype=np.uint8)
        Image.fromarray(coarse).resize((shape[1], shape[0])).save(folder / f"{name}.png")


def dataset(folder: Path, modality: str = "dermoscopy") -> DatasetCard:
    columns = {"class_column": "label", "path": "file"}
    source = {"layout": "manifest", "manifest": str(folder / "labels.csv"), "columns": columns}
    named = {"id": "tiny", "name": "Tiny", "modality": modality, "task": "single_label", "classes": ["x", "y"]}
    return DatasetCard.model_validate(named | {"source": source})


def rows(folder: Path, names: Sequence[str]) -> pl.DataFrame:
    cohort = Cohort(
        image_ids=sorted(names),
        groups=sorted(names),
        declared_split=[None] * len(names),
        labels=np.zeros((len(names), 2), dtype=np.int8),
        paths=[f"{name}.png" for name in sorted(names)],
        root=str(folder),
    )
    checks = check_images(cohort, n_threads=1, progress=lambda *_: None)
    assert all(check.reason is None for check in checks)
    return images_frame("tiny", "primary", cohort, checks, "salt")


def vectors(
    folder: Path,
    names: Sequence[str] = tuple(SHAPES),
    conditions: Sequence[str] = CONDITIONS,
    encoder: str = "handcrafted",
    **machine: Any,
) -> dict[tuple[str, str], NDArray[np.float32]]:
    """Return the vector of every condition and image."""
    source = ImageVectors(card(encoder), dataset(folder), Machine(device="cpu", **machine))
    wanted = rows(folder, names)
    source.begin(dict.fromkeys(conditions, wanted), conditions, lambda line: None)
    found = {}
    for condition in conditions:
        matrix = source.vectors(condition, sorted(names), np.zeros((len(names), 2), dtype=np.int8))
        assert matrix is not None and matrix.shape[0] == len(names)
        found |= {(condition, name): row for name, row in zip(sorted(names), matrix, strict=True)}
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_images(tmp_path / "images")
    return tmp_path / "images"


@pytest.mark.parametrize("encoder", ["handcrafted", "efficientnet_lite0"])
def test_company_threads_and_batch_change_nothing(folder: Path, encoder: str) -> None:
    together = vectors(folder, encoder=encoder, batch_size=32, n_threads=1)
    others = [
        vectors(folder, ["c"], encoder=encoder, batch_size=32),
        vectors(folder, encoder=encoder, batch_size=8, n_threads=4),
        vectors(folder, encoder=encoder, batch_size=64, n_threads=4),
    ]
    for other in others:
        assert other
        for name, vector in other.items():
            np.testing.assert_allclose(vector, together[name], rtol=0, atol=1e-5)


def test_every_condition_and_image_has_its_own_vector(folder: Path) -> None:
    found = vectors(folder)
    assert len(found) == len(SHAPES) * len(CONDITIONS)
    assert len({vector.tobytes() for vector in found.values()}) == len(found)


@pytest.mark.parametrize("encoder", ["handcrafted", "random_vit"])
@pytest.mark.parametrize("shape", [(450, 600, 3), (1024, 1024, 3)])
def test_severity_zero_is_the_clean_image_to_the_bit(tmp_path: Path, encoder: str, shape: tuple[int, ...]) -> None:
    """Case ``same-identity-clean-and-severity-zero``: the drop under severity 0 is exactly 0."""
    write_images(tmp_path, {"big": shape})
    zero = [f"{kind}-s0" for kind in ("gaussian_noise", "blur", "brightness", "contrast", "jpeg")]
    found = vectors(tmp_path, ["big"], [CLEAN, *zero], encoder=encoder)
    for condition in zero:
        np.testing.assert_array_equal(found[condition, "big"], found[CLEAN, "big"])


def test_what_a_corruption_leaves_as_it_was_is_told(tmp_path: Path) -> None:
    """Case ``tiny-image-blur``: at 28 px the mildest Gaussian kernel is one pixel wide."""
    write_images(tmp_path, {"small": (28, 28), "large": (400, 400)})
    source = ImageVectors(card("handcrafted"), dataset(tmp_path, "xray"), Machine())
    wanted = rows(tmp_path, ["small", "large"])
    source.begin({CLEAN: wanted, "blur-s1": wanted, "blur-s5": wanted}, (), lambda line: None)
    assert set(source.unchanged("blur-s1")) == {"small"}
    assert "large" not in source.unchanged("blur-s5")
    assert set(source.unchanged(CLEAN)) == set(), "the clean image is not called unchanged: nothing was asked of it"


class Counting:
    """An encoder that counts what it is given."""

    def __init__(self) -> None:
        self.dim, self.is_on_processor, self.n_images = 155, True, 0

    def encode(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        self.n_images += len(batch)
        return np.repeat(batch.mean(axis=(1, 2, 3))[:, None], self.dim, axis=1).astype(np.float32)


def test_what_was_cut_off_goes_on_where_it_was(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(image_vectors, "IMAGES_PER_PART", 2)
    scratch = tmp_path / "scratch"
    first = Counting()
    monkeypatch.setattr(image_vectors, "load_encoder", lambda *_: first)
    expected = vectors(folder, scratch=scratch)
    assert first.n_images == len(SHAPES) * len(CONDITIONS)
    parts = sorted(scratch.iterdir())
    assert len(parts) == 3
    parts[0].write_bytes(parts[0].read_bytes()[:100])  # cut off while it was written
    parts[1].write_bytes(b"")  # as a power cut may leave it
    second = Counting()
    monkeypatch.setattr(image_vectors, "load_encoder", lambda *_: second)
    found = vectors(folder, scratch=scratch)
    assert second.n_images == 2 * 2 * len(CONDITIONS), "two of three parts were lost"
    for name, vector in expected.items():
        np.testing.assert_array_equal(found[name], vector)


def test_progress_says_how_many_how_fast_and_how_long(folder: Path) -> None:
    lines: list[str] = []
    source = ImageVectors(card("handcrafted"), dataset(folder), Machine())
    source.begin({CLEAN: rows(folder, list(SHAPES))}, (), lines.append)
    assert lines and lines[-1].startswith("6 of 6 images, ") and lines[-1].endswith(" images/s, 0 s left")


def test_a_file_that_changed_or_is_gone_is_one_sentence(folder: Path) -> None:
    wanted = rows(folder, list(SHAPES))
    write_images(folder, {"c": (48, 48)})
    source = ImageVectors(card("handcrafted"), dataset(folder), Machine())
    with pytest.raises(StorageError, match=r"image 'c': .*c\.png changed since it was indexed: run `crsbench mater"):
        source.begin({CLEAN: wanted}, (), lambda line: None)
    (folder / "c.png").unlink()
    with pytest.raises(StorageError, match=r"image 'c': .*c\.png cannot be read \(No such file"):
        source.begin({CLEAN: wanted}, (), lambda line: None)


def test_images_of_a_shift_target_are_never_corrupted(folder: Path) -> None:
    far = rows(folder, ["a", "b"]).with_columns(source_id=pl.lit("far"))
    shifted = dataset(folder).model_dump(mode="json")
    shifted["shift"] = {"id": "far", "name": "Far", "source": shifted["source"]}
    source = ImageVectors(card("handcrafted"), DatasetCard.model_validate(shifted), Machine())
    source.begin({CLEAN: rows(folder, list(SHAPES)), "shift_far": far}, (), lambda line: None)
    labels = np.zeros((2, 2), dtype=np.int8)
    np.testing.assert_array_equal(
        source.vectors("shift_far", ["a", "b"], labels), source.vectors(CLEAN, ["a", "b"], labels)
    )


def test_a_shift_target_without_files_has_no_vectors(folder: Path) -> None:
    far = rows(folder, ["a"]).with_columns(source_id=pl.lit("far"), path=pl.lit(None, dtype=pl.String))
    source = ImageVectors(card("handcrafted"), dataset(folder), Machine())
    source.begin({CLEAN: rows(folder, ["a"]), "shift_far": far}, (), lambda line: None)
    assert source.vectors("shift_far", ["a"], np.zeros((1, 2), dtype=np.int8)) is None
