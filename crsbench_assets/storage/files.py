"""Durable writing of small files, and the lock around a change of them.

What lives here: replacing a file at once, with its bytes on disk before its name, and locks between processes. What
stays out: what is written.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from crsbench_assets.config.errors import StorageError, reason_of


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the disk refuses into one sentence about ``path``."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise StorageError(
                f"The disk is full: {path} could not be written. Free space (`crsbench doctor` shows how much there "
                "is) and run the command again; everything finished so far is kept."
            ) from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise StorageError(
                f"{path} cannot be written: {error.strerror}. Make the home writable for you, or name another with "
                "--home; reading commands (status, sql) work as it is."
            ) from error
        raise StorageError(f"{path}: {error.strerror or error}.") from error


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on ``path`` against other processes and threads of this machine, waiting for it as long as needed.

    The file stays, empty. Where a file system has no locks, nothing is held.

    Raises:
        StorageError: the file cannot be made.
    """
    with storage_errors(path):
        handle = os.open(path, os.O_CREAT | os.O_RDWR, 0o644)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def sync(path: Path) -> None:
    """Make the bytes of a file, or the names in a folder, survive a power cut."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_synced(path: Path, data: bytes | memoryview) -> None:
    """Write a new file, its bytes on disk when the call returns."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_bytes(path: Path, data: bytes) -> None:
    """Write ``data`` so that a reader sees the old or the new file, never a mixture, also after a power cut.

    Raises:
        StorageError: the disk is full, the home read-only, and the like.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    with storage_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_synced(temporary, data)
            os.replace(temporary, path)
            sync(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def replace_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON at once; see :func:`replace_bytes`."""
    replace_bytes(path, (json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n").encode())


def read_json(path: Path | str) -> Any:
    """Return the JSON of a small file, or None where there is no file.

    Raises:
        StorageError: the file cannot be read or holds no JSON.
    """
    try:
        handle = os.open(path, os.O_RDONLY)  # half the time of open(), for thousands of pointers
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}.") from error
    try:
        data = os.read(handle, os.fstat(handle).st_size)
    except OSError as error:  # a folder of that name can be opened and not read
        raise StorageError(f"{path} cannot be read: {error.strerror}.") from error
    finally:
        os.close(handle)
    try:
        return from_json(data)
    except ValueError as error:
        raise StorageError(
            f"{path} is damaged ({reason_of(error)}): remove it, and what it described is computed again."
        ) from None
