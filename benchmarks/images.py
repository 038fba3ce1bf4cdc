"""Decode and hashes of every file of a cohort, against a bare loop that only decodes.

What lives here: the measurement behind ``crsbench bench images``. What stays out: the checks themselves
(``crsbench_assets.data.integrity``, ``crsbench_assets.data.duplicates``).

5,000 files of the three demo cohorts, about 100 x 128 pixels: small ones, where what is done beside the decode weighs
most; 720 drawn images under other names, since drawing takes longer than reading. Our side reads each file once,
decodes it to its last row, hashes bytes and pixels, makes the thumbnail, and looks for duplicates among all of them at
the end. The bare side opens each file with Pillow and converts it to RGB. Both use as many threads. Sides take turns in
one run, and each pair of turns gives a ratio of CPU time, since wall time is at the mercy of who else works; the median
of the ratios counts, so that what slows both sides of a pair takes nothing from either.

Run from a clone: ``crsbench bench images``, or ``python -m benchmarks.images``.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console

from crsbench_assets.data.cohort import Cohort
from crsbench_assets.data.demo.write import DEMO_COHORTS, cohort_files
from crsbench_assets.data.duplicates import pictures
from crsbench_assets.data.integrity import check_images

N_IMAGES, REPEATS = 5_000, 9
N_DRAWN = 240
"""Images drawn per cohort."""
BAR = 0.8
"""Least ratio of the bare loop's CPU time to ours."""

console = Console(highlight=False, soft_wrap=True)


def run() -> int:
    """Print both figures, the ratio and its bar; return 1 where the bar is missed, else 0."""
    n_threads = os.cpu_count() or 1
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        names = write_images(root)
        cohort = Cohort(names, names, [None] * len(names), np.ones((len(names), 1), np.int8), paths=names, root=folder)
        sides: dict[str, Callable[[], object]] = {
            "bare": lambda: bare(root, names, n_threads),
            "ours": lambda: pictures(check_images(cohort, n_threads=n_threads, progress=lambda n_done, n: None)),
        }
        seconds = turns(sides)
    for name, taken in seconds.items():
        of_cpu, of_wall = (statistics.median(values) for values in zip(*taken, strict=True))
        console.print(
            f"{name}: {of_cpu:.2f} s of CPU, {of_wall:.2f} s of wall for {len(names):,} images, {n_threads} threads"
        )
    pairs = list(zip(seconds["bare"], seconds["ours"], strict=True))
    ratio, of_wall = (statistics.median(bare[i] / ours[i] for bare, ours in pairs) for i in range(2))
    console.print(f"by the clock: {of_wall:.0%}; load {os.getloadavg()[0]:.1f} on {n_threads} processors")
    is_met = ratio >= BAR
    verdict = "met" if is_met else "MISSED"
    console.print(f"images: decode and hashes run at {ratio:.0%} of a bare decode, bar {BAR:.0%}: {verdict}")
    return 0 if is_met else 1


def write_images(root: Path) -> list[str]:
    """Write the images below a folder and return their names."""
    drawn: list[tuple[str, bytes]] = []
    for cohort in DEMO_COHORTS[:3]:
        images = cohort_files(cohort, n_images=N_DRAWN).images
        drawn += [(Path(path).suffix, draw()) for path, draw in list(images.items())[:N_DRAWN]]
    names = []
    for i in range(N_IMAGES):
        suffix, data = drawn[i % len(drawn)]
        names.append(f"{i:04d}{suffix}")
        (root / names[-1]).write_bytes(data)
    return names


def bare(root: Path, names: list[str], n_threads: int) -> list[tuple[int, ...]]:
    """Decode every file as a plain loader would; return the shapes."""

    def shape(name: str) -> tuple[int, ...]:
        with Image.open(root / name) as image:
            return np.asarray(image.convert("RGB")).shape

    with ThreadPoolExecutor(n_threads) as pool:
        return list(pool.map(shape, names))


def turns(sides: dict[str, Callable[[], object]]) -> dict[str, list[tuple[float, float]]]:
    """Return the (CPU, wall) seconds of every turn of each side, taken one after the other."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in sides}
    for _ in range(REPEATS):
        for name, side in sides.items():
            cpu, wall = time.process_time(), time.perf_counter()
            side()
            taken[name].append((time.process_time() - cpu, time.perf_counter() - wall))
    return taken


if __name__ == "__main__":
    sys.exit(run())
