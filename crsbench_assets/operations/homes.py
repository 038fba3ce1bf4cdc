"""Making a home.

What lives here: the Dagster settings of a new home, the demo panels' cards and cohorts. What stays out: opening a home
(``storage.project``) and drawing images (``data.demo``).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from crsbench_assets.config.cards import IMAGE_KINDS, PRIMARY, DatasetCard, EncoderCard
from crsbench_assets.config.errors import ConfigError
from crsbench_assets.config.registry import CATALOG, home_card_files, read_card
from crsbench_assets.config.settings import read_settings
from crsbench_assets.storage.files import replace_bytes, storage_errors
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import Project, create_home

DAGSTER_YAML = """\
# Dagster instance of this crsbench home; yours to edit. https://docs.dagster.io/deployment/oss/dagster-yaml
telemetry:
  enabled: false
nux:
  enabled: false
concurrency:
  runs:
    max_concurrent_runs: {n_runs}
  pools:
    default_limit: {n_runs}   # publish and, with a GPU, gpu: 1 (`dagster instance concurrency set gpu N`)
    granularity: op
run_monitoring:
  enabled: true
  poll_interval_seconds: 15
  free_slots_after_run_end_seconds: 5   # a killed run must not hold its slot for minutes
run_retries:
  enabled: true
  max_retries: 2
  retry_on_asset_or_op_failure: false   # only runs whose process died are started again
retention:
  schedule:
    purge_after_days: 30
  sensor:
    purge_after_days: 7
  auto_materialize:
    purge_after_days: 7
"""


def init_home(layout: HomeLayout) -> bool:
    """Make an empty home; return False where one is already there.

    Raises:
        StorageError: the folder is not empty, or cannot be written.
    """
    return create_home(layout, dagster_yaml(), workers=_n_runs())


def restore_dagster_folder(project: Project) -> None:
    """Make the Dagster folder of a home again where it was lost; what is there stays as it is."""
    layout = project.layout
    if not (layout.dagster / "dagster.yaml").exists():
        replace_bytes(layout.dagster / "dagster.yaml", dagster_yaml().encode())
    if not (layout.dagster / "crsbench_home_id").exists():
        replace_bytes(layout.dagster / "crsbench_home_id", project.home_id.encode())


def dagster_yaml() -> str:
    """Return the settings of a new Dagster instance on this machine."""
    return DAGSTER_YAML.format(n_runs=_n_runs())


def _n_runs() -> int:
    return max(1, min(4, os.cpu_count() or 1))


def demo_panels() -> list[str]:
    """Return the names of the panels that come with the package."""
    return sorted(path.name for path in (CATALOG / "panels").iterdir() if path.is_dir())


def require_installed(panel: str) -> None:
    """Check that what a demo panel's encoders need is installed.

    Raises:
        ConfigError: naming what is missing and how to get it.
    """
    cards = [read_card(EncoderCard, path) for path in sorted((CATALOG / "panels" / panel / "encoders").glob("*.yaml"))]
    packages = {card.weights.package for card in cards if card.weights and card.weights.package}
    modules = {name.replace("-", "_") for name in packages}
    if any(card.kind in IMAGE_KINDS for card in cards):
        modules |= {"torch", "timm", "cv2", "PIL"}
    missing = sorted(name for name in modules if importlib.util.find_spec(name) is None)
    if missing:
        raise ConfigError(
            f"The demo panel {panel!r} needs packages that are not installed ({', '.join(missing)}): "
            "run `pip install 'crsbench[encoders,demo]'`, or take `--panel synthetic15`, which needs none of them."
        )


def write_cohorts(layout: HomeLayout, panel: str, progress: Callable[[str], None]) -> None:
    """Draw the images of a demo panel's cohorts into the home, those that are not there yet.

    Raises:
        StorageError: the disk refuses.
    """
    for path in sorted((CATALOG / "panels" / panel / "datasets").glob("*.yaml")):
        for source_id, source in read_card(DatasetCard, path).sources.items():
            name = path.stem if source_id == PRIMARY else source_id
            root = layout.root / "cohorts" / name
            if source.root is None or root.exists():
                continue
            from crsbench_assets.data.demo.write import write_cohort

            progress(f"drawing {name}")
            with storage_errors(root):
                write_cohort(name, root)


def install_panel(layout: HomeLayout, panel: str) -> None:
    """Put the cards of a demo panel into a home, where they are active by lying there.

    Raises:
        ConfigError: there is no such panel, or the home has other cards: a demo speaks of its own panel alone.
    """
    source = CATALOG / "panels" / panel
    if not source.is_dir():
        raise ConfigError(f"There is no demo panel {panel!r}; known: {', '.join(demo_panels())}.")
    settings = read_settings(layout.settings)
    for kind in ("datasets", "encoders"):
        listed: tuple[str, ...] = getattr(settings, kind)
        found = {*listed, *(path.stem for path in home_card_files(layout.root, kind))}
        others = sorted(found - {path.stem for path in (source / kind).glob("*.yaml")})
        if others:
            raise ConfigError(
                f"{layout.root} has {kind} that are not the demo panel's ({', '.join(others)}): give the demo a home "
                "of its own with --home."
            )
    for kind in ("datasets", "encoders"):
        for card in sorted((source / kind).glob("*.yaml")):
            target: Path = layout.root / kind / card.name
            if not target.exists():
                with storage_errors(target):
                    shutil.copyfile(card, target)
