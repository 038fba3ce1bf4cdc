"""A home, opened: its layout, its registry and its lake, after the guards that keep its numbers comparable.

What lives here: making and opening a home, and what a filled home refuses: another protocol, another label policy,
an id with other content, a lake newer than the code. What stays out: what is computed (``planning`` and above).
"""

from __future__ import annotations

import fcntl
import os
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from crsbench_assets.config.errors import ConfigError, StorageError
from crsbench_assets.config.hashes import content_hash
from crsbench_assets.config.registry import Registry, load_registry, registry_from_snapshot
from crsbench_assets.config.settings import DEFAULT_SETTINGS
from crsbench_assets.storage.files import read_json, replace_bytes, replace_json, storage_errors
from crsbench_assets.storage.hashing import FileFingerprints
from crsbench_assets.storage.lake import Lake
from crsbench_assets.storage.layout import HomeLayout, require_home, resolve_home

LAYOUT_VERSION = 1
"""Version of the lake's layout; a newer one is refused, an older one needs `crsbench migrate`."""


def code_release() -> str:
    """Return the version of the installed package."""
    try:
        return version("crsbench")
    except PackageNotFoundError:
        return "source"


@dataclass(frozen=True)
class Project:
    """An opened home."""

    layout: HomeLayout
    registry: Registry
    lake: Lake
    fingerprints: FileFingerprints = field(repr=False)

    @property
    def home_id(self) -> str:
        """Random id that this home was born with; its Dagster folder carries the same."""
        return str(read_json(self.layout.layout_file)["home_id"])


def create_home(layout: HomeLayout, dagster_yaml: str, *, workers: int = 1) -> bool:
    """Make an empty home; return False where one is already there, which is left as it is.

    Args:
        layout: where.
        dagster_yaml: content of the Dagster instance's settings, the user's from then on.
        workers: processes that `materialize` computes cells with, at first.

    Raises:
        StorageError: the folder holds something else, or cannot be written.
    """
    if layout.settings.exists():
        return False
    with storage_errors(layout.root):
        if layout.root.exists() and not _is_empty_or_half_made(layout):
            raise StorageError(f"{layout.root} is not empty and no crsbench home: name an empty or new folder.")
        for folder in ("encoders", "datasets", "reports"):
            (layout.root / folder).mkdir(parents=True, exist_ok=True)
        for folder_path in (layout.registry, layout.panels, layout.published, layout.dagster):
            folder_path.mkdir(parents=True, exist_ok=True)
    home_id = uuid.uuid4().hex
    replace_bytes(layout.dagster / "dagster.yaml", dagster_yaml.encode())
    replace_bytes(layout.dagster / "crsbench_home_id", home_id.encode())
    replace_json(layout.layout_file, {"layout": LAYOUT_VERSION, "home_id": home_id, "created_by": code_release()})
    settings = DEFAULT_SETTINGS.format(workers=workers, group_salt=secrets.token_hex(16))
    replace_bytes(layout.settings, settings.encode())  # last: its presence makes the folder a home
    return True


def _is_empty_or_half_made(layout: HomeLayout) -> bool:
    """Whether a folder holds no file but what :func:`create_home` leaves where it was cut off."""
    ours = {layout.dagster / "dagster.yaml", layout.dagster / "crsbench_home_id", layout.layout_file}
    # iterdir first: it refuses a file in the folder's place, of which rglob finds nothing
    return not any(layout.root.iterdir()) or {p for p in layout.root.rglob("*") if not p.is_dir()} <= ours


def open_project(home: str | Path | None = None, *, registry_hash: str | None = None) -> Project:
    """Open a home.

    Args:
        home: folder; see :func:`resolve_home`.
        registry_hash: work from this snapshot instead of the card files, as a run does.

    Raises:
        ConfigError, StorageError: one sentence with the remedy.
    """
    layout = resolve_home(home)
    require_home(layout)
    _check_layout_version(layout)
    registry = load_registry(layout.root) if registry_hash is None else read_snapshot(layout, registry_hash)
    _check_locked(layout, registry)
    _check_identities(layout, registry)
    return Project(layout, registry, Lake(layout), FileFingerprints(layout.fingerprints))


def write_snapshot(project: Project) -> str:
    """Write the registry into the lake, so that runs on any machine work from it, and return its hash.

    Also records what a filled home never changes: protocol, label policy and the content behind each id.
    """
    registry, layout = project.registry, project.layout
    path = layout.registry / f"{registry.hash}.json"
    if not path.exists():
        replace_json(path, registry.snapshot)
    with _home_lock(layout):
        locked = read_json(layout.layout_file)
        wanted = {"protocol": registry.protocol.id, **_lock_of(registry)}
        if {key: locked.get(key) for key in wanted} != wanted:
            replace_json(layout.layout_file, {**locked, **wanted})
        known = _known_identities(layout)
        merged = {**_identities(registry), **known}
        if merged != known:
            replace_json(layout.identities, merged)
    return registry.hash


def read_snapshot(layout: HomeLayout, registry_hash: str) -> Registry:
    """Return the registry of a snapshot in the lake.

    Raises:
        StorageError: there is none of that hash.
    """
    value = read_json(layout.registry / f"{registry_hash}.json")
    if value is None:
        raise StorageError(
            f"The registry snapshot {registry_hash} is not in {layout.registry}: start the run again, which writes it."
        )
    return registry_from_snapshot(value)


def is_filled(layout: HomeLayout) -> bool:
    """Whether anything was ever computed in this home."""
    return any((layout.lake / "main").glob("*/**/_current.json")) if (layout.lake / "main").exists() else False


def _check_layout_version(layout: HomeLayout) -> None:
    try:
        value = read_json(layout.layout_file)
    except StorageError:
        value = None  # the remedy for other files, to remove them, would make the home unusable
    if not isinstance(value, dict) or not isinstance(value.get("layout"), int) or "home_id" not in value:
        raise StorageError(
            f"{layout.layout_file} is missing or damaged: restore it from a backup, or import the results into a new "
            "home."
        )
    if value["layout"] > LAYOUT_VERSION:
        raise StorageError(
            f"The lake of {layout.root} has layout {value['layout']}, this crsbench ({code_release()}) knows up to "
            f"{LAYOUT_VERSION}: upgrade crsbench (the home was made by {value.get('created_by', 'a newer version')})."
        )


def _lock_of(registry: Registry) -> dict[str, str]:
    return {"protocol_hash": registry.protocol.hash, "label_policy": registry.settings.label_policy}


def _check_locked(layout: HomeLayout, registry: Registry) -> None:
    locked = read_json(layout.layout_file)
    changed = [key for key, value in _lock_of(registry).items() if locked.get(key, value) != value]
    if changed and is_filled(layout):
        what = "protocol" if "protocol_hash" in changed else "label_policy"
        before = locked.get("protocol") if what == "protocol" else locked["label_policy"]
        raise ConfigError(
            f"{layout.settings} asks for another {what} than the {before!r} that this home is filled with: numbers of "
            f"two are never mixed. Put the {what} back, or make a new home with `crsbench init --home DIR`."
        )


def _identities(registry: Registry) -> dict[str, str]:
    encoders = {f"encoder {key}": content_hash(card.identity) for key, card in registry.encoders.items()}
    datasets = {f"dataset {key}": content_hash(card.identity) for key, card in registry.datasets.items()}
    return encoders | datasets


def _known_identities(layout: HomeLayout) -> dict[str, Any]:
    try:
        return read_json(layout.identities) or {}
    except StorageError as error:
        raise StorageError(
            f"{layout.identities} is damaged, so it is unknown what each id stood for: restore it from a backup. "
            "Without one, remove it only if no card changed since."
        ) from error


def _check_identities(layout: HomeLayout, registry: Registry) -> None:
    known = _known_identities(layout)
    for name, identity in _identities(registry).items():
        if known.get(name, identity) != identity:
            kind, identifier = name.split()
            raise ConfigError(
                f"The card of the {name!r} now describes other content than the one this home has results for: an id "
                f"keeps its content for ever. Give the new content a new id (another file in {kind}s/), and put the "
                f"card of {identifier!r} back as it was."
            )


@contextmanager
def _home_lock(layout: HomeLayout) -> Iterator[None]:
    with storage_errors(layout.lake):
        handle = os.open(layout.lake / ".lock", os.O_CREAT | os.O_RDWR, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
