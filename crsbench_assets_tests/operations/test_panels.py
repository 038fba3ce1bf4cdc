"""Freezing a panel: from settled results alone."""

from __future__ import annotations

import polars as pl
import pytest

from crsbench_assets.config.errors import ConfigError
from crsbench_assets.operations.panels import find_panel, freeze_panel
from crsbench_assets.storage.layout import HomeLayout
from crsbench_assets.storage.project import open_project
from crsbench_assets_tests.fixtures import vectors


def test_a_stale_cell_is_left_out_by_name(computed_home: HomeLayout) -> None:
    changed = vectors("alpha").with_columns(pl.col("vector").list.eval(pl.element() * 2))
    changed.write_parquet(computed_home.root / "files" / "alpha.parquet")
    frozen = freeze_panel(open_project(computed_home.root), "mine")
    assert (frozen.panel.members, frozen.incomplete, frozen.is_new) == (("beta",), ("alpha",), True)


def test_a_name_keeps_its_panel(computed_home: HomeLayout) -> None:
    project = open_project(computed_home.root)
    frozen = freeze_panel(project, "mine")
    assert frozen.panel.members == ("alpha", "beta")
    assert freeze_panel(project, "mine").is_new is False
    assert find_panel(project, "mine").panel_id == frozen.panel.panel_id
    changed = vectors("alpha").with_columns(pl.col("vector").list.eval(pl.element() * 2))
    changed.write_parquet(computed_home.root / "files" / "alpha.parquet")
    with pytest.raises(ConfigError, match="a frozen panel never changes"):
        freeze_panel(open_project(computed_home.root), "mine")
    with pytest.raises(ConfigError, match="No panel 'other'; frozen panels: mine-"):
        find_panel(project, "other")
