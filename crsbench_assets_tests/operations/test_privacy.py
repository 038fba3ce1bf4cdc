"""Numbers of patients: where they stand in a home, and that nothing which leaves it has one."""

from __future__ import annotations

import re

import polars as pl
import pytest

from crsbench_assets.data.demo.write import write_cohort
from crsbench_assets.operations.bundles import export_bundle
from crsbench_assets.planning.plan import plan
from crsbench_assets.report.html import write_report
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import open_project
from crsbench_assets.storage.warehouse import publish
from crsbench_assets_tests.data.layouts import CXR_LABELS
from crsbench_assets_tests.encoders.fixtures import card as demo_card
from crsbench_assets_tests.fixtures import compute, write_card
from crsbench_assets_tests.operations.test_bundles import words_of

COHORT = ("chest",)


def words(text: str) -> set[str]:
    return set(re.split(r"[^\w-]+", text))


@pytest.mark.slow
def test_what_leaves_a_home_names_no_patient(tiny_home: HomeLayout) -> None:
    """CheXpert with MIMIC-CXR as its shift target, from drawn files to bundle and report; one file is missing."""
    for name in ("demo-cxr", "demo-cxr-b"):
        write_cohort(name, tiny_home.root / "files" / name, n_images=96)
    (lost,) = list((tiny_home.root / "files" / "demo-cxr").rglob("*frontal.jpg"))[:1]
    lost.unlink()
    card = {"id": "chest", "name": "Chest", "modality": "xray", "task": "multi_label", "classes": list(CXR_LABELS)}
    source = {"layout": "chexpert", "root": "../files/demo-cxr"}
    shift = {"id": "ward", "name": "Ward", "source": {"layout": "mimic_cxr", "root": "../files/demo-cxr-b"}}
    write_card(tiny_home.root, "datasets", card | {"source": source, "shift": shift})
    encoder = demo_card("handcrafted").model_dump(mode="json")
    encoder |= {"id": "gamma", "role": "candidate", "category": "generalist"}
    encoder["preprocessing"] |= {"input_px": 64, "resize_px": 64}
    write_card(tiny_home.root, "encoders", encoder)
    project = open_project(tiny_home.root)
    compute(project)
    publish(project, plan(project).cells)

    images = project.lake.read("images", COHORT)
    patients = {part for path in images["path"] for part in re.findall(r"patient\d+|[ps]\d{8}", path)}
    patients |= set(re.findall(r"patient\d+", str(lost))) | {name[1:] for name in patients if name[1:].isdigit()}
    assert len(patients) > 50 and {name[0] for name in patients} >= {"p", "s", "1"}
    named = {
        (part.relative_to(project.layout.lake).parts[1], name)
        for part in project.layout.lake.rglob("part-*.parquet")
        for name, values in pl.read_parquet(part).select(pl.selectors.string()).to_dict().items()
        if patients & words("\n".join(values.unique().drop_nulls()))
    }
    assert named == {("images", "path"), ("quarantine", "detail")}, "of tables that stay home"

    bundle = export_bundle(project.layout, tiny_home.root / "results.zip").path
    page = write_report(project.layout).read_text(encoding="utf-8")
    for text in ("\n".join(words_of(bundle)), page):
        assert not words(text) & (patients | set(images["image_id"]) | set(images["group_id"]))
        assert {"gamma", "chest", "ward"} <= words(text)
