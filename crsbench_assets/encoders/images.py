"""Vectors of images: decoded once, corrupted, prepared and passed through a network.

What lives here: the stream from files to vectors. What stays out: pixels (``images``), networks (``networks``) and
whether the vectors cover the support (``embeddings.extract``). Source: protocol page, section 3.

An image is decoded once for all of its conditions. Threads prepare images ahead while the network runs; their number
changes nothing, because the order of the stream, and so the company of an image in its batch, is that of the ids.
"""

from __future__ import annotations

import hashlib
import io
import time
import zipfile
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crsbench_assets.config.cards import PRIMARY, DatasetCard, EncoderCard
from crsbench_assets.config.errors import ConfigError, StorageError
from crsbench_assets.config.ids import CLEAN
from crsbench_assets.config.layouts import image_root
from crsbench_assets.config.pace import Pace
from crsbench_assets.data.integrity import HASH_LENGTH
from crsbench_assets.encoders.networks import ImageEncoder, load_encoder
from crsbench_assets.images.canonical import canonical
from crsbench_assets.images.corruptions import corrupt_condition
from crsbench_assets.images.decode import ImageFault, decode
from crsbench_assets.images.preprocess import prepare
from crsbench_assets.storage.files import replace_bytes

if TYPE_CHECKING:
    import polars as pl

    from crsbench_assets.encoders.source import Machine, Progress

IMAGES_PER_PART = 256
"""Images of one part on disk: what a killed extraction loses at most."""

_JOB_COLUMNS = ("source_id", "image_id", "path", "file_sha256")


@dataclass(frozen=True)
class _Job:
    """One image and the conditions under which it is wanted."""

    source_id: str
    image_id: str
    path: Path
    sha256: str
    conditions: tuple[str, ...]


@dataclass
class _Part:
    """Vectors of some images: per job and condition, in their order."""

    vectors: NDArray[np.float32]
    unchanged: NDArray[np.bool_]


@dataclass
class _Found:
    """What is known of one condition."""

    rows: dict[str, NDArray[np.float32]] = field(default_factory=dict)
    unchanged: set[str] = field(default_factory=set)


class ImageVectors:
    """Vectors of a dataset's image files by one network or baseline."""

    nan_reason = "not_finite"

    def __init__(self, encoder: EncoderCard, dataset: DatasetCard, machine: Machine) -> None:
        if encoder.preprocessing is None or encoder.embedding is None:
            raise ConfigError(
                f"encoder {encoder.id!r} reads images, and its card has no `preprocessing` and `embedding`: add them."
            )
        self._encoder, self._dataset, self._machine = encoder, dataset, machine
        self._preprocessing, self._dim = encoder.preprocessing, encoder.embedding.dim
        self._found: dict[str, _Found] = {}

    def begin(self, wanted: Mapping[str, pl.DataFrame], known: Collection[str], progress: Progress) -> None:
        """See :class:`crsbench_assets.encoders.source.VectorSource`; computes all vectors."""
        jobs = self._jobs(wanted)
        network = load_encoder(self._encoder, self._machine.device)
        n_done, started, pace = 0, time.monotonic(), Pace()
        for start in range(0, len(jobs), IMAGES_PER_PART):
            part_jobs = jobs[start : start + IMAGES_PER_PART]
            for count, part in self._part(network, part_jobs):
                n_done += count
                if part is not None:
                    self._keep(part_jobs, part)
                if pace.is_due(n_done, len(jobs)):
                    progress(_progress_line(n_done, len(jobs), time.monotonic() - started))

    def vectors(
        self, condition_id: str, image_ids: Sequence[str], labels: NDArray[np.int8]
    ) -> NDArray[np.float32] | None:
        """See :class:`crsbench_assets.encoders.source.VectorSource`; labels are not looked at."""
        if image_ids and condition_id not in self._found:
            return None  # a shift target without image files
        rows = self._found[condition_id].rows if image_ids else {}
        return np.array([rows[image_id] for image_id in image_ids], dtype=np.float32).reshape(-1, self._dim)

    def unchanged(self, condition_id: str) -> Collection[str]:
        """See :class:`crsbench_assets.encoders.source.VectorSource`."""
        found = self._found.get(condition_id)
        return found.unchanged if found else ()

    def wrong_width(self, condition_id: str) -> Collection[str]:
        """Return no id: one network gives one width."""
        return ()

    def _jobs(self, wanted: Mapping[str, pl.DataFrame]) -> list[_Job]:
        conditions: dict[tuple[str, str], list[str]] = {}
        files: dict[tuple[str, str], tuple[str, str]] = {}
        for condition, rows in wanted.items():
            with_files = rows.filter(rows["path"].is_not_null())
            for source, image, path, sha256 in with_files.select(_JOB_COLUMNS).iter_rows():
                conditions.setdefault((source, image), []).append(condition)
                files[source, image] = (path, sha256)
        roots = {source_id: image_root(source) for source_id, source in self._dataset.sources.items()}
        return [
            _Job(
                source, image, Path(str(roots[source])) / files[source, image][0], files[source, image][1], tuple(names)
            )
            for (source, image), names in sorted(conditions.items())
        ]

    def _keep(self, jobs: Sequence[_Job], part: _Part) -> None:
        row = 0
        for job in jobs:
            for condition in job.conditions:
                found = self._found.setdefault(condition, _Found())
                found.rows[job.image_id] = part.vectors[row]
                if part.unchanged[row]:
                    found.unchanged.add(job.image_id)
                row += 1

    def _part(self, network: ImageEncoder, jobs: Sequence[_Job]) -> Iterator[tuple[int, _Part | None]]:
        """Yield (images done since, None) now and then, and at the end the part."""
        path = self._part_path(jobs)
        if path is not None and (kept := _read_part(path)) is not None:
            yield len(jobs), kept
            return
        vectors: list[NDArray[np.float32]] = []
        unchanged: list[bool] = []
        waiting: list[NDArray[np.float32]] = []
        size, n_passes = self._machine.batch_size, self._machine.n_threads if network.is_on_processor else 1
        # several passes at once, each on one core: a pass on several cores sums in another order, and takes longer
        with ThreadPoolExecutor(n_passes) as pool:
            running: deque[Future[NDArray[np.float32]]] = deque()
            for prepared, same in self._prepared(jobs):
                waiting += prepared
                unchanged += same
                while len(waiting) >= size:
                    batch, waiting = waiting[:size], waiting[size:]
                    running.append(pool.submit(network.encode, np.stack(batch)))
                    if len(running) > n_passes:
                        vectors.append(running.popleft().result())
                yield 1, None
            if waiting:
                running.append(pool.submit(network.encode, np.stack(waiting)))
            vectors += [future.result() for future in running]
        part = _Part(np.concatenate(vectors), np.array(unchanged, dtype=np.bool_))
        if path is not None:
            _write_part(path, part)
        yield 0, part

    def _prepared(self, jobs: Sequence[_Job]) -> Iterator[tuple[list[NDArray[np.float32]], list[bool]]]:
        """Yield the network's inputs of every image, in order, prepared ahead by threads."""
        n_threads = self._machine.n_threads
        todo = iter(jobs)
        with ThreadPoolExecutor(n_threads) as pool:
            ahead: deque[Future[tuple[list[NDArray[np.float32]], list[bool]]]] = deque(
                pool.submit(self._prepare, job) for job in islice(todo, 2 * n_threads)
            )
            try:
                while ahead:
                    done = ahead.popleft().result()
                    ahead.extend(pool.submit(self._prepare, job) for job in islice(todo, 1))
                    yield done
            finally:
                for future in ahead:
                    future.cancel()

    def _prepare(self, job: _Job) -> tuple[list[NDArray[np.float32]], list[bool]]:
        """Return the network's inputs of an image, and whether each equals the clean image though corrupted."""
        clean = canonical(self._pixels(job))
        inputs: list[NDArray[np.float32]] = []
        unchanged: list[bool] = []
        for condition in job.conditions:
            if condition == CLEAN or job.source_id != PRIMARY:
                pixels, same = clean, False
            else:
                names = (self._dataset.id, job.image_id)
                pixels = corrupt_condition(clean, condition, modality=self._dataset.modality, names=names)
                same = np.array_equal(pixels, clean)
            inputs.append(prepare(pixels, self._preprocessing))
            unchanged.append(same)
        return inputs, unchanged

    def _pixels(self, job: _Job) -> NDArray[np.uint8]:
        remedy = f"run `crsbench materialize --dataset {self._dataset.id} --table images --force`, which looks again."
        try:
            data = job.path.read_bytes()
        except OSError as error:
            raise StorageError(
                f"image {job.image_id!r}: {job.path} cannot be read ({error.strerror}): {remedy}"
            ) from None
        if hashlib.sha256(data).hexdigest()[:HASH_LENGTH] != job.sha256:
            raise StorageError(f"image {job.image_id!r}: {job.path} changed since it was indexed: {remedy}")
        try:
            return decode(data)
        except ImageFault as fault:
            raise StorageError(f"image {job.image_id!r}: {job.path} cannot be decoded ({fault}): {remedy}") from None

    def _part_path(self, jobs: Sequence[_Job]) -> Path | None:
        if self._machine.scratch is None:
            return None
        name = hashlib.sha256(repr([(j.source_id, j.image_id, j.sha256, j.conditions) for j in jobs]).encode())
        return self._machine.scratch / f"{name.hexdigest()[:32]}.npz"


def _progress_line(n_done: int, n: int, seconds: float) -> str:
    rate = n_done / max(seconds, 1e-9)
    return f"{n_done:,} of {n:,} images, {rate:.1f} images/s, {max(0, n - n_done) / max(rate, 1e-9):.0f} s left"


def _read_part(path: Path) -> _Part | None:
    try:
        with np.load(path, allow_pickle=False) as kept:
            return _Part(kept["vectors"], kept["unchanged"])
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None  # absent, or cut off while it was written: computed again


def _write_part(path: Path, part: _Part) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, vectors=part.vectors, unchanged=part.unchanged)
    replace_bytes(path, buffer.getvalue())
