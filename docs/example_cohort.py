"""Files to try the README with: 240 drawn images of two classes, their labels, and vectors of one encoder.

Run: ``.venv/bin/python docs/example_cohort.py my_home``
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image

home = Path(sys.argv[1])
(home / "images").mkdir(parents=True, exist_ok=True)
draw = np.random.default_rng(0)
ids = [f"image{i:03d}" for i in range(240)]
spots = np.arange(240) % 2
patients = [f"patient{i // 3:02d}" for i in range(240)]
splits = ["test" if i // 3 % 4 == 0 else "train" for i in range(240)]

for image_id, has_spot in zip(ids, spots, strict=True):
    pixels = draw.normal(110, 30, (64, 64))
    y, x = draw.integers(8, 40, 2)
    pixels[y : y + 16, x : x + 16] += 60 * has_spot
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(home / "images" / f"{image_id}.png")

files = [f"images/{image_id}.png" for image_id in ids]
classes = np.where(spots == 1, "spot", "plain")
labels = {"image_id": ids, "file": files, "patient": patients, "split": splits, "finding": classes}
pl.DataFrame(labels).write_csv(home / "labels.csv")

kinds = ("gaussian_noise", "blur", "brightness", "contrast", "jpeg")
conditions = {"clean": 0} | {f"{kind}-s{severity}": severity for kind in kinds for severity in (1, 3, 5)}
vectors = draw.normal(size=(240, 16)) + spots[:, None]
rows = [
    {"image_id": ids[i], "condition_id": name, "vector": (vectors[i] + draw.normal(0, 0.2 * severity, 16)).tolist()}
    for name, severity in conditions.items()
    for i in range(240)
    if name == "clean" or splits[i] == "test"
]
pl.DataFrame(rows).write_parquet(home / "encoders" / "my_encoder.parquet")
