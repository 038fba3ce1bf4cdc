"""What the stages of analyses hand over: one panel or several, and none that is refused."""

from __future__ import annotations

from crsbench_assets.operations.panels import freeze_panel
from crsbench_assets.planning.stages import stages_of
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import open_project
from crsbench_assets.tables.registry import TABLES
from crsbench_assets_tests.fixtures import DATASET, compute

OF_PANELS = [
    name
    for stage in stages_of("whole")
    if stage.group == "analyses"
    for name in stage.tables
    if "panel_id" in TABLES[name].key
]
WITHOUT_SHIFT = {"mimic_transfer", "institutional_shift_test"}
"""Empty where no dataset has a shift target."""


def test_every_analysis_has_rows_of_every_panel(computed_home: HomeLayout) -> None:
    project = open_project(computed_home.root)
    panels = set()
    for name in ("first", "second"):
        panels.add(freeze_panel(project, name).panel.panel_id)
    compute(project)
    assert len(panels) == 2
    for name in OF_PANELS:
        found = set(project.lake.read(name, ()).get_column("panel_id"))
        assert found == (set() if name in WITHOUT_SHIFT else panels), name


def test_a_refused_panel_has_no_rows_in_any_analysis(computed_home: HomeLayout) -> None:
    project = open_project(computed_home.root)
    panel_id = freeze_panel(project, "before").panel.panel_id
    settings = computed_home.settings.read_text(encoding="utf-8")
    computed_home.settings.write_text(f"{settings}caps: {{{DATASET}: 100}}\n", encoding="utf-8")
    project = open_project(computed_home.root)
    compute(project)
    scores = project.lake.read("crs_scores", ())
    assert set(scores.select("panel_id", "status").rows()) == {(panel_id, "panel_mismatch")}
    for name in OF_PANELS:
        assert project.lake.read(name, ()).is_empty(), name
    ranks = project.lake.read("ranks", ())
    assert set(ranks.get_column("reason")) == {"panel_mismatch"} and ranks.get_column("rank").null_count() == 2


def test_own_weights_reach_the_regret(computed_home: HomeLayout) -> None:
    settings = computed_home.settings.read_text(encoding="utf-8")
    weights = "{calibration: 0.75, robustness: 0.25}"
    computed_home.settings.write_text(f"{settings}selection_weights: {weights}\n", encoding="utf-8")
    project = open_project(computed_home.root)
    assert {name for name, _ in compute(project)} == {"selection_regret"}
    rows = project.lake.read("selection_regret", ())
    assert set(rows.get_column("weight_calibration")) == {0.75}
    assert set(rows.get_column("weight_discrimination")) == {0.0}
