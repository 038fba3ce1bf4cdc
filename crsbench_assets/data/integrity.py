"""What encoder-free checks say of a cohort's files: who is there, who can be decoded, who is the same image twice.

What lives here: the search for the files of a cohort below its root, the full decode of every file with its hashes,
and the groups that duplicates join. What stays out: what a decoded image is (``images.decode``), which images are one
picture (``data.duplicates``), the layouts that name the files (``data.sources``), the draw that keeps groups together
(``data.splits``).
Source: protocol page, section 2: the support of a dataset is fixed by these checks, the same for all encoders; exact
and near-duplicates join groups.
"""

from __future__ import annotations

import hashlib
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from crsbench_assets.data.cohort import Cohort

MISSING_FILE = "missing_file"
OUTSIDE_ROOT = "outside_root"
UNREADABLE = "unreadable"
CONSTANT = "constant"

HASH_LENGTH = 32
"""Hex digits kept of a SHA-256: 128 bits, beyond any accidental collision."""

_CHUNK = 64
"""Files of one task: enough that the bookkeeping of a thread pool costs nothing beside the decode."""


@dataclass(frozen=True)
class ImageCheck:
    """What the decode of one file found.

    Attributes:
        image_id: the image.
        sha256: first 32 hex digits of the SHA-256 of the file's bytes; None where it could not be read.
        pixel_hash: the same of shape and decoded pixels, equal for two files that decode to one image; None where the
            image is not usable: two blank images are equal, and no duplicates of one patient.
        width_px: width in pixels of the decoded image (EXIF orientation applied); None where it was not decoded.
        height_px: its height in pixels; None likewise.
        thumbnail: 32 x 32 grey pixels, row by row, by which near-duplicates are found; empty where it is not usable.
        n_channels: 1 for grey, 3 for colour; None likewise.
        reason: None for a usable image, else ``missing_file``, ``unreadable``, ``too_small`` or ``constant``.
        detail: the reason in words, None for a usable image.
    """

    image_id: str
    sha256: str | None = None
    pixel_hash: str | None = None
    width_px: int | None = None
    height_px: int | None = None
    n_channels: int | None = None
    thumbnail: bytes = field(default=b"", repr=False)
    reason: str | None = None
    detail: str | None = None


def check_images(cohort: Cohort, *, n_threads: int, progress: Callable[[int, int], None]) -> list[ImageCheck]:
    """Return one check per image that the reader did not leave out, sorted by image id.

    Every file is read once and decoded to its last row: a truncated JPEG passes a check of its header alone. What is
    wrong with a file is a row, never an exception. Images in ``cohort.left_out`` have their reason already, and what
    lies outside the root is never opened.

    Args:
        cohort: a cohort with images; one without (``paths`` None) gives an empty list.
        n_threads: threads, at least 1; the result does not depend on it.
        progress: called with (images done, images in all), from this thread, after every few images.

    Raises:
        ValueError: ``n_threads`` below 1.
    """
    if n_threads < 1:
        raise ValueError(f"n_threads must be at least 1, got {n_threads}")
    # in the order of their paths, in which a disk has them
    files = sorted((str(path), image_id) for image_id, path in cohort.files().items())
    chunks = [files[start : start + _CHUNK] for start in range(0, len(files), _CHUNK)]
    checks: list[ImageCheck] = []
    pool = ThreadPoolExecutor(max_workers=n_threads)
    try:
        for done in pool.map(_checked, chunks):
            checks += done
            progress(len(checks), len(files))
    finally:
        pool.shutdown(cancel_futures=True)  # an interrupt does not wait for 190,000 files
    return sorted(checks, key=lambda check: check.image_id)


def _checked(files: Iterable[tuple[str, str]]) -> list[ImageCheck]:
    return [_check(image_id, path) for path, image_id in files]


def _check(image_id: str, path: str) -> ImageCheck:
    from crsbench_assets.images.decode import ImageFault, decode, is_constant
    from crsbench_assets.images.perceptual import thumbnail

    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 (a buffer, and a Path, cost as much as the hash)
            data = file.read()
    except OSError as error:
        reason, detail = _os_fault(error)
        return ImageCheck(image_id, reason=reason, detail=detail)
    sha256 = hashlib.sha256(data).hexdigest()[:HASH_LENGTH]
    try:
        pixels = decode(data)
    except ImageFault as fault:
        return ImageCheck(image_id, sha256, reason=fault.reason, detail=fault.detail)
    digest = hashlib.sha256(repr(pixels.shape).encode())
    digest.update(pixels.reshape(-1).data)  # C-contiguous, so hashed without a copy
    small = thumbnail(pixels).tobytes()
    # a thumbnail of several values is of no constant image, and quicker to look at
    is_flat = small.count(small[0]) == len(small) and is_constant(pixels)
    return ImageCheck(
        image_id,
        sha256,
        None if is_flat else digest.hexdigest()[:HASH_LENGTH],
        width_px=pixels.shape[1],
        height_px=pixels.shape[0],
        n_channels=1 if pixels.ndim == 2 else pixels.shape[2],
        thumbnail=b"" if is_flat else small,
        reason=CONSTANT if is_flat else None,
        detail="every pixel has the same value" if is_flat else None,
    )


def joined_groups(groups: Sequence[str], keys: Sequence[str | int | None]) -> list[str]:
    """Return the group of every image after images with equal keys joined their groups.

    Images that share a group or a key, directly or through others, form one component, named by its smallest raw
    group id. The order of the images plays no part. Keys of several kinds are joined one after the other, with the
    same result in any order of the kinds.

    Args:
        groups: n raw group ids.
        keys: n keys of one type, such as numbers of pictures; None joins nobody.

    Returns:
        n group ids; an empty list without images.

    Raises:
        ValueError: the lengths differ.

    Example:
        >>> joined_groups(["lesion:2", "lesion:1", "lesion:3", "lesion:2"], ["h1", "h1", "h2", None])
        ['lesion:1', 'lesion:1', 'lesion:3', 'lesion:1']
    """
    import numpy as np
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    if len(groups) != len(keys):
        raise ValueError(f"{len(groups)} groups and {len(keys)} keys; expected one each per image")
    names = sorted(set(groups))
    number = {name: i for i, name in enumerate(names)}
    key_number = {key: len(names) + i for i, key in enumerate({key for key in keys if key is not None})}
    n_nodes = len(names) + len(key_number)
    if not n_nodes:
        return []
    # groups and keys are the nodes of one graph, and every image is an edge between its group and its key
    edges = [(number[group], key_number[key]) for group, key in zip(groups, keys, strict=True) if key is not None]
    ends = np.asarray(edges, dtype=np.int64).reshape(-1, 2)
    graph = coo_array((np.ones(len(ends), dtype=np.int8), (ends[:, 0], ends[:, 1])), shape=(n_nodes, n_nodes))
    _, component = connected_components(graph, directed=False)
    smallest: dict[int, str] = {}
    for i, name in enumerate(names):  # ascending, so the first name of a component is its smallest
        smallest.setdefault(int(component[i]), name)
    return [smallest[int(component[number[group]])] for group in groups]


def file_faults(root: Path, paths: Sequence[str]) -> list[tuple[str, str] | None]:
    """Return why each file cannot be opened, or None where it is there.

    Folders are listed once each instead of asking for every file. A path leaves the root where it is absolute, has a
    ``..``, or goes through a symbolic link whose end lies outside; such a file is not looked for.

    Args:
        root: an existing folder; it may itself be a symbolic link.
        paths: n paths relative to it, with ``/``. Blank stands for an image without a file.

    Returns:
        n times None or (reason, detail), with the reason ``missing_file``, ``outside_root`` or ``unreadable`` (the
        folder may not be read).
    """
    faults: list[tuple[str, str] | None] = [None] * len(paths)
    wanted: list[tuple[tuple[str, ...], int]] = []
    for i, path in enumerate(paths):
        parts = tuple(part for part in path.split("/") if part not in ("", "."))
        if not parts:
            faults[i] = (MISSING_FILE, "no file is named")
        elif path.startswith("/") or ".." in parts:
            faults[i] = (OUTSIDE_ROOT, f"{path} is absolute or has a `..`; expected a path below the root")
        else:
            wanted.append((parts, i))
    real_root = os.path.realpath(root)
    for i, (reason, words) in _missing_below(real_root, real_root, wanted):
        faults[i] = (reason, f"{paths[i]}: {words}")
    return faults


def _missing_below(
    root: str, folder: str, wanted: Sequence[tuple[tuple[str, ...], int]]
) -> Iterable[tuple[int, tuple[str, str]]]:
    """Yield (position, fault) of the files that are not below ``folder``, asking each folder once."""
    by_name: dict[str, list[tuple[tuple[str, ...], int]]] = defaultdict(list)
    for parts, i in wanted:
        by_name[parts[0]].append((parts[1:], i))
    in_any_case: dict[str, str] = {}
    folded = {name.lower() for name in by_name}
    entries: dict[str, os.DirEntry[str]] = {}
    try:
        with os.scandir(folder) as listing:
            for entry in listing:
                if entry.name in by_name:
                    entries[entry.name] = entry
                elif entry.name.lower() in folded:
                    in_any_case[entry.name.lower()] = entry.name
    except OSError as error:
        yield from ((i, _os_fault(error)) for _, i in wanted)
        return
    for name, below in by_name.items():
        fault = _entry_fault(root, entries.get(name), in_any_case.get(name.lower()))
        inner = [item for item in below if item[0]]
        for parts, i in below:
            if fault is not None:
                yield i, fault
            elif not parts and not entries[name].is_file():
                yield i, (MISSING_FILE, "it is no file")
        if inner and fault is None:
            yield from _missing_below(root, entries[name].path, inner)


def _entry_fault(root: str, entry: os.DirEntry[str] | None, similar: str | None) -> tuple[str, str] | None:
    if entry is None:
        return MISSING_FILE, f"there is no such file{f', but {similar}: rename it' if similar else ''}"
    if not entry.is_symlink():  # known from the listing: no further question to the disk
        return None
    target = os.path.realpath(entry.path)
    if os.path.commonpath([root, target]) != root:
        return OUTSIDE_ROOT, "a symbolic link leads out of the root"
    return None if Path(target).exists() else (MISSING_FILE, "a symbolic link leads nowhere")


def _os_fault(error: OSError) -> tuple[str, str]:
    words = error.strerror or str(error)
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return MISSING_FILE, words
    return UNREADABLE, words
