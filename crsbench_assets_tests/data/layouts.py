"""Tiny cohorts in official layouts: real headers, a few rows, images of 40 x 32 pixels.

What lives here: writing images and tables, and comparing cohorts. What stays out: the rows, which each test prints.
"""

from __future__ import annotations

import csv
import gzip
import io
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from crsbench_assets.config.cards import DatasetCard
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.config.settings import LabelPolicy
from crsbench_assets.data.cohort import Cohort, read_cohorts

CXR_LABELS = (
    "No Finding",
    "Enlarged Cardiomediastinum",
    "Cardiomegaly",
    "Lung Opacity",
    "Lung Lesion",
    "Edema",
    "Consolidation",
    "Pneumonia",
    "Atelectasis",
    "Pneumothorax",
    "Pleural Effusion",
    "Pleural Other",
    "Fracture",
    "Support Devices",
)
"""Labels in CheXpert's order; MIMIC-CXR-JPG has the same in alphabetical order."""


def write_image(path: Path, *, width_px: int = 40, height_px: int = 32, mode: str = "RGB") -> None:
    """Write an image of noise that depends on the name of its file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    n_channels = len(Image.new(mode, (1, 1)).getbands())
    shape = (height_px, width_px, n_channels)[: 2 if n_channels == 1 else 3]
    pixels = keyed_generator("test_image", path.stem).integers(0, 256, size=shape, dtype="uint8")
    Image.fromarray(pixels).save(path)


def write_table(path: Path, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Write a CSV, gzipped where its name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([header, *rows])
    data = text.getvalue().encode()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def rewrite_table(path: Path, *, rows: Sequence[int] | None = None, columns: Sequence[int] | None = None) -> None:
    """Put the rows and columns of a CSV into another order."""
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    header, *body = csv.reader(io.StringIO(text))
    body = body if rows is None else [body[i] for i in rows]
    order = range(len(header)) if columns is None else columns
    write_table(path, [header[i] for i in order], [[row[i] for i in order] for row in body])


def card_of(layout: str, root: Path | None, classes: Sequence[str], task: str, **changes: Any) -> DatasetCard:
    """Return a card of an official layout."""
    source = {"layout": layout, "root": None if root is None else str(root)}
    card = {"id": "tiny", "name": "Tiny", "modality": "other", "task": task, "classes": list(classes)}
    return DatasetCard.model_validate(card | {"source": source} | changes)


def content(cohort: Cohort) -> dict[str, Any]:
    """Return all that a cohort says, in a form that ``==`` compares."""
    stated = None if cohort.stated is None else np.nan_to_num(cohort.stated, nan=-2.0).tolist()  # NaN equals nothing
    return asdict(cohort) | {"labels": cohort.labels.tolist(), "stated": stated}


def refusal(card: DatasetCard, policy: LabelPolicy = "u_zeros") -> str:
    """Return the sentence with which a dataset is refused."""
    try:
        read_cohorts(card, policy)
    except ConfigError as error:
        return str(error)
    raise AssertionError("the dataset was read")
