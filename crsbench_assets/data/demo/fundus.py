"""Drawn fundus photographs in the layout of APTOS 2019.

What lives here: what each grade of diabetic retinopathy adds to an eye, the drawing of one photograph, and the table,
with exact duplicates under another id as the real set has. What stays out: the reader of the layout
(``data.sources.aptos2019``).
Layout: Kaggle competition aptos2019-blindness-detection. The signs follow the international clinical severity scale
(Wilkinson et al., Ophthalmology 110, 2003): microaneurysms first, then haemorrhages and exudates, then new vessels.
They are drawn, not measured.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import cv2
import numpy as np

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.data.demo.drawing import (
    CohortFiles,
    Plane,
    blob,
    class_counts,
    coordinates,
    csv_bytes,
    grain,
    inside,
    keyed_order,
    paint,
    png_bytes,
    scattered,
    smooth_noise,
    spots,
    strokes,
    wandering_line,
)

WIDTH, HEIGHT = 128, 112

GRADES = ("0", "1", "2", "3", "4")
_SHARES = (0.49, 0.10, 0.27, 0.06, 0.08)
_N_DUPLICATES = 4


class Signs(NamedTuple):
    """Number of each sign in one photograph."""

    microaneurysms: int
    haemorrhages: int
    exudates: int
    cotton_wool: int
    new_vessels: int


# expected number of every sign, a row per grade
_EXPECTED = np.array(
    [
        [0.0, 0.0, 0.0, 0.0, 0.0],
        [18.0, 0.5, 0.0, 0.0, 0.0],
        [16.0, 7.0, 10.0, 1.0, 0.0],
        [26.0, 20.0, 14.0, 6.0, 0.0],
        [22.0, 14.0, 18.0, 3.0, 18.0],
    ]
)
_MEAN = np.average(_EXPECTED, axis=0, weights=_SHARES)


def aptos_files(cohort: str, n_images: int, difficulty: float) -> CohortFiles:
    """Return the cohort: five grades, one photograph per eye, four exact duplicates, one of them graded otherwise.

    Args:
        cohort: id that keys every draw.
        n_images: number of images, duplicates included, at least 96.
        difficulty: 0 (signs follow the grade) to 1 (nearly not).
    """
    counts = class_counts(n_images - _N_DUPLICATES, _SHARES)
    grades = [grade for grade, count in enumerate(counts) for _ in range(count)]
    names = [f"{keyed_generator('demo', cohort, 'id', i).integers(16**12):012x}" for i in range(n_images)]
    order = keyed_order(names, "demo", cohort, "names")
    graded = dict(zip(order, grades, strict=False))
    drawn_as = {name: name for name in graded}
    # every fiftieth or so of the distinct images is there twice
    for index, copy in enumerate(order[len(grades) :]):
        original = order[index * len(grades) // _N_DUPLICATES]
        drawn_as[copy] = original
        graded[copy] = graded[original] + 1 if index == 0 else graded[original]
    images = {
        f"train_images/{name}.png": partial(fundus_png, cohort, drawn_as[name], graded[drawn_as[name]], difficulty)
        for name in sorted(graded)
    }
    table = csv_bytes(["id_code", "diagnosis"], [[name, graded[name]] for name in sorted(graded)])
    return CohortFiles(tables={"train.csv": table}, images=images)


def fundus_png(cohort: str, image: str, grade: int, difficulty: float) -> bytes:
    """Return the file of one photograph."""
    return png_bytes(_photograph(cohort, image, grade, difficulty))


def _photograph(cohort: str, image: str, grade: int, difficulty: float) -> Plane:
    generator = keyed_generator("demo", cohort, image)
    x, y = coordinates(WIDTH, HEIGHT)
    x = x - generator.normal(0.0, 0.02)
    side = 1.0 if generator.random() < 0.5 else -1.0  # right or left eye
    distance = np.hypot(x, y)
    red = np.array([0.74, 0.34, 0.15]) * generator.uniform(0.7, 1.15) + generator.normal(0.0, 0.03, 3)
    shade = 1.05 - 0.35 * distance**2 + 0.05 * smooth_noise(generator, WIDTH, HEIGHT, 40.0)
    choroid = generator.uniform(0.01, 0.05) * smooth_noise(generator, WIDTH, HEIGHT, 5.0)
    canvas: Plane = np.asarray(red * (shade + choroid)[..., None], dtype=np.float32)
    disc = (side * generator.uniform(0.45, 0.55), float(generator.normal(0.0, 0.05)))
    macula = (disc[0] - side * 0.75, disc[1] + 0.06)
    canvas = paint(canvas, blob(x, y, macula, 0.14), red * 0.45, 0.75)
    # how much of the choroid shines through differs between healthy eyes
    streaks = [
        wandering_line(generator, tuple(generator.uniform(-0.9, 0.9, 2)), generator.uniform(0, 2 * np.pi), 0.9, 0.2)
        for _ in range(generator.integers(0, 40))
    ]
    canvas = paint(canvas, strokes(WIDTH, HEIGHT, streaks, 2), red * generator.choice([0.6, 1.35]), 0.4)
    canvas = _vessels(canvas, generator, disc, macula, side)
    canvas = _disc(canvas, generator, x, y, disc)
    canvas = _signs(canvas, generator, x, y, disc, grade, difficulty)
    # cameras differ in exposure, white balance, focus, grain and field: simple statistics say little of the grade
    canvas = np.clip(canvas, 0.0, 1.0) ** generator.uniform(0.6, 1.6) * generator.normal(1.0, 0.06, 3)
    canvas = np.asarray(cv2.GaussianBlur(canvas, (5, 5), generator.uniform(0.3, 1.1)))
    canvas = canvas + grain(generator, canvas.shape, generator.uniform(0.004, 0.02))
    field = inside(distance - generator.uniform(0.82, 1.04), 0.03)
    return np.asarray(np.clip(canvas, 0.0, 1.0) * field[..., None], dtype=np.float32)


def _disc(canvas: Plane, generator: np.random.Generator, x: Plane, y: Plane, disc: tuple[float, float]) -> Plane:
    radius = generator.uniform(0.13, 0.17)
    rim = np.hypot((x - disc[0]) * 1.1, y - disc[1])
    canvas = paint(canvas, inside(rim - radius, 0.07), (0.96, 0.76, 0.42), 0.8)
    return paint(canvas, inside(rim - radius * generator.uniform(0.35, 0.6), 0.06), (1.0, 0.92, 0.70), 0.75)


def _vessels(
    canvas: Plane,
    generator: np.random.Generator,
    disc: tuple[float, float],
    macula: tuple[float, float],
    side: float,
) -> Plane:
    """Draw the arcades: four trunks leave the disc, pass the macula above and below, and branch."""
    trunks, branches = [], []
    steps = np.linspace(0.0, 1.0, 24)
    for up in (-1.0, 1.0):
        for towards, reach in ((-side, 1.35), (side, 0.5)):
            height = generator.uniform(0.5, 0.68)
            along = disc[0] + towards * reach * steps
            rise = disc[1] + up * height * np.sqrt(np.sin(np.pi * (0.08 + 0.62 * steps)) - np.sin(np.pi * 0.08) * 0.9)
            rise = rise + np.cumsum(generator.normal(0.0, 0.008, len(steps)))
            trunk = np.stack([along, rise], axis=1)
            trunks.append(trunk)
            for start in generator.integers(4, len(steps) - 2, generator.integers(3, 9)):
                outwards = up * np.pi / 2 + generator.normal(0.0, 0.7)
                inwards = generator.random() < 0.4
                angle = -outwards if inwards else outwards
                length = generator.uniform(0.2, 0.35 if inwards else 0.6)
                branches.append(wandering_line(generator, tuple(trunk[start]), angle, length, 0.16))
    for _ in range(5):
        branches.append(wandering_line(generator, disc, generator.uniform(0, 2 * np.pi), 0.4, 0.15))
    dark = np.array([0.42, 0.10, 0.07]) * generator.uniform(0.7, 1.3)
    canvas = paint(canvas, strokes(WIDTH, HEIGHT, branches), dark, 0.5)
    return paint(canvas, strokes(WIDTH, HEIGHT, trunks, 2), dark, 0.75)


def _signs(
    canvas: Plane,
    generator: np.random.Generator,
    x: Plane,
    y: Plane,
    disc: tuple[float, float],
    grade: int,
    difficulty: float,
) -> Plane:
    """Draw the signs of the grade, and what looks like them and means nothing."""
    expected = _MEAN + (1.0 - difficulty) * (_EXPECTED[grade] - _MEAN)
    # two eyes of one grade differ by a factor, whatever the difficulty
    signs = Signs(*generator.poisson(expected * np.exp(generator.normal(0.0, 0.25))).tolist())

    def sign(n_spots: int, low: float, high: float, softness: float = 0.8) -> Plane:
        return spots(x, y, scattered(generator, n_spots, 0.85), generator.uniform(low, high, n_spots), softness)

    drusen = sign(generator.poisson(2 + 10 * difficulty), 0.01, 0.03, 1.2)
    canvas = paint(canvas, drusen, (0.80, 0.62, 0.35), 0.4)
    canvas = paint(canvas, sign(signs.cotton_wool, 0.04, 0.07), (0.95, 0.84, 0.62), 0.5)
    canvas = paint(canvas, sign(signs.haemorrhages, 0.03, 0.065), (0.30, 0.03, 0.03), 0.85)
    canvas = paint(canvas, sign(signs.microaneurysms, 0.015, 0.026, 1.2), (0.38, 0.03, 0.04), 0.9)
    clusters = np.repeat(scattered(generator, (signs.exudates + 3) // 4, 0.85), 4, axis=0)
    centres = clusters + generator.normal(0.0, 0.07, clusters.shape)
    exudates = spots(x, y, centres, generator.uniform(0.012, 0.035, len(centres)), 1.2)
    canvas = paint(canvas, exudates, (1.0, 0.90, 0.45), 0.95)
    loops = [
        wandering_line(generator, disc, generator.uniform(0, 2 * np.pi), generator.uniform(0.4, 0.8), 0.7)
        for _ in range(signs.new_vessels)
    ]
    return paint(canvas, strokes(WIDTH, HEIGHT, loops), (0.55, 0.05, 0.05), 0.8)
