"""Intervals of an encoder that knows nothing: over shuffled labels they cover 0.5 as often as they say.

The control is a randomly initialised network on drawn lesions; labels are shuffled by group, so images of one lesion
keep one label, and every shuffle is probed and measured as a cell is.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from crsbench_assets.config.cards import PRIMARY, DatasetCard
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.config.registry import CATALOG, read_card
from crsbench_assets.data.cohort import images_frame, read_cohorts
from crsbench_assets.data.demo.write import write_cohort
from crsbench_assets.data.integrity import check_images
from crsbench_assets.encoders.images import ImageVectors
from crsbench_assets.encoders.source import Machine
from crsbench_assets.metrics.replicates import auroc_replicates, group_weights, percentile_interval
from crsbench_assets.probes.fit import standardisation
from crsbench_assets.probes.logistic import Design, fit_logistic
from crsbench_assets_tests.encoders.fixtures import card

pytestmark = pytest.mark.slow

N_SHUFFLES, N_IMAGES, TEST_SHARE = 200, 960, 0.5


@pytest.fixture(scope="module")
def features(tmp_path_factory: pytest.TempPathFactory) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Vectors (n, d) of the random control and group numbers (n,)."""
    root = tmp_path_factory.mktemp("cohort") / "demo-isic"
    write_cohort("demo-isic", root, n_images=N_IMAGES)
    dataset = read_card(DatasetCard, Path(CATALOG / "panels" / "demo" / "datasets" / "demo-isic.yaml"))
    dataset = dataset.model_copy(update={"source": dataset.source.model_copy(update={"root": str(root)})})
    cohort = read_cohorts(dataset, "u_zeros")[PRIMARY]
    checks = check_images(cohort, n_threads=2, progress=lambda *_: None)
    rows = images_frame(dataset.id, PRIMARY, cohort, checks, "salt").sort("image_id")
    source = ImageVectors(card("random_vit"), dataset, Machine(device="cpu", n_threads=2))
    source.begin({"clean": rows}, (), lambda line: None)
    ids = rows.get_column("image_id").to_list()
    vectors = source.vectors("clean", ids, np.zeros((len(ids), 1), dtype=np.int8))
    assert vectors is not None
    return vectors, rows.get_column("group_index").to_numpy()


def test_the_interval_of_the_random_control_covers_chance(
    features: tuple[NDArray[np.float32], NDArray[np.int64]],
) -> None:
    vectors, groups = features
    n_groups = int(groups.max()) + 1
    covered, points = 0, []
    for shuffle in range(N_SHUFFLES):
        generator = keyed_generator("shuffled labels", shuffle)
        is_test = generator.permutation(n_groups)[groups] < TEST_SHARE * n_groups
        target = (generator.permutation(n_groups)[groups] < n_groups // 2).astype(np.int64)
        z = standardisation(vectors[~is_test], 1e-6)
        labels = np.eye(2, dtype=np.int8)[target]
        fit = fit_logistic(Design(z.apply(vectors[~is_test])), labels[~is_test], "single_label", 1.0)
        logits = z.apply(vectors[is_test]) @ fit.weights.T + fit.intercept
        _, test_groups = np.unique(groups[is_test], return_inverse=True)
        weights = group_weights(f"shuffle {shuffle}", int(test_groups.max()) + 1, 1000)
        found = auroc_replicates(logits, labels[is_test], "single_label", test_groups, weights)
        interval = percentile_interval(found.values)
        assert interval.low is not None and interval.high is not None and found.point is not None
        covered += interval.low <= 0.5 <= interval.high
        points.append(found.point)
    print(f"covered {covered} of {N_SHUFFLES}; AUROC {np.mean(points):.3f} on average, sd {np.std(points):.3f}")
    assert 0.90 <= covered / N_SHUFFLES <= 0.99
    assert abs(np.mean(points) - 0.5) < 0.02
