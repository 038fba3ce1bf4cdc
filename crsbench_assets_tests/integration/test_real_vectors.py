"""Real input: vectors of chest radiographs by three pretrained encoders, as a user's own cohort.

The data (5,030 radiographs of PneumoniaMNIST, 16 conditions, 256 dimensions) are not part of the repository: the test
looks for them in the folder that CRSBENCH_REAL_VECTORS names, else in ``shared/data/pneumoniamnist`` beside the clone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

DATA = Path(os.environ.get("CRSBENCH_REAL_VECTORS", Path(__file__).parents[3] / "shared" / "data" / "pneumoniamnist"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not (DATA / "labels.parquet").exists(), reason=f"the real vectors are not at {DATA}; set CRSBENCH_REAL_VECTORS"
    ),
]

COHORT = """
id: my-cohort
name: Radiographs of PneumoniaMNIST
modality: xray
task: single_label
classes: [normal, pneumonia]
source:
  layout: manifest
  manifest: {data}/labels.parquet
  columns: {{image_id: image_id, class_column: label, split: split}}
"""

ENCODER = """
id: {id}
name: {id}
kind: precomputed
category: generalist
family: efficientnet_lite
vectors: {{my-cohort: [{data}/{id}_pca256.parquet]}}
"""

ENCODERS = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2")


def crsbench(*arguments: str, timeout: float = 400) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "crsbench_assets.cli", *arguments], capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows(home: Path, query: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = json.loads(crsbench("sql", "--home", str(home), "--format", "json", query))
    return found


def test_vectors_of_real_radiographs_reach_the_leaderboard(tmp_path: Path) -> None:
    home = tmp_path / "home"
    crsbench("init", "--home", str(home))
    (home / "datasets" / "my-cohort.yaml").write_text(COHORT.format(data=DATA.resolve()))
    for encoder in ENCODERS:
        (home / "encoders" / f"{encoder}.yaml").write_text(ENCODER.format(id=encoder, data=DATA.resolve()))
    crsbench("datasets", "check", "my-cohort", "--home", str(home))
    crsbench("encoders", "check", "efficientnet_lite0", "--home", str(home))
    crsbench("materialize", "--home", str(home))
    crsbench("panel", "freeze", "mine", "--home", str(home))

    auroc = rows(
        home,
        "SELECT encoder_id, macro_auroc_mean AS auroc FROM seed_aggregates "
        "WHERE condition_id = 'clean' AND label_fraction = 1 ORDER BY encoder_id",
    )
    assert [row["encoder_id"] for row in auroc] == list(ENCODERS)
    assert all(float(str(row["auroc"])) >= 0.85 for row in auroc), auroc
    assert rows(home, "SELECT count(*) AS n FROM run_records WHERE macro_auroc IS NULL") == [{"n": 0}]
    assert rows(home, "SELECT count(*) AS n FROM run_records") == [{"n": 3 * 5 * 5 * 16}]
    board = rows(home, "SELECT rank, encoder_id, crs, status FROM leaderboard")
    assert sorted(str(row["encoder_id"]) for row in board) == list(ENCODERS)
    assert {row["status"] for row in board} == {"ok"}
    assert "Nothing to do" in crsbench("materialize", "--home", str(home))
