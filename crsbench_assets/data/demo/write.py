"""Writing a demo cohort to disk.

What lives here: the ids of the demo cohorts, and writing one of them as a folder in its official layout, complete or
not at all. What stays out: what is drawn (``lesions``, ``fundus``, ``chest``), the cards (``config/catalog``), and
reading the folder, which the readers of real data do (``data.sources``).
Source: ours, the paper has no drawn images.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from crsbench_assets.config.errors import ConfigError

if TYPE_CHECKING:
    from crsbench_assets.data.demo.drawing import CohortFiles

DEMO_COHORTS: tuple[str, ...] = ("demo-isic", "demo-aptos", "demo-cxr", "demo-cxr-b")
"""Three cohorts and, last, the shift target of the third."""

DEFAULT_DIFFICULTY = 0.25
"""Real ImageNet features are well above chance and below perfect."""

MIN_IMAGES = 96
"""Twelve images for each of eight diagnoses."""

N_IMAGES = {"demo-isic": 360, "demo-aptos": 240, "demo-cxr": 240, "demo-cxr-b": 240}
"""Images of a cohort unless told otherwise: with fewer, more than 5 % of the draws of test groups lack some class.

Ranks would have no interval then. The shift target has half as many.
"""


def cohort_files(cohort: str, *, difficulty: float = DEFAULT_DIFFICULTY, n_images: int | None = None) -> CohortFiles:
    """Return the files of a demo cohort; the images are drawn when they are called for.

    Args:
        cohort: one of DEMO_COHORTS.
        difficulty: in [0, 1]; 0 draws clear class differences, 1 nearly none and more that distracts from them.
        n_images: images that a reader keeps, at least MIN_IMAGES, by default N_IMAGES; the shift target has half as
            many.

    Raises:
        ConfigError: another cohort, a difficulty outside [0, 1] or NaN, too few images.
    """
    if cohort not in DEMO_COHORTS:
        raise ConfigError(f"{cohort!r} is no demo cohort: choose one of {', '.join(DEMO_COHORTS)}.")
    if not 0.0 <= difficulty <= 1.0:
        raise ConfigError(f"The difficulty of a demo cohort is {difficulty}: give a number from 0 (easy) to 1 (hard).")
    n_images = N_IMAGES[cohort] if n_images is None else n_images
    if n_images < MIN_IMAGES:
        raise ConfigError(
            f"A demo cohort of {n_images} images is too small for its classes: give at least {MIN_IMAGES}."
        )
    from crsbench_assets.data.demo import chest, fundus, lesions

    files = {
        "demo-isic": lesions.isic_files,
        "demo-aptos": fundus.aptos_files,
        "demo-cxr": chest.chexpert_files,
        "demo-cxr-b": chest.mimic_files,
    }[cohort]
    return files(cohort, n_images, difficulty)


def write_cohort(
    cohort: str, root: Path, *, difficulty: float = DEFAULT_DIFFICULTY, n_images: int | None = None
) -> bool:
    """Write a demo cohort as the folder ``root``, complete or not at all; its bytes depend on the arguments alone.

    Args:
        cohort: one of DEMO_COHORTS.
        root: folder to make, with the folders above it; one that exists is left as it is.
        difficulty: in [0, 1]; 0 draws clear class differences, 1 nearly none and more that distracts from them.
        n_images: images that a reader keeps, at least MIN_IMAGES, by default N_IMAGES; the shift target has half as
            many.

    Returns:
        Whether the folder was written; False where it was there.

    Raises:
        ConfigError: another cohort, a difficulty outside [0, 1] or NaN, too few images.
    """
    files = cohort_files(cohort, difficulty=difficulty, n_images=n_images)
    if root.exists():
        return False
    root.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{root.name}-", dir=root.parent))
    try:
        for path, draw in files.images.items():
            target = draft / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(draw())
        for path, table in files.tables.items():
            (draft / path).write_bytes(table)
        draft.chmod(0o755)  # mkdtemp makes it private
        try:
            draft.rename(root)
        except OSError:
            if root.exists():  # somebody else was faster, with the same bytes
                return False
            raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return True
