"""Reference panels of a home: freezing one, finding one, and which of them are refused today.

What lives here: from the axes in the lake to a panel file, and back. What stays out: what a panel is
(``scores.panel``).
"""

from __future__ import annotations

from dataclasses import dataclass

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.planning.stages import stage_named
from crsbench_assets.scores.panel import Panel, freeze, mismatches
from crsbench_assets.scores.profile import axis_values
from crsbench_assets.storage.files import replace_bytes
from crsbench_assets.storage.project import Project
from crsbench_assets.worker.context import StageContext
from crsbench_assets.worker.pooled_stages import current_conditions, encoders_frame, provisional_variant, read_panels


@dataclass(frozen=True)
class Frozen:
    """A panel that was frozen, the candidates left out because they are incomplete, and whether it was there."""

    panel: Panel
    incomplete: tuple[str, ...]
    is_new: bool


def freeze_panel(project: Project, name: str) -> Frozen:
    """Freeze the complete candidates of a home as a reference panel and write its file.

    Complete means that every applicable cell has a settled result: what is stale or failed is no result.

    Raises:
        ConfigError: no complete candidate, a bad name, or the name stands for another panel already.
    """
    context = StageContext(project, stage_named("anchor"), (), inputs_hash="freeze")
    axes, statistics = context.read_all("cell_axes"), context.read_all("dataset_statistics")
    variant = provisional_variant(project, axes)
    conditions = current_conditions(project, statistics, variant)
    panel, incomplete = freeze(name, axis_values(axes, variant), encoders_frame(project), conditions)
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


def refused_panels(project: Project) -> dict[str, list[str]]:
    """Return by id the frozen panels that no score of today rests on, each with the conditions that differ.

    A panel with a dataset that was not split yet is not judged.
    """
    panels = read_panels(project)
    if not panels:
        return {}
    statistics = StageContext(project, stage_named("score"), (), inputs_hash="refused").read_all("dataset_statistics")
    split = set(statistics.get_column("dataset_id"))
    found = {
        panel.panel_id: mismatches(panel, current_conditions(project, statistics, panel.conditions.robustness_variant))
        for panel in panels
        if split.issuperset(panel.datasets)
    }
    return {panel_id: differing for panel_id, differing in found.items() if differing}
