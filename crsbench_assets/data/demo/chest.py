"""Drawn chest radiographs of two sites, in the layouts of CheXpert and of MIMIC-CXR-JPG.

What lives here: a patient's anatomy, what each of the fourteen labels adds to it, how the two sites photograph, and
the tables of both layouts. What stays out: the readers (``data.sources.chexpert``, ``data.sources.mimic_cxr``) and
what an uncertain label becomes (``data.labels``).
Layouts: Irvin et al., CheXpert, AAAI 2019 (fourteen labels; 1, 0, -1 for uncertain, blank for not mentioned); Johnson
et al., MIMIC-CXR-JPG, arXiv:1901.07042 (the same labels, read by name). The findings are drawn, not measured.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from crsbench_assets.config.randomness import keyed_generator
from crsbench_assets.data.demo.drawing import (
    MIN_PER_CLASS,
    CohortFiles,
    Plane,
    blob,
    coordinates,
    csv_bytes,
    grain,
    inside,
    jpeg_bytes,
    keyed_order,
    smooth_noise,
    strokes,
    wandering_line,
)

WIDTH, HEIGHT = 128, 112

LABELS = (
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
_FINDINGS = LABELS[1:]
# those of CheXpert, the rare ones raised
_PREVALENCE = dict(
    zip(LABELS, (0.15, 0.10, 0.15, 0.30, 0.10, 0.20, 0.10, 0.10, 0.16, 0.10, 0.30, 0.10, 0.10, 0.40), strict=True)
)
_UNCERTAIN_SHARE = 0.04
_EXPLICIT_NEGATIVE_SHARE = 0.15
_LATERAL_EVERY = 10
_VALID_EVERY = 10
_FIRST_VALID_PATIENT = 64541
_STUDIES_OF_A_PATIENT = (1, 1, 1, 1, 2, 2, 3, 4)


@dataclass(frozen=True)
class Site:
    """How one institution photographs.

    Args:
        gamma: exponent of the grey curve.
        contrast: slope around the middle grey.
        vignette: share of light lost in the corners.
        noise: standard deviation of the grain.
        build: mean width of a patient, relative to the first site.
        zoom: mean magnification; above 1 the borders are cut.
    """

    gamma: float
    contrast: float
    vignette: float
    noise: float
    build: float
    zoom: float


FIRST_SITE = Site(gamma=1.0, contrast=1.0, vignette=0.0, noise=0.015, build=1.0, zoom=1.0)
SECOND_SITE = Site(gamma=0.75, contrast=0.8, vignette=0.3, noise=0.025, build=1.08, zoom=1.08)


@dataclass(frozen=True)
class Study:
    """One visit of one patient, with the state of every label: 1, 0, -1 or None for blank."""

    patient: str
    number: int
    states: dict[str, int | None] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Id within the cohort."""
        return f"{self.patient}/{self.number}"


def chexpert_files(cohort: str, n_images: int, difficulty: float) -> CohortFiles:
    """Return the first site: ``n_images`` frontal views, a lateral view in every tenth study, nine tenths in train.csv.

    Args:
        cohort: id that keys every draw.
        n_images: number of frontal images, at least 96.
        difficulty: 0 (clear findings) to 1 (nearly none).
    """
    n_valid = n_images // _VALID_EVERY
    visits = _visits(cohort, n_images - n_valid, 1) + [(_FIRST_VALID_PATIENT + index, 1) for index in range(n_valid)]
    studies = _with_labels(cohort, [(f"patient{number:05d}", visit) for number, visit in visits])
    root = "CheXpert-v1.0-small"
    rows: dict[str, list[list[str]]] = {"train": [], "valid": []}
    images = {}
    for index, ((number, visit), study) in enumerate(zip(visits, studies, strict=True)):
        split = "valid" if number >= _FIRST_VALID_PATIENT else "train"
        person = keyed_generator("demo", cohort, study.patient, "person")
        sex, age = str(person.choice(["Male", "Female"])), int(person.integers(18, 91))
        projection = "AP" if keyed_generator("demo", cohort, study.key, "projection").random() < 0.85 else "PA"
        cells = [_text(study.states[label], blank_is_zero=split == "valid") for label in LABELS]
        folder = f"{root}/{split}/{study.patient}/study{visit}"
        frontal = f"{folder}/view1_frontal.jpg"
        rows[split].append([frontal, sex, str(age), "Frontal", projection, *cells])
        images[frontal] = partial(frontal_jpeg, cohort, study, FIRST_SITE, difficulty)
        if index % _LATERAL_EVERY == 0:
            lateral = f"{folder}/view2_lateral.jpg"
            rows[split].append([lateral, sex, str(age), "Lateral", "", *cells])
            images[lateral] = partial(lateral_jpeg, cohort, study, FIRST_SITE)
    header = ["Path", "Sex", "Age", "Frontal/Lateral", "AP/PA", *LABELS]
    return CohortFiles(
        tables={f"{root}/{split}.csv": csv_bytes(header, sorted(rows[split])) for split in rows}, images=images
    )


_METADATA_COLUMNS = (
    "dicom_id",
    "subject_id",
    "study_id",
    "PerformedProcedureStepDescription",
    "ViewPosition",
    "Rows",
    "Columns",
    "StudyDate",
    "StudyTime",
    "ProcedureCodeSequence_CodeMeaning",
    "ViewCodeSequence_CodeMeaning",
    "PatientOrientationCodeSequence_CodeMeaning",
)
_VIEW_MEANING = {"AP": "antero-posterior", "PA": "postero-anterior", "LATERAL": "lateral"}


def mimic_files(cohort: str, n_images: int, difficulty: float) -> CohortFiles:
    """Return the second site: half as many frontal test images as the first has, and rows that a reader drops.

    Dropped are the splits train and validate (a tenth as many images), the lateral views, and the studies without a
    label row.

    Args:
        cohort: id that keys every draw.
        n_images: number of frontal images of the first site, at least 96.
        difficulty: 0 (clear findings) to 1 (nearly none).
    """
    n_test, n_other, n_unlabelled = n_images // 2, n_images // 20, 3
    visits = _visits(cohort, n_test, 1)
    first_other = visits[-1][0] + 1
    # the official split is one of patients: nobody of these has a study among the test images
    visits += [(first_other + index, 1) for index in range(n_other + n_unlabelled)]
    subjects = {number: str(10_000_000 + (number * 7919) % 9_999_991) for number, _ in visits}
    test = _with_labels(cohort, [(subjects[number], visit) for number, visit in visits[:n_test]])
    rest = _with_labels(cohort, [(subjects[number], visit) for number, visit in visits[n_test:]])
    alphabetical = sorted(LABELS)
    metadata, splits, labels, images = [], [], [], {}
    for index, study in enumerate(test + rest):
        is_unlabelled = index >= n_test + n_other
        split = "test" if index < n_test or is_unlabelled else ("train" if index % 3 else "validate")
        study_id = str(50_000_000 + int(keyed_generator("demo", cohort, study.key, "study").integers(9_999_999)))
        if not is_unlabelled:
            labels.append([study.patient, study_id, *(_text(study.states[label]) for label in alphabetical)])
        views = ["AP" if keyed_generator("demo", cohort, study.key, "projection").random() < 0.75 else "PA"]
        views += ["LATERAL"] if index % _LATERAL_EVERY == 0 else []
        for view in views:
            digits = keyed_generator("demo", cohort, study.key, view, "dicom").integers(16**8, size=5)
            dicom = "-".join(f"{part:08x}" for part in digits)
            path = f"files/p{study.patient[:2]}/p{study.patient}/s{study_id}/{dicom}.jpg"
            images[path] = (
                partial(lateral_jpeg, cohort, study, SECOND_SITE)
                if view == "LATERAL"
                else partial(frontal_jpeg, cohort, study, SECOND_SITE, difficulty)
            )
            splits.append([dicom, study_id, study.patient, split])
            date = f"21{10 + index % 80:02d}{1 + index % 12:02d}{1 + index % 28:02d}"
            procedure = "CHEST (PORTABLE AP)" if view == "AP" else "CHEST (PA AND LAT)"
            shown = [procedure, view, str(HEIGHT), str(WIDTH), date, "101530.000", procedure, _VIEW_MEANING[view]]
            metadata.append([dicom, study.patient, study_id, *shown, "Erect"])
    tables = {
        "metadata": csv_bytes(_METADATA_COLUMNS, sorted(metadata)),
        "split": csv_bytes(["dicom_id", "study_id", "subject_id", "split"], sorted(splits)),
        "chexpert": csv_bytes(["subject_id", "study_id", *alphabetical], sorted(labels)),
    }
    return CohortFiles(
        # a time stamp would make two writes differ
        tables={f"mimic-cxr-2.0.0-{name}.csv.gz": gzip.compress(table, mtime=0) for name, table in tables.items()},
        images=images,
    )


def _visits(cohort: str, n_studies: int, first_patient: int) -> list[tuple[int, int]]:
    """Return (patient, visit) of ``n_studies`` studies; a patient has one to four."""
    generator = keyed_generator("demo", cohort, "visits")
    visits: list[tuple[int, int]] = []
    patient = first_patient
    while len(visits) < n_studies:
        n_visits = min(int(generator.choice(_STUDIES_OF_A_PATIENT)), n_studies - len(visits))
        visits += [(patient, visit) for visit in range(1, n_visits + 1)]
        patient += 1
    return visits


def _with_labels(cohort: str, visits: Sequence[tuple[str, int]]) -> list[Study]:
    """Return the studies with their label states; each label has MIN_PER_CLASS positives where there are enough."""
    studies = {study.key: study for study in (Study(patient, number) for patient, number in visits)}
    keys = list(studies)
    normal = set(keyed_order(keys, "demo", cohort, "No Finding")[: _n_positive("No Finding", len(keys))])
    for label in LABELS:
        order = [key for key in keyed_order(keys, "demo", cohort, label) if key not in normal]
        n_positive = _n_positive(label, len(keys))
        n_uncertain = round(_UNCERTAIN_SHARE * len(keys))
        n_negative = round(_EXPLICIT_NEGATIVE_SHARE * len(keys))
        if label == "No Finding":  # the labeller never says no or perhaps to it
            order, n_uncertain, n_negative = sorted(normal), 0, 0
        cuts = (n_positive, n_positive + n_uncertain, n_positive + n_uncertain + n_negative)
        for key in keys:
            studies[key].states[label] = None
        for position, key in enumerate(order[: cuts[-1]]):
            studies[key].states[label] = 1 if position < cuts[0] else -1 if position < cuts[1] else 0
    return list(studies.values())


def _n_positive(label: str, n_studies: int) -> int:
    return max(min(MIN_PER_CLASS, n_studies // 2), round(_PREVALENCE[label] * n_studies))


def _text(state: int | None, *, blank_is_zero: bool = False) -> str:
    if blank_is_zero:  # valid.csv was read by radiologists: no blanks, nothing uncertain
        return "1.0" if state == 1 else "0.0"
    return "" if state is None else f"{state}.0"


def frontal_jpeg(cohort: str, study: Study, site: Site, difficulty: float) -> bytes:
    """Return the file of a study's frontal view."""
    return jpeg_bytes(_frontal(cohort, study, site, difficulty))


def lateral_jpeg(cohort: str, study: Study, site: Site) -> bytes:
    """Return the file of a study's lateral view; it shows no findings, readers drop it."""
    generator = keyed_generator("demo", cohort, study.key, "lateral")
    x, y = coordinates(WIDTH, HEIGHT)
    depth = site.build * generator.normal(1.0, 0.08)
    body = inside(np.hypot(x / (0.74 * depth), (y - 0.25) / 1.7) - 1.0, 0.15)
    lung = inside(np.hypot((x - 0.02) / (0.52 * depth), (y + 0.05) / 0.8) - 1.0, 0.2) * inside(y - 0.45 + 0.2 * x, 0.1)
    back = x - 0.5 * depth + 0.25 * y * y
    discs = 0.5 + 0.5 * np.cos(2 * np.pi * y / 0.2)
    heart = inside(np.hypot((x + 0.2 * depth) / 0.28, (y - 0.3) / 0.34) - 1.0, 0.3)
    ribs = np.abs((y - 0.5 * x) / 0.19 - np.round((y - 0.5 * x) / 0.19))
    film = 0.02 + (0.62 - 0.36 * lung) * body + 0.07 * lung * inside(ribs - 0.16, 0.2)
    film = _filled(film, 0.8 * heart * lung) + inside(np.abs(back) - 0.08, 0.06) * body * (0.08 + 0.08 * discs)
    return jpeg_bytes(_exposed(film, generator, site))


@dataclass(frozen=True)
class _Anatomy:
    """Measures of one patient in units of half the image height."""

    width: float
    apex: float
    base: float
    mediastinum: float
    heart: float
    rib_spacing: float
    rib_slope: float
    density: float


def _anatomy(cohort: str, patient: str, site: Site) -> _Anatomy:
    generator = keyed_generator("demo", cohort, patient, "anatomy")
    return _Anatomy(
        width=0.86 * site.build * generator.normal(1.0, 0.04),
        apex=-0.78 + generator.normal(0.0, 0.03),
        base=0.52 + generator.normal(0.0, 0.04),
        mediastinum=0.15 * generator.normal(1.0, 0.1),
        heart=0.32 * generator.normal(1.0, 0.06),
        rib_spacing=generator.uniform(0.17, 0.2),
        rib_slope=generator.uniform(0.25, 0.4),
        density=site.build * generator.normal(1.0, 0.05),
    )


def _amounts(generator: np.random.Generator, states: dict[str, int | None], difficulty: float) -> dict[str, float]:
    """Return how strongly each finding is drawn: 0 none, 1 typical."""
    amounts = {}
    for label in _FINDINGS:
        seen = {1: 1.0, -1: 0.5}.get(states[label] or 0, 0.0) * generator.uniform(0.7, 1.3)
        chance = 0.45 * generator.uniform() * (generator.random() < 0.35)
        amounts[label] = float((1.0 - difficulty) * seen + difficulty * chance)
    return amounts


def _frontal(cohort: str, study: Study, site: Site, difficulty: float) -> Plane:
    """Draw one frontal view: the patient's anatomy, this study's findings, then the site's exposure."""
    anatomy = _anatomy(cohort, study.patient, site)
    generator = keyed_generator("demo", cohort, study.key)
    amounts = _amounts(generator, study.states, difficulty)
    x, y = coordinates(WIDTH, HEIGHT)
    zoom, tilt = site.zoom * generator.normal(1.0, 0.025), generator.normal(0.0, 0.025)
    x, y = (x - generator.normal(0, 0.03) + tilt * y) / zoom, (y - generator.normal(0, 0.03) - tilt * x) / zoom
    away = np.abs(x)

    # the left of the patient is on the right of the film
    heart_size = anatomy.heart * (1.0 + 0.5 * amounts["Cardiomegaly"])
    below = (y - 0.24) * np.where(y > 0.24, 0.6, 1.0)  # its lower half sinks into the diaphragm
    lean = x - 0.12 - 0.22 * (y - 0.24)
    heart = inside(np.hypot(lean / (1.15 * heart_size), below / (0.2 + 0.35 * heart_size)) - 1.0, 0.22)
    wide = anatomy.mediastinum + 0.14 * amounts["Enlarged Cardiomediastinum"] * np.exp(-(((y + 0.25) / 0.3) ** 2))
    knob = 0.05 * np.exp(-(((y + 0.32) / 0.09) ** 2)) * (x > 0)
    mediastinum = inside(away - wide - knob, 0.08)
    wall = anatomy.width * np.sqrt(np.clip(1.0 - ((np.minimum(y, 0.3) - 0.3) / (0.3 - anatomy.apex + 0.06)) ** 2, 0, 1))
    volume_loss = 0.10 * amounts["Atelectasis"] * (x < 0)
    floor = anatomy.base - 0.05 * (x < 0) - volume_loss + 0.9 * np.clip(away - 0.38, 0.0, 1.0) ** 2
    lung = inside(away - wall * 0.88, 0.05) * inside(y - floor, 0.05) * (1.0 - inside(away - 0.1, 0.08))

    body = inside(away - (0.95 * anatomy.width + 0.12 + 0.25 * inside(0.35 + y, 0.5)), 0.12)
    neck = inside(away - 0.3, 0.12)
    body = body * np.maximum(inside(-(y + 0.86 - 0.14 * away**2), 0.2), neck)
    tissue = 0.60 + 0.06 * y + 0.03 * smooth_noise(generator, WIDTH, HEIGHT, 28.0)
    film: Plane = 0.02 + tissue * anatomy.density * body
    film = film - (0.44 + 0.04 * smooth_noise(generator, WIDTH, HEIGHT, 20.0)) * lung

    markings = _markings(generator, anatomy)
    film = film + 0.10 * lung * markings
    film = _bones(film, generator, anatomy, amounts["Fracture"], x, y, lung, body)
    film = _filled(film, np.maximum(heart, mediastinum) * body)
    film = _airspace(film, generator, amounts, x, y, lung, difficulty)
    film = _pleura(film, generator, amounts, x, y, lung, wall * 0.88, floor, markings)
    film = _devices(film, generator, amounts["Support Devices"])
    return _exposed(film, generator, site)


def _filled(film: Plane, mask: Plane) -> Plane:
    """Return the film with soft tissue or fluid instead of air where ``mask`` is 1."""
    return np.asarray(film + mask * np.clip(0.60 - film, 0.0, 1.0), dtype=np.float32)


def _markings(generator: np.random.Generator, anatomy: _Anatomy) -> Plane:
    """Return the vessels that leave the hila."""
    lines = []
    for side in (-1.0, 1.0):
        for _ in range(9):
            angle = generator.uniform(-1.1, 1.2)
            start = (side * (anatomy.mediastinum + 0.05), -0.05)
            direction = np.pi - angle if side < 0 else angle
            lines.append(wandering_line(generator, start, direction, generator.uniform(0.3, 0.65), 0.14))
    hila = strokes(WIDTH, HEIGHT, [line[:5] for line in lines], 2)
    return np.asarray(np.maximum(0.8 * strokes(WIDTH, HEIGHT, lines), hila), dtype=np.float32)


def _bones(
    film: Plane,
    generator: np.random.Generator,
    anatomy: _Anatomy,
    fracture: float,
    x: Plane,
    y: Plane,
    lung: Plane,
    body: Plane,
) -> Plane:
    """Draw spine, clavicles and ribs; a fracture shifts the outer end of some ribs of one side and leaves a gap."""
    away = np.abs(x)
    side = 1.0 if generator.random() < 0.5 else -1.0
    broken_at, level = generator.uniform(0.45, 0.62), generator.uniform(-0.35, 0.15)
    near = np.exp(-(((y - level) / 0.3) ** 4)) * (x * side > 0)
    outer = inside(broken_at - away, 0.02)
    course = (y + 0.10 * min(fracture, 1.4) * near * outer - anatomy.rib_slope * away**1.6) / anatomy.rib_spacing
    ribs = inside(np.abs(course - np.round(course)) - 0.17, 0.2) * body * inside(away - anatomy.width * 0.92, 0.06)
    gap = near * inside(np.abs(away - broken_at) - 0.03, 0.03)
    ribs = ribs * (1.0 - np.clip(1.2 * fracture * gap, 0.0, 1.0))
    front = (y + 0.9 * anatomy.rib_slope * away) / (anatomy.rib_spacing * 1.1)
    film = film + 0.11 * ribs * inside(y - 0.6, 0.1) * np.maximum(lung, 0.35)
    film = film + 0.035 * inside(np.abs(front - np.round(front)) - 0.16, 0.2) * lung
    discs = 0.5 + 0.5 * np.cos(2 * np.pi * y / 0.16)
    film = film + inside(away - 0.085, 0.04) * body * (0.04 + 0.04 * discs)
    clavicle = np.abs(y + 0.66 + 0.2 * (away - 0.1)) - 0.025
    return np.asarray(film + 0.13 * inside(clavicle, 0.03) * inside(away - 0.8, 0.05) * inside(0.08 - away, 0.05))


def _airspace(
    film: Plane,
    generator: np.random.Generator,
    amounts: dict[str, float],
    x: Plane,
    y: Plane,
    lung: Plane,
    difficulty: float,
) -> Plane:
    """Draw what fills the lung."""
    away = np.abs(x)
    cloudy = 1.0 + 0.45 * smooth_noise(generator, WIDTH, HEIGHT, 6.0)
    streaky = 1.0 + 0.5 * smooth_noise(generator, WIDTH, HEIGHT, 3.0)
    sides = generator.choice([-1.0, 1.0], size=4)

    def spot(side: float, low: float, high: float) -> tuple[float, float]:
        return float(side * generator.uniform(0.38, 0.58)), float(generator.uniform(low, high))

    wings = np.exp(-(((away - 0.34) / 0.2) ** 2) - ((y + 0.02) / 0.36) ** 2)
    film = film + 0.30 * amounts["Edema"] * lung * wings * streaky
    film = film + 0.24 * amounts["Lung Opacity"] * lung * blob(x, y, spot(sides[0], -0.2, 0.1), 0.26)
    centre = spot(sides[1], -0.35, 0.25)
    lobe = inside(np.hypot((x - centre[0]) / 1.2, y - centre[1]) - 0.1 - 0.1 * cloudy, 0.1)
    film = _filled(film, 0.75 * min(amounts["Consolidation"], 1.2) * lung * lobe)
    for _ in range(4):
        film = film + 0.26 * amounts["Pneumonia"] * lung * blob(x, y, spot(sides[2], -0.1, 0.4), 0.09) * cloudy
    nodule = spot(float(generator.choice([-1.0, 1.0])), -0.45, 0.25)
    size = generator.uniform(0.09, 0.14)
    film = film + 0.40 * amounts["Lung Lesion"] * lung * inside(np.hypot(x - nodule[0], y - nodule[1]) - size, 0.04)
    for offset in (0.0, 0.09):
        band = np.abs(y - 0.26 - offset + 0.15 * x * sides[3]) - 0.018
        film = film + 0.26 * amounts["Atelectasis"] * lung * inside(band, 0.03) * (x * sides[3] > 0.2)
    for _ in range(generator.poisson(3.0 * difficulty)):  # skin folds, nipples, breasts: nothing that was labelled
        place = spot(float(generator.choice([-1.0, 1.0])), -0.5, 0.5)
        film = film + 0.10 * generator.uniform(-0.5, 1.0) * lung * blob(x, y, place, generator.uniform(0.06, 0.25))
    return np.asarray(film, dtype=np.float32)


def _pleura(
    film: Plane,
    generator: np.random.Generator,
    amounts: dict[str, float],
    x: Plane,
    y: Plane,
    lung: Plane,
    wall: Plane,
    floor: Plane,
    markings: Plane,
) -> Plane:
    """Draw air, fluid and scars between lung and chest wall."""
    away = np.abs(x)
    sides = generator.choice([-1.0, 1.0], size=3)
    amount = amounts["Pneumothorax"]
    depth = wall - away + 0.25 * np.clip(-0.45 - y, 0.0, 1.0)
    rim = 0.08 + 0.12 * amount
    here = (x * sides[0] > 0) * lung * inside(y - 0.35, 0.4)
    air = here * inside(depth - rim, 0.03)
    film = film - min(amount, 1.4) * air * (0.10 + 0.10 * markings)
    film = film + 0.22 * min(amount, 1.2) * here * inside(np.abs(depth - rim) - 0.012, 0.025)
    amount = amounts["Pleural Effusion"]
    level = floor + 0.08 - amount * (0.16 + 0.5 * np.clip(away / np.maximum(wall, 0.3), 0.0, 1.0) ** 4)
    fluid = lung * inside(level - y, 0.07) * (x * sides[1] > 0)
    film = _filled(film, 0.95 * min(amount * 2.0, 1.0) * fluid)
    amount = amounts["Pleural Other"]
    thick = inside(np.abs(wall - away - 0.05) - 0.06 - 0.03 * np.cos(11.0 * y), 0.03) * lung
    return np.asarray(film + 0.40 * amount * thick * (x * sides[2] > 0) * inside(-y - 0.35, 0.2), dtype=np.float32)


def _devices(film: Plane, generator: np.random.Generator, amount: float) -> Plane:
    """Draw a pacemaker with its lead, or a tube and a catheter; the metal is brighter than any tissue."""
    if generator.random() < 0.5:
        side = float(generator.choice([-1.0, 1.0]))
        corner = np.array([side * generator.uniform(0.5, 0.62), generator.uniform(-0.6, -0.5)])
        turn = np.linspace(0.0, 2 * np.pi, 24)
        case = corner + np.stack([0.12 * np.cos(turn), 0.1 * np.sin(turn)], axis=1)
        path = np.array([corner, [side * 0.3, -0.62], [side * 0.08, -0.4], [0.06, 0.0], [0.2, 0.32]])
        metal = np.maximum(strokes(WIDTH, HEIGHT, [case], filled=True), 0.8 * strokes(WIDTH, HEIGHT, [path]))
    else:
        tube = np.array([[generator.normal(0, 0.02), -1.0], [generator.normal(0, 0.02), -0.28]])
        feeding = np.array([[0.03, -1.0], [0.02, 0.1], [0.1, 0.45], [0.25, 0.65]])
        catheter = np.array([[-0.5, -0.75], [-0.3, -0.62], [-0.12, -0.5], [-0.1, -0.05]])
        metal = np.maximum(strokes(WIDTH, HEIGHT, [tube], 2), strokes(WIDTH, HEIGHT, [feeding, catheter]))
    share = np.clip(amount, 0.0, 1.2) * metal
    return np.asarray(film + share * np.clip(0.95 - film, 0.0, 1.0) * 0.8, dtype=np.float32)


def _exposed(film: Plane, generator: np.random.Generator, site: Site) -> Plane:
    """Return the film as the site's machine shows it."""
    x, y = coordinates(WIDTH, HEIGHT)
    exposure = generator.normal(1.0, 0.09)
    curve = np.clip(film * exposure, 0.0, 1.0) ** (site.gamma * generator.normal(1.0, 0.12))
    curve = 0.5 + site.contrast * (curve - 0.5)
    curve = curve * (1.0 - site.vignette * (x * x + y * y) / 2.3)
    return np.asarray(curve + grain(generator, curve.shape, site.noise), dtype=np.float32)
