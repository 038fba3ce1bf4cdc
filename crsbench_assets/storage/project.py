"""A home, opened: its layout, its registry and its lake, after the guards that keep its numbers comparable.

What lives here: making and opening a home, the edit of its settings, and what a filled home refuses: another protocol,
another label policy, an id with other content, a lake newer than the code. What stays out: what is computed
(``planning`` and above).
"""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from crsbench_assets.config.cells import Cell, cells
from crsbench_assets.config.errors import ConfigError, StorageError
from crsbench_assets.config.registry import Registry, load_registry, registry_from_snapshot
from crsbench_assets.config.settings import DEFAULT_SETTINGS, edited_list
from crsbench_assets.storage.files import locked, read_json, replace_bytes, replace_json, storage_errors
from crsbench_assets.storage.hashing import FileFingerprints
from crsbench_assets.storage.lake import POINTER_FILE, Lake, read_pointer
from crsbench_assets.storage.layout import HomeLayout, require_home, resolve_home

LAYOUT_VERSION = 1
"""Version of the lake's layout; a newer one is refused, an older one needs `crsbench migrate`."""

RECORDED_LATER = ("revision", "sha256")
"""Fields of an encoder's ``weights`` that stay empty until the first verified download: filling one in changes nothing
about what is measured."""


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

    @cached_property
    def grid(self) -> tuple[Cell, ...]:
        """Every cell of the active, not retired cards: see :func:`cells`."""
        return tuple(cells(self.registry))


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
        layout.lake.mkdir(parents=True, exist_ok=True)
    with _home_lock(layout):  # two at once: the second finds the home of the first
        if layout.settings.exists():
            return False
        _make_home(layout, dagster_yaml, workers)
    return True


def _make_home(layout: HomeLayout, dagster_yaml: str, workers: int) -> None:
    with storage_errors(layout.root):
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


def _is_empty_or_half_made(layout: HomeLayout) -> bool:
    """Whether a folder holds no file but what :func:`create_home` leaves where it was cut off."""
    ours = {layout.dagster / "dagster.yaml", layout.dagster / "crsbench_home_id", layout.layout_file}
    ours |= {layout.settings, layout.lake / ".lock"}
    # iterdir first: it refuses a file in the folder's place, of which rglob finds nothing
    found = {path for path in layout.root.rglob("*") if not path.is_dir()} if any(layout.root.iterdir()) else set()
    half_written = {path for path in found if path.name.endswith(".tmp") and _goal_of(path) in ours}
    return found - half_written <= ours


def _goal_of(temporary: Path) -> Path:
    """Return the file that ``replace_bytes`` was writing where it was killed."""
    return temporary.with_name(temporary.name.removeprefix(".").rsplit(".", 2)[0])


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

    Also records what a filled home never changes: protocol, label policy and the content behind each id. An id without
    results takes the content that its card has now.
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
        _check_identities(layout, registry)  # again: somebody may have computed since the project was opened
        merged = {**known, **_identities(registry)}
        if merged != known:
            replace_json(layout.identities, merged)
    return registry.hash


def edit_settings(layout: HomeLayout, field: str, *, add: str | None = None, remove: str | None = None) -> None:
    """Add or remove one id of a list in ``crsbench.yaml`` and keep the user's comments and order.

    Of two edits at once, both are made; a reader sees the file before or after one.

    Raises:
        ConfigError: the file holds no settings; it stays as it is.
        StorageError: the disk refuses; the file stays as it is.
    """
    with _home_lock(layout):
        replace_bytes(layout.settings, edited_list(layout.settings, field, add=add, remove=remove))


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


def _identities(registry: Registry) -> dict[str, dict[str, Any]]:
    encoders = {f"encoder {key}": card.identity for key, card in registry.encoders.items()}
    datasets = {f"dataset {key}": card.identity for key, card in registry.datasets.items()}
    return encoders | datasets


def _known_identities(layout: HomeLayout) -> dict[str, dict[str, Any]]:
    try:
        known = read_json(layout.identities)
    except StorageError:
        known = False
    if known is None:
        return {}
    if not isinstance(known, dict) or not all(isinstance(identity, dict) for identity in known.values()):
        raise StorageError(
            f"{layout.identities} is damaged, so it is unknown what each id stood for: restore it from a backup. "
            "Without one, remove it only if no card changed since."
        )
    return known


def _check_identities(layout: HomeLayout, registry: Registry) -> None:
    known = _known_identities(layout)
    for name, identity in _identities(registry).items():
        if not _is_other(known.get(name, identity), identity):
            continue
        kind, identifier = name.split()
        if _has_results(layout, kind, identifier):
            raise ConfigError(
                f"The card of the {name!r} now describes other content than the one this home has results for: an id "
                f"keeps its content for ever. Give the new content a new id (another file in {kind}s/), and put the "
                f"card of {identifier!r} back as it was."
            )


def _is_other(recorded: Mapping[str, Any], identity: Mapping[str, Any]) -> bool:
    """Whether an identity differs from the recorded one in more than what was recorded since."""
    weights = recorded.get("weights") or {}
    open_fields = {name for name in RECORDED_LATER if weights.get(name) is None}

    def settled(value: Mapping[str, Any]) -> dict[str, Any]:
        weights = value.get("weights") or {}
        return {**value, "weights": {name: weights[name] for name in weights.keys() - open_fields}}

    return settled(recorded) != settled(identity)


def _has_results(layout: HomeLayout, kind: str, identifier: str) -> bool:
    """Whether any arm holds a result of an encoder or a dataset; what only ever failed is none."""
    below = "**/" if kind == "encoder" else ""
    pointers = layout.lake.glob(f"*/*/**/{kind}_id={identifier}/{below}{POINTER_FILE}")
    return any((pointer := read_pointer(path)) is not None and pointer.status == "ok" for path in pointers)


def _home_lock(layout: HomeLayout) -> AbstractContextManager[None]:
    return locked(layout.lake / ".lock")
