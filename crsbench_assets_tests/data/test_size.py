"""Cohorts as large as the real ones, from tables generated here: exact counts, and time and memory of index and splits.

The image files are not there: what is measured is reading, looking for every file, groups, five seeds of splits, label
fractions, statistics and the search for leaks.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from crsbench_assets.config.cards import PRIMARY, DatasetCard
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.config.registry import CATALOG, load_protocol, read_card
from crsbench_assets.data.cohort import Cohort, images_frame, readable_cohorts
from crsbench_assets.data.leakage import leakage_violations
from crsbench_assets.data.splits import draw_splits, fraction_size, is_feasible
from crsbench_assets.data.statistics import dataset_statistics, unexpected_counts
from crsbench_assets_tests.data.layouts import CXR_LABELS
from crsbench_assets_tests.data.test_chexpert import HEADER

N_TRAIN, N_TRAIN_FRONTAL, N_VALID, N_VALID_FRONTAL = 223_414, 191_027, 234, 202
N_PATIENTS = 64_540
SECONDS, GIB = 20.0, 2.0


def official_card(name: str, root: Path) -> DatasetCard:
    card = read_card(DatasetCard, CATALOG / "datasets" / f"{name}.yaml")
    source = card.source.model_copy(update={"root": str(root)})
    return card.model_copy(update={"source": source, "shift": None, "agreement": None})


def read(card: DatasetCard) -> tuple[Cohort, str]:
    """Return what the tables of a root without image files say, and the sentence that refuses it."""
    cohorts, faults = readable_cohorts(card, "u_zeros")
    (said,) = faults
    return replace(cohorts[PRIMARY], left_out=[], paths=None, root=None), said


def write_chexpert(folder: Path, prefix: str) -> None:
    """Write train.csv and valid.csv with as many rows, frontal views and patients as the release has."""
    for name, n, n_frontal, first, n_patients in (
        ("train", N_TRAIN, N_TRAIN_FRONTAL, 1, N_PATIENTS),
        ("valid", N_VALID, N_VALID_FRONTAL, N_PATIENTS + 1, 200),
    ):
        (folder / name).mkdir(parents=True)
        generator = keyed_generator("chexpert", name)
        patient = first + np.sort(
            np.concatenate([np.arange(n_patients), generator.integers(0, n_patients, n - n_patients)])
        )
        view = np.where(generator.permutation(n) < n_frontal, "Frontal", "Lateral")
        paths = [
            f"{prefix}{name}/patient{p:05d}/study{i % 97 + 1}/view{i}_{v.lower()}.jpg"
            for i, (p, v) in enumerate(zip(patient.tolist(), view.tolist(), strict=True))
        ]
        values = np.array(["1.0", "0.0", "-1.0", ""], dtype=object)
        labels = {
            label: values[generator.choice(4, n, p=[0.02 + 0.03 * i, 0.05, 0.05, 0.88 - 0.03 * i])].tolist()
            for i, label in enumerate(CXR_LABELS)
        }
        ones = dict.fromkeys(("Sex", "Age", "AP/PA"), ["x"] * n)
        frame = pl.DataFrame({"Path": paths, "Frontal/Lateral": view.tolist(), **ones, **labels})
        frame.select(HEADER).write_csv(folder / f"{name}.csv", quote_style="never")


def index_and_split(root: Path) -> dict[str, object]:
    """Index and split the cohort below a root; return counts, and what it cost this process."""
    begun = time.perf_counter()
    protocol = load_protocol("crs-1", root)
    card = official_card("chexpert", root)
    cohort, said = read(card)
    images = images_frame(card.id, PRIMARY, cohort, [], "salt")
    result = draw_splits(
        cohort.image_ids,
        cohort.groups,
        cohort.labels,
        cohort.declared_split,
        dataset_id=card.id,
        seeds=protocol.seeds,
        test_fraction=protocol.splits.test_fraction,
        validation_fraction=protocol.splits.validation_fraction,
    )
    feasible = [
        fraction
        for fraction in protocol.label_fractions
        if is_feasible(result.frame, cohort.image_ids, cohort.labels, fraction, is_multi_label=True)
    ]
    statistics = dataset_statistics(images, result.frame, card.classes, protocol.seeds, {}, {PRIMARY: cohort})
    leaks = leakage_violations(result.frame, images)
    seconds = time.perf_counter() - begun
    n_train = result.frame.filter((pl.col("seed") == 0) & (pl.col("split") == "train")).height
    test = result.frame.filter((pl.col("seed") == 0) & (pl.col("split") == "test"))
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024 if sys.platform == "darwin" else 1)
    return {
        "said": said,
        "n_images": len(cohort.image_ids),
        "n_groups": len(set(cohort.groups)),
        "counts": unexpected_counts(card, images, pl.DataFrame(schema={"source_id": pl.String})),
        "n_rows": result.frame.height,
        "test_share": test.height / len(cohort.image_ids),
        "fractions": [fraction_size(n_train, fraction) for fraction in feasible],
        "n_statistics": statistics.height,
        "n_leaks": leaks.height,
        "seconds": seconds,
        "gib": kilobytes / 2**20,
    }


@pytest.mark.slow
def test_chexpert_is_indexed_and_split_in_seconds(tmp_path: Path) -> None:
    write_chexpert(tmp_path / "CheXpert-v1.0-small", "CheXpert-v1.0-small/")
    program = f"import json; from {__name__} import *; print(json.dumps(index_and_split(Path({str(tmp_path)!r}))))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["n_images"] == N_TRAIN_FRONTAL + N_VALID_FRONTAL == 191_229
    assert "none of the 191229 image files can be used" in found["said"], "nothing else is wrong"
    assert found["counts"] == []
    assert (found["n_rows"], found["n_leaks"]) == (5 * 191_229, 0)
    assert 0.2 <= found["test_share"] < 0.201
    assert len(found["fractions"]) == 5 and found["n_statistics"] == 5 * 3 * 14
    assert found["seconds"] <= SECONDS
    assert found["gib"] <= GIB


@pytest.mark.slow
def test_both_prefixes_are_one_cohort(tmp_path: Path) -> None:
    cohorts = []
    for version in ("CheXpert-v1.0", "CheXpert-v1.0-small"):
        write_chexpert(tmp_path / version, f"{version}/")
        cohorts.append(read(official_card("chexpert", tmp_path / version))[0])
    assert cohorts[0].image_ids == cohorts[1].image_ids and len(cohorts[0].image_ids) == 191_229
    assert cohorts[0].groups == cohorts[1].groups
    assert np.array_equal(cohorts[0].labels, cohorts[1].labels)


def test_isic_counts_come_out_exact(tmp_path: Path) -> None:
    """25,331 rows; 2,084 without a lesion; 11,847 lesions with one class each; 2,074 ``_downsampled`` names."""
    card = official_card("isic2019", tmp_path)
    assert card.expected_n_positive is not None
    n, n_alone, n_lesions = 25_331, 2_084, 11_847
    classes = [name for name, count in card.expected_n_positive.items() for _ in range(count)]
    order = keyed_generator("isic").permutation(n)
    names = [f"ISIC_{i:07d}{'_downsampled' if i < 2_074 else ''}" for i in range(n)]
    lesions = ["" if i < n_alone else f"BCN_{(i - n_alone) % n_lesions:07d}" for i in range(n)]
    truth = pl.DataFrame({"image": [names[i] for i in order], "UNK": "0.0"}).with_columns(
        **{name: pl.Series(["1.0" if classes[i] == name else "0.0" for i in order]) for name in card.classes}
    )
    metadata = pl.DataFrame({"sex": "", "lesion_id": lesions, "image": names, "target": "1"})
    (tmp_path / "ISIC_2019_Training_Input").mkdir()
    truth.write_csv(tmp_path / "ISIC_2019_Training_GroundTruth.csv")
    metadata.write_csv(tmp_path / "ISIC_2019_Training_Metadata.csv")
    cohort, said = read(card)
    assert "none of the 25331 image files can be used" in said
    assert len(cohort.image_ids) == n and len(set(cohort.groups)) == n_alone + n_lesions == 13_931
    counts = dict(zip(card.classes, cohort.labels.sum(axis=0, dtype=int).tolist(), strict=True))
    assert counts == card.expected_n_positive
    images = images_frame(card.id, PRIMARY, cohort, [], "salt")
    assert unexpected_counts(card, images, pl.DataFrame(schema={"source_id": pl.String})) == []
