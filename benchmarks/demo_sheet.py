"""The picture sheet of the demo cohorts: ``python -m benchmarks.demo_sheet``.

What lives here: drawing docs/images/demo-cohorts.png, a few images of every class or label with captions, and the
shift beside its source. What stays out: the drawing of an image (``crsbench_assets.data.demo``).
Source: ours, the paper has no drawn images.
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
from collections.abc import Callable
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from crsbench_assets.data.demo.write import cohort_files

SHEET = Path(__file__).parent.parent / "docs" / "images" / "demo-cohorts.png"

_CELL_WIDTH = 92
_LABEL_WIDTH = 118
_TITLE_HEIGHT = 24
_GAP = 3
_N_COLOURS, _N_GREYS = 192, 64

Row = tuple[str, list[bytes]]
"""Caption and files of the images beside it."""


def _rows_of_a_table(table: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table.decode())))


def _draw(images: list[Callable[[], bytes]]) -> list[bytes]:
    return [draw() for draw in images]


def lesion_rows(n_columns: int) -> list[Row]:
    """Return one row per diagnosis."""
    files = cohort_files("demo-isic")
    truth = _rows_of_a_table(files.tables["ISIC_2019_Training_GroundTruth.csv"])
    rows = []
    for name in list(truth[0])[1:-1]:
        ids = [row["image"] for row in truth if row[name] == "1.0"][:n_columns]
        rows.append((name, _draw([files.images[f"ISIC_2019_Training_Input/{image}.jpg"] for image in ids])))
    return rows


def fundus_rows(n_columns: int) -> list[Row]:
    """Return one row per grade."""
    files = cohort_files("demo-aptos")
    graded = _rows_of_a_table(files.tables["train.csv"])
    rows = []
    for grade in "01234":
        ids = [row["id_code"] for row in graded if row["diagnosis"] == grade][:n_columns]
        rows.append((f"grade {grade}", _draw([files.images[f"train_images/{image}.png"] for image in ids])))
    return rows


def chest_rows(n_columns: int) -> list[Row]:
    """Return one row per label: images of the first site that show little else, and one of the second site."""
    first, second = cohort_files("demo-cxr"), cohort_files("demo-cxr-b")
    table = [
        row
        for row in _rows_of_a_table(first.tables["CheXpert-v1.0-small/train.csv"])
        if row["Frontal/Lateral"] == "Frontal"
    ]
    labels = list(table[0])[5:]
    shift = _rows_of_a_table(gzip.decompress(second.tables["mimic-cxr-2.0.0-chexpert.csv.gz"]))
    metadata = _rows_of_a_table(gzip.decompress(second.tables["mimic-cxr-2.0.0-metadata.csv.gz"]))
    path_of_a_study = {
        row["study_id"]: f"files/p{row['subject_id'][:2]}/p{row['subject_id']}/s{row['study_id']}/{row['dicom_id']}.jpg"
        for row in metadata
        if row["ViewPosition"] != "LATERAL"
    }

    def purest(rows: list[dict[str, str]], label: str) -> list[dict[str, str]]:
        return sorted(
            (row for row in rows if row[label] == "1.0"),
            key=lambda row: sum(row[other] in ("1.0", "-1.0") for other in labels),
        )

    rows = []
    for label in labels:
        images = [first.images[row["Path"]] for row in purest(table, label)[:n_columns]]
        images += [second.images[path_of_a_study[row["study_id"]]] for row in purest(shift, label)[:1]]
        rows.append((label.replace("Enlarged Cardiomediastinum", "Enlarged Cardiom."), _draw(images)))
    return rows


def panel(title: str, rows: list[Row]) -> Image.Image:
    """Return one grid with its title; every image keeps its proportions."""
    font, title_font = ImageFont.load_default(12), ImageFont.load_default(15)
    opened = [(caption, [Image.open(io.BytesIO(file)).convert("RGB") for file in files]) for caption, files in rows]
    width, height = opened[0][1][0].size
    cell_height = round(_CELL_WIDTH * height / width)
    n_columns = max(len(images) for _, images in opened)
    sheet = Image.new(
        "RGB",
        (_LABEL_WIDTH + n_columns * (_CELL_WIDTH + _GAP), _TITLE_HEIGHT + len(rows) * (cell_height + _GAP)),
        "white",
    )
    pen = ImageDraw.Draw(sheet)
    pen.text((4, 3), title, "black", title_font)
    for line, (caption, images) in enumerate(opened):
        top = _TITLE_HEIGHT + line * (cell_height + _GAP)
        pen.text((4, top + cell_height // 2 - 7), caption, "black", font)
        for column, image in enumerate(images):
            small = image.resize((_CELL_WIDTH, cell_height), Image.Resampling.LANCZOS)
            sheet.paste(small, (_LABEL_WIDTH + column * (_CELL_WIDTH + _GAP), top))
    return sheet


def write_sheet(path: Path) -> None:
    """Write the sheet as a PNG of few colours, which keeps it small."""
    lesions = panel("demo-isic (drawn, not real)", lesion_rows(4))
    eyes = panel("demo-aptos (drawn, not real)", fundus_rows(4))
    chests = chest_rows(2)
    half = (len(chests) + 1) // 2
    left = panel("demo-cxr | demo-cxr-b (drawn, not real)", chests[:half])
    right = panel("demo-cxr | demo-cxr-b (drawn, not real)", chests[half:])
    top = max(lesions.height, eyes.height)
    sheet = Image.new(
        "RGB",
        (max(lesions.width + eyes.width, left.width + right.width), top + max(left.height, right.height)),
        "white",
    )
    sheet.paste(lesions, (0, 0))
    sheet.paste(eyes, (lesions.width, 0))
    sheet.paste(left, (0, top))
    sheet.paste(right, (lesions.width, top))
    path.parent.mkdir(parents=True, exist_ok=True)
    colours = sheet.crop((0, 0, sheet.width, top)).quantize(_N_COLOURS, method=Image.Quantize.MEDIANCUT).getpalette()
    greys = [round(255 * level / (_N_GREYS - 1)) for level in range(_N_GREYS) for _ in range(3)]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*(colours or [])[: 3 * _N_COLOURS], *greys])  # true greys: radiographs have no tint
    sheet.quantize(palette=palette, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else SHEET
    write_sheet(target)
    sys.stdout.write(f"{target}: {target.stat().st_size / 1000:.0f} kB\n")
