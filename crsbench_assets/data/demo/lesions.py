"""Drawn dermoscopy in the layout of ISIC 2019.

What lives here: what each diagnosis looks like, the drawing of one view of a lesion, and the two tables. What stays
out: the reader of the layout (``data.sources.isic2019``).
Layout: ISIC Challenge 2019, training set. The features follow the dermoscopic criteria of the International
Dermoscopy Society's consensus (Kittler et al., Journal of the American Academy of Dermatology 74, 2016): asymmetry,
border, colours, network, vessels, nests, cysts, lacunae. They are drawn, not measured.
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
    jpeg_bytes,
    keyed_order,
    paint,
    scattered,
    smooth_noise,
    spots,
    strokes,
    wandering_line,
)

WIDTH, HEIGHT = 128, 96

CLASSES = ("MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC")
# uneven as in the real set, the rare ones raised
_SHARES = (0.15, 0.29, 0.12, 0.09, 0.11, 0.08, 0.08, 0.08)
_SITES = ("anterior torso", "posterior torso", "upper extremity", "lower extremity", "head/neck", "palms/soles", "")
_WITHOUT_LESION_ID = ("MEL", "NV", "BKL")
_VIEWS_OF_A_LESION = (1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 3, 4)


class Features(NamedTuple):
    """How strongly a lesion shows each sign, 0 to 1."""

    irregularity: float
    asymmetry: float
    vagueness: float
    pigment: float
    redness: float
    variegation: float
    network: float
    vessels: float
    nests: float
    cysts: float
    openings: float
    lacunae: float
    scar: float
    keratin: float
    scale: float


_TYPICAL = {
    "MEL": Features(0.9, 0.8, 0.3, 0.8, 0.2, 0.9, 0.4, 0.1, 0.2, 0.0, 0.1, 0.0, 0.2, 0.0, 0.0),
    "NV": Features(0.1, 0.1, 0.4, 0.6, 0.1, 0.2, 0.8, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    "BCC": Features(0.4, 0.4, 0.5, 0.2, 0.4, 0.2, 0.0, 0.9, 0.8, 0.0, 0.0, 0.0, 0.0, 0.1, 0.1),
    "AK": Features(0.4, 0.4, 0.9, 0.1, 0.7, 0.2, 0.0, 0.2, 0.0, 0.1, 0.0, 0.0, 0.0, 0.1, 0.9),
    "BKL": Features(0.3, 0.3, 0.0, 0.5, 0.1, 0.4, 0.1, 0.0, 0.0, 0.9, 0.8, 0.0, 0.0, 0.0, 0.2),
    "DF": Features(0.2, 0.1, 0.8, 0.4, 0.3, 0.1, 0.5, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0),
    "VASC": Features(0.2, 0.2, 0.2, 0.3, 0.8, 0.3, 0.0, 0.0, 0.0, 0.0, 0.0, 0.9, 0.0, 0.0, 0.0),
    "SCC": Features(0.5, 0.5, 0.5, 0.2, 0.7, 0.3, 0.0, 0.6, 0.0, 0.0, 0.0, 0.0, 0.1, 0.9, 0.4),
}
_MEAN = np.mean([_TYPICAL[name] for name in CLASSES], axis=0)


def isic_files(cohort: str, n_images: int, difficulty: float) -> CohortFiles:
    """Return the cohort: eight diagnoses, one to four views of a lesion, some images without a lesion id.

    Args:
        cohort: id that keys every draw.
        n_images: number of images, at least 96.
        difficulty: 0 (clear signs) to 1 (nearly none).
    """
    slots = [name for name, count in zip(CLASSES, class_counts(n_images, _SHARES), strict=True) for _ in range(count)]
    generator = keyed_generator("demo", cohort, "lesions")
    lesions: list[tuple[str, str]] = []  # (lesion, diagnosis) of every image
    while len(lesions) < n_images:
        diagnosis = slots[len(lesions)]
        n_views = min(int(generator.choice(_VIEWS_OF_A_LESION)), slots[len(lesions) :].count(diagnosis))
        lesions += [(f"BCN_{1001 + len(lesions):07d}", diagnosis)] * n_views
    names = [f"ISIC_{9000000 + index:07d}" for index in range(n_images)]
    # the file names of the real set say nothing about the class; nor do these
    by_name = dict(zip(keyed_order(names, "demo", cohort, "names"), lesions, strict=True))
    truth, metadata, images = [], [], {}
    for name in names:
        lesion, diagnosis = by_name[name]
        truth.append([name, *("1.0" if diagnosis == known else "0.0" for known in CLASSES), "0.0"])
        metadata.append([name, *_patient(cohort, lesion, diagnosis)])
        images[f"ISIC_2019_Training_Input/{name}.jpg"] = partial(
            lesion_jpeg, cohort, lesion, diagnosis, name, difficulty
        )
    return CohortFiles(
        tables={
            "ISIC_2019_Training_GroundTruth.csv": csv_bytes(["image", *CLASSES, "UNK"], truth),
            "ISIC_2019_Training_Metadata.csv": csv_bytes(
                ["image", "age_approx", "anatom_site_general", "lesion_id", "sex"], metadata
            ),
        },
        images=images,
    )


def _patient(cohort: str, lesion: str, diagnosis: str) -> list[str]:
    """Return age, site, lesion id and sex; every image of a lesion has the same."""
    generator = keyed_generator("demo", cohort, lesion, "patient")
    age = "" if generator.random() < 0.02 else str(5 * int(generator.integers(4, 18)))
    site = str(generator.choice(_SITES))
    sex = str(generator.choice(["male", "female", ""], p=[0.5, 0.48, 0.02]))
    hidden = diagnosis in _WITHOUT_LESION_ID and generator.random() < 0.12
    return [age, site, "" if hidden else lesion, sex]


def lesion_jpeg(cohort: str, lesion: str, diagnosis: str, image: str, difficulty: float) -> bytes:
    """Return the file of one view of a lesion."""
    return jpeg_bytes(_view(cohort, lesion, diagnosis, image, difficulty))


def _features(generator: np.random.Generator, diagnosis: str, difficulty: float) -> Features:
    typical = _MEAN + (1.0 - difficulty) * (np.asarray(_TYPICAL[diagnosis]) - _MEAN)
    # spread that no difficulty removes: lesions of one diagnosis differ
    return Features(*np.clip(typical + generator.normal(0.0, 0.13, len(typical)), 0.0, 1.0))


def _view(cohort: str, lesion: str, diagnosis: str, image: str, difficulty: float) -> Plane:
    """Draw one view: the lesion's own shape and structures, then this photograph's crop, turn, light and hairs."""
    own = keyed_generator("demo", cohort, lesion)
    photo = keyed_generator("demo", cohort, lesion, image)
    features = _features(own, diagnosis, difficulty)
    x, y = coordinates(WIDTH, HEIGHT)
    turn, zoom = photo.uniform(0.0, 2 * np.pi), photo.uniform(0.85, 1.2)
    shift_x, shift_y = photo.normal(0.0, 0.08, 2)
    u: Plane = ((x - shift_x) * np.cos(turn) + (y - shift_y) * np.sin(turn)) / zoom
    v: Plane = (-(x - shift_x) * np.sin(turn) + (y - shift_y) * np.cos(turn)) / zoom
    u, v = u.astype(np.float32), v.astype(np.float32)
    skin = np.array([0.86, 0.68, 0.58]) * own.uniform(0.75, 1.08) + own.normal(0.0, 0.025, 3)
    texture = smooth_noise(photo, WIDTH, HEIGHT, 3.0) * 0.012 + smooth_noise(photo, WIDTH, HEIGHT, 30.0) * 0.02
    canvas = np.asarray(np.broadcast_to(skin, (HEIGHT, WIDTH, 3)) + texture[..., None], dtype=np.float32)
    canvas = _body(canvas, own, features, skin, u, v)
    return _photograph(canvas, photo, x, y, difficulty)


def _body(canvas: Plane, own: np.random.Generator, features: Features, skin: Plane, u: Plane, v: Plane) -> Plane:
    """Draw the lesion on its skin: outline, pigment, then each sign as strong as ``features`` say."""
    angle = np.arctan2(v, u)
    radius = own.uniform(0.42, 0.6)
    outline = np.full_like(u, 1.0)
    for wave in range(2, 10):
        size = 0.24 * features.irregularity * own.normal() / wave**0.6
        outline += size * np.cos(wave * angle + own.uniform(0, 2 * np.pi))
    outline += 0.35 * features.asymmetry * np.cos(angle - own.uniform(0, 2 * np.pi))
    stretch = own.uniform(0.85, 1.15)
    distance = np.sqrt((u * stretch) ** 2 + (v / stretch) ** 2) - radius * np.clip(outline, 0.35, 1.7)
    mask = inside(distance, 0.07 + 0.45 * features.vagueness)
    core = inside(distance + 0.12, 0.2)

    brown = np.array([0.46, 0.29, 0.19]) - 0.2 * (features.pigment - 0.5)
    pink = np.array([0.83, 0.47, 0.44])
    brown, pink = brown + own.normal(0.0, 0.04, 3), pink + own.normal(0.0, 0.04, 3)
    share = np.clip(features.pigment / (features.pigment + 0.8 * features.redness + 0.05), 0.0, 1.0)
    canvas = paint(canvas, mask, share * brown + (1 - share) * pink, 0.45 + 0.4 * features.pigment)

    # a texture lives in the lesion, not in the photograph: it is looked up at the lesion's own coordinates
    patches = [_carried(smooth_noise(own, 64, 64, cell), u, v) for cell in (14.0, 12.0, 12.0, 4.0, 2.6)]
    for patch, colour in zip(patches[:3], ((0.14, 0.09, 0.09), (0.40, 0.45, 0.54), (0.70, 0.30, 0.27)), strict=True):
        canvas = paint(canvas, core * inside(0.5 - patch, 0.6), colour, 0.85 * features.variegation)
    canvas = paint(canvas, mask, skin * 0.35, 0.15 * features.variegation)
    ridges = inside(np.abs(patches[3]) - 0.28, 0.35)
    canvas = paint(canvas, mask * ridges, brown * 0.45, 0.6 * features.network)
    canvas = paint(canvas, core * inside(0.7 - patches[4], 0.6), (0.95, 0.91, 0.86), 0.75 * features.scale)

    def sign(n_spots: int, low: float, high: float) -> Plane:
        return spots(u, v, scattered(own, n_spots, 0.88 * radius), own.uniform(low, high, n_spots), 0.5)

    canvas = paint(canvas, sign(7, 0.07, 0.13), (0.34, 0.36, 0.45), 0.9 * features.nests)
    canvas = paint(canvas, sign(9, 0.09, 0.16), (0.52, 0.07, 0.16), 0.95 * features.lacunae)
    canvas = paint(canvas, sign(12, 0.03, 0.05), (0.97, 0.94, 0.84), 0.95 * features.cysts)
    canvas = paint(canvas, sign(9, 0.04, 0.06), (0.20, 0.12, 0.08), 0.9 * features.openings)
    canvas = paint(
        canvas,
        blob(u, v, (own.normal(0.0, 0.03), own.normal(0.0, 0.03)), 0.16),
        (0.95, 0.88, 0.84),
        0.95 * features.scar,
    )
    horn = inside(np.hypot(u, v) - 0.22 - 0.05 * patches[3], 0.12)
    canvas = paint(canvas, horn, (0.90, 0.80, 0.52), 0.9 * features.keratin)
    if features.vessels > 0.1:
        # drawn in the lesion's frame and carried like the textures, so that they turn with the lesion
        roots = scattered(own, round(12 * features.vessels), radius)
        lines = [
            wandering_line(own, tuple(root), own.uniform(0, 2 * np.pi), own.uniform(0.4, 0.9), 0.4) for root in roots
        ]
        tree = strokes(160, 160, lines)
        canvas = paint(canvas, _carried(tree, u, v), (0.66, 0.09, 0.13), 0.4 + 0.55 * features.vessels)
    return canvas


def _carried(texture: Plane, u: Plane, v: Plane) -> Plane:
    """Return ``texture``, a square that spans [-1, 1] of the lesion's frame, at the pixels of the photograph."""
    size = texture.shape[0]
    columns = np.asarray((u + 1.0) * (size - 1) / 2, dtype=np.float32)
    rows = np.asarray((v + 1.0) * (size - 1) / 2, dtype=np.float32)
    carried = cv2.remap(texture, columns, rows, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101)
    return np.asarray(carried, dtype=np.float32)


def _photograph(canvas: Plane, photo: np.random.Generator, x: Plane, y: Plane, difficulty: float) -> Plane:
    """Add what belongs to the photograph and not to the lesion: hairs, bubbles, dark corners, light, white balance."""
    hairs = []
    for _ in range(photo.poisson(1.0 + 6.0 * difficulty)):
        start = (photo.uniform(-1.3, 1.3), photo.uniform(-1, 1))
        hairs.append(wandering_line(photo, start, photo.uniform(0, 2 * np.pi), photo.uniform(0.8, 2.0), 0.12))
    canvas = paint(canvas, strokes(WIDTH, HEIGHT, hairs), (0.16, 0.11, 0.09), 0.7)
    for _ in range(photo.poisson(3.0 * difficulty)):
        ring = np.abs(np.hypot(x - photo.uniform(-1.2, 1.2), y - photo.uniform(-1, 1)) - photo.uniform(0.03, 0.12))
        canvas = paint(canvas, inside(ring - 0.012, 0.03), (0.95, 0.93, 0.92), 0.5)
    distance = np.hypot(x, y)
    light = photo.uniform(0.75, 1.15) * (1.0 - photo.uniform(0.05, 0.25) * (distance / 1.4) ** 2)
    canvas = canvas * light[..., None] * photo.normal(1.0, 0.05, 3)
    if photo.random() < 0.25:  # the tube of the dermatoscope
        canvas = canvas * inside(distance - photo.uniform(1.12, 1.3), 0.06)[..., None]
    return np.asarray(canvas + grain(photo, canvas.shape, 0.008), dtype=np.float32)
