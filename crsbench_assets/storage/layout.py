"""Every path of a home.

What lives here: names and places of files, and how a home is found and made. What stays out: their content
(``lake``, ``leases``, ``warehouse``, ``project``). Source: interfaces page, "Home".
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from crsbench_assets.config.errors import StorageError
from crsbench_assets.tables.schema import TableSpec

HOME_VARIABLE = "CRSBENCH_HOME"
DEFAULT_HOME = "crsbench_home"

MAIN_ARM = "main"
"""The frozen arm; every arm is its own schema in warehouse and lake."""

PartitionKey = tuple[str, ...]
"""Values of a table's grain key, in order: (), (dataset,) or (encoder, dataset)."""


@dataclass(frozen=True)
class HomeLayout:
    """Paths of one home; ``root`` is absolute."""

    root: Path

    @property
    def settings(self) -> Path:
        """The user's settings."""
        return self.root / "crsbench.yaml"

    @property
    def lake(self) -> Path:
        """Root of the lake."""
        return self.root / "lake"

    @property
    def layout_file(self) -> Path:
        """Layout version, home id, and what a home never changes."""
        return self.lake / "_layout.json"

    @property
    def registry(self) -> Path:
        """Folder of registry snapshots."""
        return self.lake / "registry"

    @property
    def identities(self) -> Path:
        """Which content each id stood for when it was first computed."""
        return self.registry / "identities.json"

    @property
    def panels(self) -> Path:
        """Folder of frozen panels."""
        return self.lake / "panels"

    @property
    def published(self) -> Path:
        """Folder of published snapshots."""
        return self.root / "published"

    @property
    def warehouse(self) -> Path:
        """Link to the newest published snapshot."""
        return self.root / "warehouse.duckdb"

    @property
    def dagster(self) -> Path:
        """DAGSTER_HOME of this home."""
        return self.root / "dagster"

    @property
    def fingerprints(self) -> Path:
        """Cache of the hashes of the user's files."""
        return self.root / "cache" / "fingerprints.json"

    def scratch(self, inputs_hash: str) -> Path:
        """Folder of the finished parts of a long computation, until it is committed."""
        return self.root / "cache" / "parts" / inputs_hash

    def partition(self, table: TableSpec, key: PartitionKey, arm: str = MAIN_ARM) -> str:
        """Return the folder of one partition, as text: the planner asks for thousands, and paths are slow to make."""
        if len(key) != len(table.grain_key):
            raise ValueError(f"table {table.name} is addressed by {table.grain_key}, not by {key}")
        folders = "".join([f"/{name}={value}" for name, value in zip(table.grain_key, key, strict=True)])
        return f"{self.root}/lake/{arm}/{table.name}{folders}"


def resolve_home(home: str | Path | None = None) -> HomeLayout:
    """Return the layout of the home that was named, made absolute.

    The order is: ``home``, the variable CRSBENCH_HOME, the folder above a DAGSTER_HOME that belongs to a home,
    ``./crsbench_home``. Nothing is created.
    """
    if home is None:
        home = os.environ.get(HOME_VARIABLE)
    if home is None and (dagster_home := os.environ.get("DAGSTER_HOME")):
        parent = Path(dagster_home).parent
        home = parent if (parent / "crsbench.yaml").exists() else None
    return HomeLayout(Path(home or DEFAULT_HOME).expanduser().absolute())


def require_home(layout: HomeLayout) -> None:
    """Check that a home lies at ``layout``.

    Raises:
        StorageError: nothing is there, with the command that makes one.
    """
    if not layout.settings.is_file():
        for folder in layout.root.parents:
            if (folder / "crsbench.yaml").is_file():
                raise StorageError(f"There is no crsbench home at {layout.root}; did you mean --home {folder}?")
        raise StorageError(
            f"There is no crsbench home at {layout.root}: make one with `crsbench init --home {layout.root}`, "
            f"or name yours with --home or {HOME_VARIABLE}."
        )
