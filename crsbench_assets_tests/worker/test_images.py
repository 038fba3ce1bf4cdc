"""A cohort of image files through the stages: what is left out, who is the same twice, and one encoder that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import yaml
from numpy.typing import NDArray
from PIL import Image

import crsbench_assets.encoders.images as image_vectors
from crsbench_assets.config.cards import EncoderCard
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.encoders.networks import ImageEncoder, load_encoder
from crsbench_assets.planning.stages import stage_named
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import Project, open_project
from crsbench_assets.worker.run import failure_of, run_stage
from crsbench_assets_tests.encoders.fixtures import card as demo_card
from crsbench_assets_tests.fixtures import compute, due, write_card, write_tiny_home

COHORT = ("photos",)
N_IMAGES, PX = 60, 48
ENCODERS = ("first", "second")


def picture(i: int) -> NDArray[np.uint8]:
    """Grey noise; positive images are darker on the left."""
    pixels = keyed_generator("photo", i).integers(60, 200, (PX, PX), dtype=np.uint8)
    if i % 2:
        pixels[:, : PX // 2] //= 2
    return pixels


def write_photos(layout: HomeLayout) -> None:
    """Put 60 images in pairs, one copied under another id, and two encoders into a tiny home."""
    folder = layout.root / "files" / "photos"
    folder.mkdir()
    names = [f"photo{i:02d}" for i in range(N_IMAGES)]
    for i, name in enumerate(names):
        Image.fromarray(picture(i)).save(folder / f"{name}.png")
    Image.fromarray(picture(1)).save(folder / "photo07.png")  # photo01 once more, of another pair
    pl.DataFrame(
        {
            "image_id": names,
            "label": [str(i % 2) for i in range(N_IMAGES)],
            "pair": [f"pair{i // 2:02d}" for i in range(N_IMAGES)],
            "file": [f"{name}.png" for name in names],
        }
    ).write_csv(folder / "labels.csv")
    columns = {"image_id": "image_id", "class_column": "label", "group": "pair", "path": "file"}
    card: dict[str, Any] = {"id": "photos", "name": "Photos", "modality": "xray", "task": "single_label"}
    card |= {"classes": ["negative", "positive"]}
    card |= {"source": {"layout": "manifest", "manifest": "../files/photos/labels.csv", "columns": columns}}
    write_card(layout.root, "datasets", card)
    for encoder_id, px in zip(ENCODERS, (64, 96), strict=True):
        encoder = demo_card("handcrafted").model_dump(mode="json")
        encoder |= {"id": encoder_id, "role": "candidate", "category": "generalist"}
        encoder["preprocessing"] |= {"input_px": px, "resize_px": px}
        write_card(layout.root, "encoders", encoder)


@pytest.fixture
def photos(tiny_home: HomeLayout) -> HomeLayout:
    write_photos(tiny_home)
    return tiny_home


@pytest.fixture(scope="module")
def photos_once(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A computed home that nobody writes into."""
    layout = write_tiny_home(tmp_path_factory.mktemp("photos") / "home")
    write_photos(layout)
    project = open_project(layout.root)
    compute(project)
    return project


def test_images_reach_records_and_scores(photos_once: Project) -> None:
    assert due(photos_once) == set()
    for encoder_id in ENCODERS:
        records = photos_once.lake.read("run_records", (encoder_id, "photos"))
        assert records.height == 2 * 2 * 3
        assert records.get_column("macro_auroc").null_count() == 0
        clean = records.filter((pl.col("condition_id") == "clean") & (pl.col("label_fraction") == 1.0))
        assert clean.get_column("macro_auroc").min() > 0.8
    images = photos_once.lake.read("images", COHORT)
    assert images.get_column("path").to_list()[:2] == ["photo00.png", "photo01.png"]
    assert set(images.get_column("width_px")) == {PX}
    assert not (photos_once.layout.root / "cache" / "parts").exists() or not any(
        (photos_once.layout.root / "cache" / "parts").iterdir()
    ), "parts go when their vectors are committed"


def test_equal_pixels_are_one_group_and_never_straddle(photos_once: Project) -> None:
    images = photos_once.lake.read("images", COHORT)
    group = dict(images.select("image_id", "group_index").iter_rows())
    assert group["photo00"] == group["photo01"] == group["photo06"] == group["photo07"]
    assert len(set(group.values())) == N_IMAGES // 2 - 1
    assert photos_once.lake.read("leakage_violations", COHORT).is_empty()


def test_an_image_of_the_dataset_leaves_its_shift_target_and_not_the_dataset(photos: HomeLayout) -> None:
    folder = photos.root / "files" / "elsewhere"
    folder.mkdir()
    pixels = {f"other{i}": picture(1000 + i) for i in range(4)} | {"same": picture(10), "near": picture(20)}
    pixels["near"][0, 0] += 1
    for name, image in pixels.items():
        Image.fromarray(image).save(folder / f"{name}.png")
    rows = [(name, str(i % 2), f"{name}.png") for i, name in enumerate(pixels)]
    pl.DataFrame(rows, schema=["image_id", "label", "file"], orient="row").write_csv(folder / "labels.csv")
    columns = {"image_id": "image_id", "class_column": "label", "path": "file"}
    source = {"layout": "manifest", "manifest": "../files/elsewhere/labels.csv", "columns": columns}
    path = photos.root / "datasets" / "photos.yaml"
    card = yaml.safe_load(path.read_text(encoding="utf-8"))
    alone = open_project(photos.root)
    compute(alone, ["index", "split"])
    before = {table: alone.lake.read(table, COHORT) for table in ("images", "splits")}
    write_card(photos.root, "datasets", card | {"id": "both", "shift": {"id": "far", "name": "Far", "source": source}})
    both = open_project(photos.root)
    compute(both, ["index", "split"])
    found = both.lake.read("quarantine", ("both",)).select("source_id", "image_id", "reason", "detail").rows()
    assert found == [
        ("far", "near", "in_own_dataset", "it is the picture of photo20 of the dataset itself"),
        ("far", "same", "in_own_dataset", "it is the picture of photo10 of the dataset itself"),
    ]
    images = both.lake.read("images", ("both",))
    assert images.filter(pl.col("source_id") == "far")["image_id"].to_list() == [f"other{i}" for i in range(4)]
    own = images.filter(pl.col("source_id") == "primary").drop("dataset_id")
    assert own.equals(before["images"].drop("dataset_id")), "the dataset does not depend on a target"


def test_a_condition_that_leaves_images_as_they_were_is_flagged(photos_once: Project) -> None:
    """Case ``tiny-image-blur``: on small images the mildest kernel is one pixel; the stronger one works."""
    records = photos_once.lake.read("run_records", ("first", "photos"))
    flags = dict(records.select("condition_id", "flag").unique().iter_rows())
    assert flags == {"clean": None, "blur-s1": "no_effect", "blur-s3": None}
    unchanged = photos_once.lake.read("embeddings", ("first", "photos")).filter(pl.col("is_unchanged"))
    assert unchanged.get_column("condition_id").unique().to_list() == ["blur-s1"]


class Failing:
    """An encoder that returns NaN for one image."""

    def __init__(self, encoder: ImageEncoder, bad: NDArray[np.float32]) -> None:
        self.dim, self.is_on_processor, self._encoder, self._bad = encoder.dim, True, encoder, bad

    def encode(self, batch: NDArray[np.float32]) -> NDArray[np.float32]:
        found = self._encoder.encode(batch)
        is_bad = np.array([np.array_equal(image, self._bad) for image in batch])
        found[is_bad] = np.nan
        return found


def test_nan_for_one_image_fails_that_cell_and_moves_nothing_else(
    photos: HomeLayout, photos_once: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case ``encoder-fails-on-one-support-image``."""
    from crsbench_assets.images.preprocess import prepare

    def load(card: EncoderCard, device: str) -> ImageEncoder:
        encoder = load_encoder(card, device)
        if card.id == "first" and card.preprocessing:
            return Failing(encoder, prepare(picture(20), card.preprocessing))
        return encoder

    monkeypatch.setattr(image_vectors, "load_encoder", load)
    project = open_project(photos.root)
    results = compute(project)
    extract = results["extract", ("first", "photos")]
    failure = failure_of(extract, stage_named("extract"), ("first", "photos"))
    assert failure is not None and "incomplete_support" in str(failure) and "'photo20'" in str(failure)
    assert "(not_finite)" in str(failure)
    failures = project.lake.read("embedding_failures", ("first", "photos"))
    assert set(failures.get_column("image_id")) == {"photo20"}
    for table in ("embeddings", "predictions", "run_records", "label_metrics", "cell_axes"):
        mine = project.lake.pointer(table, ("second", "photos"))
        theirs = photos_once.lake.pointer(table, ("second", "photos"))
        assert mine is not None and theirs is not None and mine.files == theirs.files, table
        (name,) = mine.files
        parts = [p.lake.folder(table, ("second", "photos")) / name for p in (project, photos_once)]
        assert parts[0].read_bytes() == parts[1].read_bytes()


def test_what_cannot_be_used_is_quarantined_and_moves_no_other_image(photos: HomeLayout, photos_once: Project) -> None:
    folder = photos.root / "files" / "photos"
    (folder / "photo10.png").write_bytes(b"")
    (folder / "photo11.png").write_bytes((folder / "photo11.png").read_bytes()[:-200])
    Image.fromarray(np.full((PX, PX), 7, dtype=np.uint8)).save(folder / "photo12.png")
    Image.fromarray(np.zeros((1, 1), dtype=np.uint8)).save(folder / "photo13.png")
    (folder / "photo14.png").unlink()
    lines = (folder / "labels.csv").read_text().replace("photo15.png", "../../photo15.png")
    (folder / "labels.csv").write_text(lines)
    project = open_project(photos.root)
    compute(project, ["index", "split", "extract"])
    quarantine = project.lake.read("quarantine", COHORT)
    assert dict(quarantine.select("image_id", "reason").iter_rows()) == {
        "photo10": "unreadable",
        "photo11": "unreadable",
        "photo12": "constant",
        "photo13": "too_small",
        "photo14": "missing_file",
        "photo15": "outside_root",
    }
    left_out = set(quarantine.get_column("image_id"))
    splits = project.lake.read("splits", COHORT).filter(pl.col("split") != "left_out")
    assert not left_out & set(splits.get_column("image_id"))
    before = photos_once.lake.read("splits", COHORT).filter(~pl.col("image_id").is_in(left_out))
    side = ["image_id", "seed", "split"]
    assert splits.select(side).sort(side).equals(before.select(side).sort(side))
    vectors = project.lake.read("embeddings", ("first", "photos"))
    assert not left_out & set(vectors.get_column("image_id"))


def test_a_moved_root_makes_nothing_stale(photos: HomeLayout, tmp_path: Path) -> None:
    project = open_project(photos.root)
    compute(project, ["index", "split"])
    (photos.root / "files" / "photos").rename(tmp_path / "elsewhere")
    path = photos.root / "datasets" / "photos.yaml"
    path.write_text(path.read_text().replace("../files/photos/labels.csv", str(tmp_path / "elsewhere" / "labels.csv")))
    moved = open_project(photos.root)
    assert {stage for stage, key in due(moved) if key == COHORT} == set()
    assert run_stage(moved, stage_named("extract"), ("first", "photos")).pointers["embeddings"].status == "ok"


def test_indexing_again_finds_the_same(photos: HomeLayout) -> None:
    (photos.root / "files" / "photos" / "photo10.png").write_bytes(b"no image")
    project = open_project(photos.root)
    first = run_stage(project, stage_named("index"), COHORT).pointers["quarantine"]
    second = run_stage(project, stage_named("index"), COHORT).pointers["quarantine"]
    assert first.n_rows == 1 and first.content_hash == second.content_hash
    (detail,) = project.lake.read("quarantine", COHORT).get_column("detail")
    assert "no image of the formats JPEG" in detail


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (range(N_IMAGES), r"none of the 60 images of primary can be used.*photo00: unreadable.*; and 40 more"),
        (range(1, N_IMAGES, 2), r"no image of class 'positive' can be used.*photo01: unreadable"),
    ],
)
def test_a_cohort_or_class_without_a_usable_image_is_refused(photos: HomeLayout, broken: range, expected: str) -> None:
    for i in broken:
        (photos.root / "files" / "photos" / f"photo{i:02d}.png").write_bytes(b"x")
    with pytest.raises(ConfigError, match=expected):
        run_stage(open_project(photos.root), stage_named("index"), COHORT)
