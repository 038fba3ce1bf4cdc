"""A shift target that has no image of some class: what is defined is computed, the rest says why not."""

from __future__ import annotations

import polars as pl

from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import open_project
from crsbench_assets_tests.fixtures import DATASET, ENCODERS, compute, dataset_card, vectors, write_card

ALPHA = ("alpha", DATASET)
CONDITION = "shift_elsewhere"


def test_a_target_without_a_class_has_the_auroc_of_the_others(tiny_home: HomeLayout) -> None:
    files = tiny_home.root / "files"
    third = pl.int_range(pl.len()) // 2 % 3 == 2  # whole pairs, which are groups
    labels = pl.read_csv(files / "labels.csv", infer_schema=False).with_columns(
        label=pl.when(third).then(pl.lit("other")).otherwise("label")
    )
    labels.write_csv(files / "labels.csv")
    target = labels.head(60).filter(pl.col("label") != "other")
    target.write_csv(files / "elsewhere.csv")
    for encoder_id in ENCODERS:
        rows = vectors(encoder_id)
        moved = rows.filter(pl.col("condition_id") == "clean").join(target, on="image_id", how="semi")
        pl.concat([rows, moved.with_columns(condition_id=pl.lit(CONDITION))]).write_parquet(
            files / f"{encoder_id}.parquet"
        )
    columns = {"image_id": "image_id", "class_column": "label", "group": "pair"}
    source = {"layout": "manifest", "manifest": "../files/elsewhere.csv", "columns": columns}
    card = dataset_card(shift={"id": "elsewhere", "name": "Elsewhere", "source": source})
    write_card(tiny_home.root, "datasets", card | {"classes": ["negative", "positive", "other"]})
    project = open_project(tiny_home.root)
    compute(project, ("index", "split", "extract", "probe", "calibrate", "measure", "aggregate", "derive_axes"))

    shifted = project.lake.read("run_records", ALPHA).filter(pl.col("condition_id") == CONDITION)
    assert set(shifted["n_defined_auroc"]) == {2} and shifted["macro_auroc"].null_count() == 0
    by_class = project.lake.read("label_metrics", ALPHA).filter(pl.col("condition_id") == CONDITION)
    lacking = by_class.filter(pl.col("auroc").is_null()).select("class_name", "reason").unique().rows()
    assert lacking == [("other", "no_positive")]
    axes = project.lake.read("cell_axes", ALPHA).filter(pl.col("axis") == "robustness", pl.col("variant") == "primary")
    assert axes["value"].null_count() == 0
