"""What the choice of C decides on real input: 5,030 chest radiographs, real pretrained weights against random ones.

The data (a reduced copy of PneumoniaMNIST) are not part of the repository: see ``test_real_vectors``. 1,280
dimensions meet 3,855 training images here, about three images per dimension.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from crsbench_assets.config.cards import EncoderCard
from crsbench_assets.config.hashes import content_hash
from crsbench_assets.config.machine import one_thread
from crsbench_assets.data.splits import TEST, TRAIN, draw_splits
from crsbench_assets.encoders.networks import load_encoder
from crsbench_assets.images.canonical import canonical
from crsbench_assets.images.preprocess import prepare
from crsbench_assets.metrics.compute import record_metrics
from crsbench_assets.metrics.replicates import Interval, auroc_replicates, group_weights, percentile_interval
from crsbench_assets.probes.estimators.interface import LinearModel, Selection
from crsbench_assets.probes.estimators.tuned_logistic import TunedLogistic
from crsbench_assets.probes.fit import standardisation
from crsbench_assets.probes.logistic import Design, fit_logistic
from crsbench_assets_tests.encoders.fixtures import card, changed
from crsbench_assets_tests.integration.test_real_vectors import DATA

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (DATA / "pneumoniamnist.npz").exists(), reason=f"the radiographs are not at {DATA}"),
]


@dataclass(frozen=True)
class Radiographs:
    """All images in the order of their ids: labels (n, 2), groups of equal pixels (n,), and the rows of two splits."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.int8]
    groups: NDArray[np.int64]
    train: NDArray[np.int64]
    test: NDArray[np.int64]


@pytest.fixture(scope="module")
def radiographs() -> Radiographs:
    """The declared test split is kept, the rest is the pool: the splits of seed 0 of any home."""
    pixels, classes, declared, ids = [], [], [], []
    with np.load(DATA / "pneumoniamnist.npz") as data:
        for split, name in (("train", "train"), ("val", "validation"), ("test", "test")):
            pixels.append(data[f"{split}_images"])
            classes.append(data[f"{split}_labels"].ravel())
            declared += [name] * len(pixels[-1])
            ids += [f"{split}{i:04d}" for i in range(len(pixels[-1]))]
    images, labels = np.concatenate(pixels), np.eye(2, dtype=np.int8)[np.concatenate(classes)]
    names = [content_hash(image.tolist()) for image in images]
    splits = draw_splits(
        ids, names, labels, declared, dataset_id="radiographs", seeds=(0,), test_fraction=0.2, validation_fraction=0.125
    ).frame
    row_of = {image_id: row for row, image_id in enumerate(ids)}

    def rows(split: str) -> NDArray[np.int64]:
        chosen = splits.filter(split=split).sort("position", "image_id").get_column("image_id")
        return np.array([row_of[image_id] for image_id in chosen])

    _, groups = np.unique(names, return_inverse=True)
    return Radiographs(images, labels, groups, rows(TRAIN), rows(TEST))


def clean_vectors(radiographs: Radiographs, encoder: EncoderCard) -> NDArray[np.float32]:
    assert encoder.preprocessing is not None
    network = load_encoder(encoder)
    parts = []
    for start in range(0, len(radiographs.pixels), 64):
        images = radiographs.pixels[start : start + 64]
        parts.append(network.encode(np.stack([prepare(canonical(image), encoder.preprocessing) for image in images])))
    return np.concatenate(parts)


def test_tuned_c_shows_what_fixed_c_hides(radiographs: Radiographs) -> None:
    """Pretrained weights less random ones, at fixed C and at tuned C: paired replicates of the same test groups."""
    encoders = {
        "lite0": card("efficientnet_lite0"),
        "class_token": changed("random_vit", "embedding", pooling="cls"),
        "mean_patches": card("random_vit"),
    }
    train, test = radiographs.train, radiographs.test
    truth, groups = radiographs.labels[test], np.unique(radiographs.groups[test], return_inverse=True)[1]
    weights = group_weights("radiographs/primary", int(groups.max()) + 1, 1000)
    aurocs: dict[tuple[str, str], float] = {}
    replicates: dict[tuple[str, str], NDArray[np.float64]] = {}
    with one_thread():
        for name, encoder in encoders.items():
            vectors = clean_vectors(radiographs, encoder)
            z = standardisation(vectors[train], 1e-6)
            features, labels = z.apply(vectors[train]), radiographs.labels[train]
            fixed = fit_logistic(Design(features), labels, "single_label", 1.0)
            tuned = TunedLogistic().fit(
                features, labels, "single_label", groups=radiographs.groups[train], names=("radiographs", 0)
            )
            print(f"{name}: d = {vectors.shape[1]}, n = {len(train)}, {tuned.selection}")
            for probe, model in (
                ("fixed", LinearModel(fixed.weights, fixed.intercept, Selection(1.0))),
                ("tuned", tuned),
            ):
                logits = model.logits(z.apply(vectors[test])).astype(np.float32)
                metrics = record_metrics(logits, truth, "single_label", groups=groups, n_bins=15)
                assert metrics.macro_auroc is not None
                aurocs[name, probe] = metrics.macro_auroc
                replicates[name, probe] = auroc_replicates(logits, truth, "single_label", groups, weights).values

    def gain(first: tuple[str, str], second: tuple[str, str]) -> Interval:
        interval = percentile_interval(replicates[first] - replicates[second])
        print(f"{first} - {second}: {aurocs[first] - aurocs[second]:+.4f}, {interval}")
        return interval

    by_tuning = gain(("lite0", "tuned"), ("lite0", "fixed"))
    assert by_tuning.low is not None and by_tuning.low > 0.01
    over_class_token = {probe: gain(("lite0", probe), ("class_token", probe)) for probe in ("fixed", "tuned")}
    over_mean_patches = {probe: gain(("lite0", probe), ("mean_patches", probe)) for probe in ("fixed", "tuned")}
    assert over_class_token["fixed"].low is not None and over_class_token["fixed"].low < 0
    assert over_class_token["tuned"].low is not None and over_class_token["tuned"].low > 0
    # against the mean of the patches the sign turns, though the interval may hold 0
    assert aurocs["lite0", "fixed"] < aurocs["mean_patches", "fixed"]
    assert aurocs["lite0", "tuned"] > aurocs["mean_patches", "tuned"]
    assert over_mean_patches["tuned"].high is not None and over_mean_patches["tuned"].high > 0
