"""Twelve faults planted in demo cohorts: each ends where the docs say, and one run of the check names them all.

| fault | where it ends |
|---|---|
| truncated JPEG, no bytes | quarantine, ``unreadable`` |
| a file that is absent | quarantine, ``missing_file`` |
| a path that leaves the root | quarantine, ``outside_root`` |
| a blank label | quarantine, ``blank_class`` |
| an unknown class | the dataset is refused, after everything else was listed |
| wrong extension, CMYK, 16 bit, EXIF orientation | read, by what the bytes hold |
| the same image under another label, a patient in both files of CheXpert | read; one group, so on one side |
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from PIL import Image

from crsbench_assets.data.demo.write import write_cohort
from crsbench_assets.planning.stages import stage_named
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import open_project
from crsbench_assets.worker.run import run_stage
from crsbench_assets_tests.cli.conftest import Command, Done
from crsbench_assets_tests.data.layouts import CXR_LABELS
from crsbench_assets_tests.fixtures import write_card

Check = Callable[[HomeLayout], Done]

LEFT_OUT = {
    "blank": "blank_class",
    "cut": "unreadable",
    "empty": "unreadable",
    "gone": "missing_file",
    "outside": "outside_root",
}


@pytest.fixture
def check(crsbench: Command) -> Check:
    """Run ``crsbench datasets check planted``."""
    return lambda home: crsbench("datasets", "check", "planted", home=home)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def plant(layout: HomeLayout) -> Path:
    """Write the demo fundus photographs with the faults of one file or row; return the manifest."""
    root = layout.root / "files" / "planted"
    write_cohort("demo-aptos", root, n_images=96)
    rows = pl.read_csv(root / "train.csv", infer_schema=False).rename({"id_code": "image_id", "diagnosis": "grade"})
    rows = rows.with_columns(file=pl.format("train_images/{}.png", "image_id"))
    with Image.open(root / str(rows.row(0, named=True)["file"])) as image:
        whole = image.convert("RGB")
    turned = Image.Exif()
    turned[274] = 6
    grey = np.asarray(whole.convert("L")).astype(np.uint16) * 257
    files = {
        "cut.jpg": saved(whole, "JPEG", quality=90)[:-300],
        "empty.png": b"",
        "extension.jpg": saved(whole.rotate(90, expand=True), "PNG"),
        "cmyk.jpg": saved(whole.transpose(Image.Transpose.FLIP_LEFT_RIGHT).convert("CMYK"), "JPEG"),
        "deep.png": saved(Image.fromarray(grey), "PNG"),
        "exif.jpg": saved(whole.transpose(Image.Transpose.FLIP_TOP_BOTTOM), "JPEG", quality=95, exif=turned),
        "twin.png": saved(whole, "PNG", compress_level=1),
    }
    for name, data in files.items():
        (root / name).write_bytes(data)
    (layout.root / "files" / "outside.png").write_bytes(files["twin.png"])
    twin_grade = "1" if rows.row(0, named=True)["grade"] == "0" else "0"
    planted = [(Path(name).stem, "0", name) for name in files if name != "twin.png"]
    planted += [("gone", "0", "nowhere.png"), ("outside", "0", "../outside.png"), ("blank", "", "twin.png")]
    planted += [("twin", twin_grade, "twin.png"), ("strange", "7", "deep.png")]
    frame = pl.DataFrame(planted, schema=["image_id", "grade", "file"], orient="row")
    manifest = root / "labels.csv"
    pl.concat([rows.select("image_id", "grade", "file"), frame]).write_csv(manifest)
    columns = {"class_column": "grade", "path": "file"}
    card = {"id": "planted", "name": "Planted", "modality": "fundus", "task": "ordinal", "classes": list("01234")}
    source = {"layout": "manifest", "manifest": "../files/planted/labels.csv", "columns": columns}
    write_card(layout.root, "datasets", card | {"source": source, "expected_n_images": 96})
    return manifest


def test_every_planted_fault_is_named_in_one_run(tiny_home: HomeLayout, check: Check) -> None:
    manifest = plant(tiny_home)
    code, out, error = check(tiny_home)
    assert code == 1
    found = dict(line.removeprefix("left out: ").split(": ", 1) for line in out.splitlines() if "left out: " in line)
    assert {image_id: words.split(" (")[0] for image_id, words in found.items()} == LEFT_OUT
    assert "column grade holds '7'; expected the classes 0, 1, 2, 3, 4" in error
    assert "count: 107 images found, 96 expected by the card" in out, "counted although the tables have a fault"

    # with the unknown class mended, the rest is a cohort without these five
    manifest.write_text(manifest.read_text(encoding="utf-8").replace("strange,7", "strange,1"), encoding="utf-8")
    code, out, error = check(tiny_home)
    assert (code, error) == (0, "")
    assert out.endswith(f"{len(LEFT_OUT)} image(s) left out, 0 leak(s).\n")
    assert "count: 107 images found, 96 expected by the card" in out

    project = open_project(tiny_home.root)
    for stage in ("index", "split"):
        run_stage(project, stage_named(stage), ("planted",))
    images = {row["image_id"]: row for row in project.lake.read("images", ("planted",)).to_dicts()}
    assert not LEFT_OUT.keys() & images.keys()
    size = {name: (images[name]["width_px"], images[name]["height_px"]) for name in ("twin", "extension", "exif")}
    width, height = size["twin"]
    assert size["extension"] == size["exif"] == (height, width), "read by its bytes, and turned as it says"
    assert {"cmyk", "deep", "exif", "extension"} <= images.keys()
    first = next(name for name, row in images.items() if row["duplicate_index"] == images["twin"]["duplicate_index"])
    assert first != "twin" and images[first]["labels"] != images["twin"]["labels"]
    assert images[first]["group_index"] == images["twin"]["group_index"]
    sides = project.lake.read("splits", ("planted",)).filter(pl.col("image_id").is_in([first, "twin"]))
    assert sides.group_by("seed").agg(pl.col("split").n_unique()).get_column("split").to_list() == [1, 1]


def test_a_patient_in_both_files_of_chexpert_is_one_group(tiny_home: HomeLayout, check: Check) -> None:
    root = tiny_home.root / "files" / "planted"
    write_cohort("demo-cxr", root, n_images=96)
    (folder,) = (path.parent for path in root.rglob("valid.csv"))
    train, valid = (pl.read_csv(folder / f"{name}.csv", infer_schema=False) for name in ("train", "valid"))
    own = train.filter(pl.col("Frontal/Lateral") == "Frontal").head(1)
    path = str(own.get_column("Path")[0])
    prefix, inner = path.split("/train/")
    patient = inner.split("/")[0]
    moved = f"{prefix}/valid/{patient}/study9/view1_frontal.jpg"
    (folder / f"valid/{patient}/study9").mkdir(parents=True)
    (folder / f"valid/{patient}/study9/view1_frontal.jpg").write_bytes((folder / "train" / inner).read_bytes())
    pl.concat([valid, own.with_columns(Path=pl.lit(moved))]).write_csv(folder / "valid.csv")
    card = {"id": "planted", "name": "Planted", "modality": "xray", "task": "multi_label", "classes": list(CXR_LABELS)}
    write_card(tiny_home.root, "datasets", card | {"source": {"layout": "chexpert", "root": str(root)}})
    code, out, error = check(tiny_home)
    assert (code, error) == (0, ""), out
    assert out.endswith("0 image(s) left out, 0 leak(s).\n")
    project = open_project(tiny_home.root)
    run_stage(project, stage_named("index"), ("planted",))
    images = project.lake.read("images", ("planted",)).filter(pl.col("path").str.contains(f"/{patient}/"))
    assert set(images.get_column("path").str.split("/").list.first()) == {"train", "valid"}
    assert images.get_column("group_index").n_unique() == 1


def test_a_cohort_without_anything_to_train_on_is_told(tiny_home: HomeLayout, check: Check) -> None:
    (tiny_home.root / "files" / "few.csv").write_text("image_id,label\na,0\nb,1\n", encoding="utf-8")
    source = {"layout": "manifest", "manifest": "../files/few.csv", "columns": {"class_column": "label"}}
    card = {"id": "planted", "name": "Few", "modality": "other", "task": "single_label", "classes": ["0", "1"]}
    write_card(tiny_home.root, "datasets", card | {"source": source})
    code, out, error = check(tiny_home)
    assert (code, error) == (1, "")
    assert out.endswith(
        "No image is left to train on: the test split holds all of them, so every record would be NULL.\n"
    )


def test_two_hospitals_of_one_manifest(tiny_home: HomeLayout, check: Check) -> None:
    """The target has no image of class 0, which is no fault of a target, and no row has its second site."""
    hospitals = [("North", i, i % 2) for i in range(40)] + [("South", i, 1) for i in range(40, 44)]
    lines = [f"image{i},{grade},p{i},{hospital}" for hospital, i, grade in hospitals]
    manifest = tiny_home.root / "files" / "hospitals.csv"
    manifest.write_text("\n".join(["image_id,label,patient,hospital", *lines]), encoding="utf-8")
    columns = {"class_column": "label", "group": "patient", "site": "hospital"}
    source = {"layout": "manifest", "manifest": "../files/hospitals.csv", "columns": columns}
    card = {"id": "planted", "name": "Two", "modality": "other", "task": "single_label", "classes": ["0", "1"]}
    card |= {"source": source | {"sites": ["North"]}}
    shift: dict[str, Any] = {"id": "south", "name": "South"}
    write_card(tiny_home.root, "datasets", card | {"shift": shift | {"source": source | {"sites": ["South"]}}})
    code, out, error = check(tiny_home)
    assert (code, error) == (0, ""), out
    assert [line for line in out.splitlines() if line.startswith("note: ")] == [
        "note: primary: 4 row(s) of other sites than North are not read",
        "note: south: 40 row(s) of other sites than South are not read",
    ]

    write_card(tiny_home.root, "datasets", card | {"shift": shift | {"source": source | {"sites": ["South", "West"]}}})
    code, _, error = check(tiny_home)
    assert code == 1
    assert "shift target 'south'): no row is of the site 'West'; column hospital holds 'North', 'South'" in error


def test_what_is_said_of_a_shift_target(tiny_home: HomeLayout, check: Check) -> None:
    """A target without its agreement is told and not read; with it, pictures of the dataset are told with both ids."""
    root = tiny_home.root / "files" / "planted"
    write_cohort("demo-aptos", root, n_images=96)
    table = pl.read_csv(root / "train.csv", infer_schema=False)
    names = table.group_by("diagnosis", maintain_order=True).first().get_column("id_code").to_list()
    elsewhere = tiny_home.root / "files" / "elsewhere"
    (elsewhere / "train_images").mkdir(parents=True)
    for i, name in enumerate(names):
        pixels = np.asarray(Image.open(root / "train_images" / f"{name}.png"))
        # all but the first are turned and inverted: other pictures
        Image.fromarray(pixels if i == 0 else 255 - pixels[::-1]).save(elsewhere / "train_images" / f"other{i}.png")
    rows = [(f"other{i}", grade) for i, grade in enumerate(table["diagnosis"].unique(maintain_order=True))]
    pl.DataFrame([*rows, ("more", rows[0][1])], schema=["id_code", "diagnosis"], orient="row").write_csv(
        elsewhere / "train.csv"
    )
    (elsewhere / "train_images" / "more.png").write_bytes((elsewhere / "train_images" / "other1.png").read_bytes())
    card = {"id": "planted", "name": "Planted", "modality": "fundus", "task": "ordinal", "classes": list("01234")}
    shift: dict[str, Any] = {"id": "ward", "name": "Ward", "source": {"layout": "aptos2019", "root": str(elsewhere)}}
    card |= {"source": {"layout": "aptos2019", "root": str(root)}, "shift": shift | {"agreement": "their-terms"}}
    write_card(tiny_home.root, "datasets", card)
    code, out, _ = check(tiny_home)
    assert code == 0
    assert "not read: shift target ward: it may be read once crsbench.yaml records the agreement their-terms: " in out

    write_card(tiny_home.root, "datasets", card | {"shift": shift})
    code, out, _ = check(tiny_home)
    assert code == 0, out
    assert [line for line in out.splitlines() if line.startswith("left out: ")] == [
        f"left out: other0 of ward: in_own_dataset (it is the picture of {names[0]} of the dataset itself)"
    ]
