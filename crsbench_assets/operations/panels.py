"""Freezing reference panels.

What lives here: from the axes in the lake to a panel file. What stays out: what a panel is (``scores.panel``).
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.planning.attempts import partitions
from crsbench_assets.scores.panel import Panel, freeze
from crsbench_assets.scores.profile import axis_values
from crsbench_assets.storage.files import replace_bytes
from crsbench_assets.storage.project import Project
from crsbench_assets.tables.registry import TABLES
from crsbench_assets.worker.pooled_stages import current_conditions, provisional_variant, read_panels, scored_encoders


@dataclass(frozen=True)
class Frozen:
    """A panel that was frozen, the candidates left out because they are incomplete, and whether it was there."""

    panel: Panel
    incomplete: tuple[str, ...]
    is_new: bool


def freeze_panel(project: Project, name: str) -> Frozen:
    """Freeze the complete candidates of a home as a reference panel and write its file.

    Raises:
        ConfigError: no complete candidate, a bad name, or the name stands for another panel already.
    """
    axes, statistics = _read_all(project, "cell_axes"), _read_all(project, "dataset_statistics")
    variant = provisional_variant(project, axes)
    conditions = current_conditions(project, statistics, variant)
    panel, incomplete = freeze(name, axis_values(axes, variant), scored_encoders(project), conditions)
    same_name = [known for known in read_panels(project) if known.name == name]
    if any(known.panel_id == panel.panel_id for known in same_name):
        return Frozen(panel, incomplete, is_new=False)
    if same_name:
        raise ConfigError(
            f"A panel {name!r} is frozen already ({same_name[0].panel_id}) with other members or values: a "
            "frozen panel never changes. Choose another name, such as "
            f"{name}-2; `crsbench panel diff` shows what differs."
        )
    replace_bytes(project.layout.panels / f"{panel.panel_id}.json", panel.to_json().encode())
    return Frozen(panel, incomplete, is_new=True)


def find_panel(project: Project, panel_id: str) -> Panel:
    """Return a frozen panel by id, or by name where only one has it.

    Raises:
        ConfigError: there is none, or several of that name.
    """
    panels = read_panels(project)
    found = [panel for panel in panels if panel_id in (panel.panel_id, panel.name)]
    if len(found) != 1:
        known = ", ".join(panel.panel_id for panel in panels) or "none; freeze one with `crsbench panel freeze NAME`"
        raise ConfigError(f"{'No panel' if not found else 'Several panels'} {panel_id!r}; frozen panels: {known}.")
    return found[0]


def _read_all(project: Project, table: str) -> pl.DataFrame:
    frames = [TABLES[table].empty()]
    for stage, key in partitions(project):
        if table in stage.tables:
            pointer = project.lake.pointer(table, key)
            if pointer is not None and pointer.status == "ok":
                frames.append(project.lake.read(table, key))
    return pl.concat(frames)
