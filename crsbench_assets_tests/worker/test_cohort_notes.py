from __future__ import annotations

import numpy as np

from crsbench_assets.data.cohort import Cohort
from crsbench_assets.worker.cohort_stages import notes_of


def cohort(groups: dict[str, str], *notes: str) -> Cohort:
    ids = sorted(groups)
    labels = np.zeros((len(ids), 2), np.int8)
    return Cohort(ids, [groups[i] for i in ids], [None] * len(ids), labels, notes=list(notes))


def test_a_group_in_the_dataset_and_in_its_target_is_said_without_its_name() -> None:
    own = cohort({"a": "patient 1", "b": "patient 1", "c": "patient 2"}, "labels of chexpert")
    target = cohort({"x": "patient 1", "y": "patient 3", "z": "patient 1"})
    first, (source_id, shared) = notes_of({"primary": own, "ward": target})
    assert first == ("primary", "labels of chexpert")
    assert source_id == "ward" and shared.startswith("2 image(s), such as x, have a group that the dataset has too")
    assert "patient 1" not in shared


def test_images_that_are_groups_of_themselves_share_none() -> None:
    assert notes_of({"primary": cohort({"a": "a", "b": "b"}), "ward": cohort({"a": "a"})}) == []
