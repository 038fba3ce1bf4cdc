"""Resources of assets, checks and sensors.

What lives here: the home that a Dagster process works on, with the guard against a foreign DAGSTER_HOME, and DuckDB
connections that always close. What stays out: what is read through them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import duckdb
from dagster_duckdb import DuckDBResource

from crsbench_assets.config.errors import StorageError
from crsbench_assets.storage.files import read_json
from crsbench_assets.storage.layout import HomeLayout, require_home, resolve_home
from crsbench_assets.storage.project import Project, open_project

REGISTRY_TAG = "crsbench/registry"
"""Run tag: hash of the registry snapshot that the run works from."""

ONLY_STALE_TAG = "crsbench/only_stale"
"""Run tag: what is current is kept, as planned runs ask; a run launched by hand computes what it was asked for."""


class ProjectResource(dg.ConfigurableResource[None]):
    """The crsbench home of this Dagster process: CRSBENCH_HOME, or the folder above its DAGSTER_HOME."""

    def open(self, tags: dict[str, str] | None = None) -> Project:
        """Open the home, from the registry snapshot that a run's tags name.

        Raises:
            StorageError: DAGSTER_HOME is unset or belongs to another home.
            CrsbenchError: the home cannot be opened.
        """
        layout = resolve_home()
        require_home(layout)
        require_own_dagster_home(layout)
        return open_project(layout.root, registry_hash=(tags or {}).get(REGISTRY_TAG))


def require_own_dagster_home(layout: HomeLayout) -> None:
    """Check that this process writes Dagster's records into the home it works on.

    Raises:
        StorageError: DAGSTER_HOME is unset, or the Dagster folder of another home.
    """
    found = os.environ.get("DAGSTER_HOME")
    remedy = f"start Dagster with `crsbench ui --home {layout.root}`, or set DAGSTER_HOME={layout.dagster}."
    if not found:
        raise StorageError(f"DAGSTER_HOME is not set, so Dagster would forget everything: {remedy}")
    mark = Path(found) / "crsbench_home_id"
    home_id = str(read_json(layout.layout_file)["home_id"])
    if not mark.is_file() or mark.read_text(encoding="utf-8").strip() != home_id:
        raise StorageError(f"DAGSTER_HOME={found} does not belong to the crsbench home {layout.root}: {remedy}")


class WarehouseResource(DuckDBResource):
    """DuckDB on the published warehouse, read-only, closed also after an error."""

    @contextmanager
    def get_connection(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a read-only connection; dagster-duckdb leaves it open when its user raises."""
        connection = duckdb.connect(self.database, read_only=True, config=self.connection_config or {})
        try:
            yield connection
        finally:
            connection.close()


def project_resources() -> dict[str, Any]:
    """Return the resources of the code location."""
    return {
        "project": ProjectResource(),
        "warehouse_file": WarehouseResource(database=str(resolve_home().warehouse)),
    }
